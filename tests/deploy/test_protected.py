"""Privacy and robust reductions in a deployment: the simulation's mechanism, noise that cannot be repeated."""

import dataclasses
import json
import time

import jax
import numpy as np
import pytest

import fedsolve as fs
from conformance.properties import close
from deploy_small import POPULATION, QUICK, QUICK_START, simulated
from deploy_small import deploy_quick as deploy
from fedsolve.core.errors import Unavailable
from fedsolve.deploy.reply_checks import check_still
from fedsolve.deploy.run_log import FAILED
from fedsolve.deploy.secret_keys import load_or_create_secret
from fedsolve.deploy.server.coordinator import Coordinator, Federation
from fedsolve.deploy.status import STATUS, read_status
from fedsolve.folders.sealed import mapped_arrays
from harness import Listed
from verbs_harness import vector as flat

PRIVACY = {"population": POPULATION, "delta": 1e-5, "sampling": "none"}
EVERYBODY = Listed.of([list(range(POPULATION))] * 3)


def dp(noise, at="server", **more):
    return fs.privacy.DifferentialPrivacy(
        fs.FedDuAdam(0.3), noise, 0.5, cohort=POPULATION, at=at, **PRIVACY, **more
    )


@pytest.mark.parametrize("at", [pytest.param("server", marks=pytest.mark.full), "client"])
@pytest.mark.full
def test_clipping_is_the_simulation(at, tmp_path):
    """With noise of 1e-13 of the clip norm: the models agree to 1e-9, wherever it is clipped."""
    method = dp(1e-13, at)
    setup, state, _ = simulated(method, QUICK, sampling=EVERYBODY)
    model, history, _ = deploy(method, tmp_path, sampling=EVERYBODY)
    with jax.enable_x64(True):
        close(flat(model), flat(setup.algorithm.export(state.server)), 1e-9)
    assert "client_loss" not in history.rounds  # it would tell more than the noisy sum does


@pytest.mark.full
def test_noise_is_not_the_seeds(tmp_path):
    """Two runs of one seed differ by their noise; epsilon of every round is the simulation's."""
    method = dp(1.0, clipping="adaptive")
    one, history, _ = deploy(method, tmp_path / "a", sampling=EVERYBODY)
    two, *_ = deploy(method, tmp_path / "b", sampling=EVERYBODY)
    assert np.abs(flat(one) - flat(two)).min() > 0
    _, _, logs = simulated(method, QUICK, sampling=EVERYBODY)
    np.testing.assert_allclose(history.rounds["epsilon"], logs["epsilon"], rtol=1e-12)
    assert (np.diff(history.rounds["epsilon"]) > 0).all()


def test_a_round_without_replies_still_costs(tmp_path):
    """Round 2 is skipped: its noise is added and counted, as if nobody had come."""
    method = dp(1.0, clipping="adaptive")

    def lose(node, what, content):
        return None if what == "train" and content["reply"]["round"] == 1 else content

    _, history, _ = deploy(method, tmp_path, sampling=EVERYBODY, tamper=lose, shortfall="skip")
    _, _, logs = simulated(method, QUICK, sampling=EVERYBODY)
    np.testing.assert_allclose(history.rounds["epsilon"], logs["epsilon"], rtol=1e-12)
    assert history.rounds["dropped"].tolist() == [0, POPULATION, 0]


@pytest.mark.full
def test_a_client_adds_its_own_noise(tmp_path):
    method = fs.privacy.LocalDifferentialPrivacy(fs.FedExP(0.3), 0.5, noise_multiplier=1.0, delta=1e-5)
    one, history, _ = deploy(method, tmp_path / "a")
    two, *_ = deploy(method, tmp_path / "b")
    assert np.abs(flat(one) - flat(two)).min() > 0
    assert (history.rounds["epsilon"] > 0).all()


@pytest.mark.full
def test_a_sampling_that_is_not_accounted_for(tmp_path):
    method = fs.privacy.DifferentialPrivacy(
        fs.FedExP(0.3), 1.0, 0.5, cohort=2, population=POPULATION, delta=1e-5
    )
    with pytest.raises(fs.InvalidInput, match="accounts for cohort = 2 but the run draws 6 clients"):
        deploy(method, tmp_path)


def test_what_moves_beside_is_refused():
    with pytest.raises(
        fs.InvalidInput, match=r"protects the parameters, not the buffers .* \(1.running_mean\)"
    ):
        check_still(dp(1.0), ["1.running_mean"])
    check_still(dp(1.0), [])
    check_still(fs.FedAvg(0.1), ["1.running_mean"])


@pytest.mark.full
def test_an_attacker_is_outvoted(tmp_path):
    """One of six sends a thousand times its update: the median stays near the honest run, the mean does not."""
    median = fs.robust.Robust(fs.FedAvg(0.3), fs.robust.Median())
    honest = flat(deploy(median, tmp_path / "honest")[0])
    attacked = {}
    for name, method in {"mean": fs.FedAvg(0.3), "median": median}.items():
        evil = fs.attacks.Attacked(method, fs.attacks.Scaled(1000.0), (2,))
        attacked[name] = flat(deploy(evil, tmp_path / name)[0])
    assert np.abs(attacked["median"] - honest).max() < 0.5
    assert np.abs(attacked["mean"] - honest).max() > 10


@pytest.mark.parametrize(
    "settings", [{"min_replies": 4}, {"clients_per_round": 4}, {"clients_per_round": 4, "over_select": 0.5}]
)
def test_rounds_that_are_too_small_for_a_reduction_are_refused(tmp_path, settings):
    """Krum(1) needs five replies of a round; with over-selection six are asked, but four end the round."""
    with pytest.raises(fs.InvalidInput, match=r"at least 5|from n = 5"):
        deploy(fs.robust.Robust(fs.FedAvg(0.3), fs.robust.Krum(1)), tmp_path, **settings)


def test_a_round_with_too_few_replies_for_a_reduction_is_not_used(tmp_path):
    """Two of six are silent: half of a cohort would do for a mean, Krum(1) needs five; the round is skipped."""
    krum = fs.robust.Robust(fs.FedAvg(0.3), fs.robust.Krum(1))
    model, history, _ = deploy(krum, tmp_path, deaf=[(101, 0), (104, 0)], rounds=1, shortfall="skip")
    np.testing.assert_array_equal(flat(model), flat(QUICK_START))
    assert history.rounds["dropped"].tolist() == [6]


def amplified(**more):
    """Sampling amplifies: three clients of six on average, each on its own."""
    setting = {"cohort": 3, "population": POPULATION, "delta": 1e-5, "sampling": "poisson"} | more
    return fs.privacy.DifferentialPrivacy(fs.FedAvg(0.3, weighting="uniform"), 1.0, 0.5, **setting)


HALF = fs.sampling.Bernoulli(0.5)


def coordinator(method, sampling=HALF, secret=None):
    return Coordinator(method, QUICK_START, Federation(POPULATION, sampling, 3, "x", secret))


def cohorts(server, rounds=12):
    """Cohorts as they are drawn, and as whoever holds an order of the round would draw them."""
    drawn, guessed = [], []
    for number in range(rounds):
        server.state = dataclasses.replace(server.state, round=number)
        drawn.append(server.draw_cohort())
        with server.precision():
            key = jax.random.wrap_key_data(np.asarray(server.train_request(0).key, np.uint32))
            ids, there = HALF.draw(key, number, POPULATION)
        guessed.append(sorted(np.asarray(ids)[np.asarray(there)].tolist()))
    return drawn, guessed


@pytest.mark.full
def test_cohorts_are_secret_where_sampling_amplifies():
    """An order tells the cohort of a plain method; of an amplified one neither it nor the seed tells anything."""
    drawn, guessed = cohorts(coordinator(fs.FedAvg(0.3)))
    assert drawn == guessed
    secret = bytes(range(32))
    drawn, guessed = cohorts(coordinator(amplified(), secret=secret))
    same = sum(
        (i in mine) == (i in guess)
        for mine, guess in zip(drawn, guessed, strict=True)
        for i in range(POPULATION)
    )
    assert 20 < same < 52  # of 72; half of them by chance, with a standard deviation of 4.2
    assert len({tuple(c) for c in drawn}) > 6
    assert drawn == cohorts(coordinator(amplified(), secret=secret))[0]
    assert drawn != cohorts(coordinator(amplified()))[0]  # unless it is told, each has a secret of its own
    # with everybody, or where no amplification is counted on, there is nothing to hide
    assert not amplified(cohort=POPULATION).secret_cohorts
    assert not dp(1.0).secret_cohorts
    assert fs.FedProx(0.1, mu=0.1).secret_cohorts is False


@pytest.mark.full
def test_a_private_run_goes_on_with_its_cohorts(tmp_path, capsys):
    """The secret is readable by its owner alone, is in nothing that is sent or written, and goes when the run ends."""
    secret, sent = bytes(range(100, 132)), []
    folder = tmp_path / "server"
    folder.mkdir()
    (folder / "cohorts.key").write_bytes(secret)
    wanted = cohorts(coordinator(amplified(), secret=secret), 4)[0]

    class Died(Exception):
        pass

    def evaluate(model, buffers):
        if len(sent) == len([c for cohort in wanted[:2] for c in cohort]):
            raise Died
        return {}

    def watch(node, what, content):
        sent.append(node) if what == "train" else None
        return content

    setting = {"sampling": HALF, "rounds": 4, "seed": 3, "shortfall": "skip"}
    with pytest.raises(fs.FedsolveError, match="evaluate raised Died after round 2"):
        deploy(amplified(), tmp_path, evaluate=evaluate, tamper=watch, **setting)
    _, history, _ = deploy(amplified(), tmp_path, resume=True, tamper=watch, **setting)
    assert [n - 101 for n in sent] == [c for i in (0, 1, 1, 2, 3) for c in wanted[i]]
    assert not (folder / "cohorts.key").exists()
    assert any("epsilon assumes that the cohorts are secret" in note for note in history.notes)
    assert "epsilon assumes that the cohorts are secret" in capsys.readouterr().out
    for path in folder.rglob("*"):
        assert path.is_dir() or secret not in path.read_bytes()


def test_a_run_s_folder_does_not_say_who_took_part(tmp_path):
    """Checkpoint, status and log of rounds of an amplified method, whose client 2 fails: counts, and nobody's name."""
    begun = []

    def spoiled(node, what, content):
        if what == "train":
            begun.append(time.time())
            if node == 103:
                content["reply"]["round"] = 7
        return content

    folder = tmp_path / "server"
    folder.mkdir()
    (folder / "cohorts.key").write_bytes(bytes(range(32)))
    method, three = amplified(sampling="fixed"), fs.sampling.Uniform(3)
    assert 2 in coordinator(method, three, secret=bytes(range(32))).draw_cohort()
    deploy(method, tmp_path, sampling=three, rounds=2, shortfall="skip", min_replies=1, tamper=spoiled)
    known = read_status(folder / STATUS)
    assert [(c.connected, c.failures, c.consecutive_failures) for c in known.clients] == [(True, 0, 0)] * 6
    assert [(c.last_used_round, c.last_reason) for c in known.clients] == [(0, "")] * 6
    assert max(c.last_heard for c in known.clients) < begun[0]
    rounds = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    assert [entry["reasons"] for entry in rounds] == [[], []]
    assert rounds[0]["causes"] == {"invalid": 1}
    _, arrays = mapped_arrays(folder / "checkpoint.safetensors", "checkpoint")
    [used] = [array for name, array in arrays.items() if "used" in name]
    assert used.tolist() == [-1] * POPULATION
    lost = {"tamper": lambda node, what, content: None if what == "train" else content, "repeats": 0}
    with pytest.raises(Unavailable, match=r"after 1 attempts \(the log above has the reasons\)"):
        deploy(method, tmp_path / "lost", sampling=three, rounds=1, **lost)
    assert "client 2" not in (tmp_path / "lost" / "server" / FAILED).read_text()


def test_a_model_that_is_not_finite_names_nobody_under_central_privacy(tmp_path):
    """Whose update was largest, and how large, would follow from one client's data."""
    setting = {"cohort": POPULATION, **PRIVACY}
    inner = fs.FedAvg(0.3, server_lr=1e308, weighting="uniform")
    method = fs.privacy.DifferentialPrivacy(inner, 10.0, 1e5, **setting)
    with pytest.raises(fs.Diverged) as ended:
        deploy(method, tmp_path, sampling=EVERYBODY, rounds=1, repeats=0)
    assert "round 1: the model would not be finite after it, as after" in str(ended.value)
    assert "client" not in str(ended.value).split("lower the rates")[0]


def test_a_secret_is_its_owners_alone(tmp_path):
    made = load_or_create_secret(tmp_path)
    assert len(made) == 32
    assert load_or_create_secret(tmp_path) == made
    assert (tmp_path / "cohorts.key").stat().st_mode & 0o777 == 0o600
    (tmp_path / "cohorts.key").write_bytes(made[:20])
    with pytest.raises(fs.InvalidInput, match=r"cohorts.key has 20 bytes, not 32: remove it"):
        load_or_create_secret(tmp_path)
