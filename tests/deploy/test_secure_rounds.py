"""Federations whose server sees sums alone: the bits of the simulation, clients that are lost, and refusals."""

from dataclasses import replace

import jax
import numpy as np
import pytest

import fedsolve as fs
from deploy_small import QUICK, ROWS, clients_of, simulated
from deploy_small import deploy_quick as deploy
from fedsolve.core.errors import InvalidInput, Unavailable
from fedsolve.deploy.client.app import client_app
from fedsolve.deploy.oracles.jax import JaxOracle
from harness import crossed

BOUND = 4.0
ONE_MEASURED = {"rounds": 1, "client_metrics": ("loss",)}


def secure(inner, **options):
    return fs.Secure(inner, **{"bound": BOUND, "max_clients": 6, "max_examples": 16, **options})


def bits(tree):
    return [np.asarray(x).tobytes() for x in jax.tree.leaves(tree)]


UNEVEN = replace(QUICK, data=fs.FederatedData.from_clients([x[: 3 - i % 2] for i, x in enumerate(ROWS)]))
METHODS = {
    "by examples": (secure(fs.FedAvg(0.1)), UNEVEN),
    "Hessians": (secure(fs.Newton()), UNEVEN),
    "client state, 64 bits": (secure(fs.SCAFFOLD(0.1), bits=64), QUICK),
    "a norm": (secure(fs.FedDuAdam(client_lr=0.1)), QUICK),
}


@pytest.mark.gate("a norm")
@pytest.mark.parametrize("name", crossed(METHODS, ["client state, 64 bits", "a norm"]))
def test_a_federation_has_the_bits_of_the_simulation(name, tmp_path):
    """Masks cancel exactly, so that not one bit differs; all clients take part."""
    algorithm, problem = METHODS[name]
    none = {
        "norm_bound": float("inf"),
        "max_share": 1.0,
        "buffers": {},
    }  # as the configuration of an app says it
    found, history, grid = deploy(algorithm, tmp_path, app=clients_of(problem), **none)
    setup, state, _ = simulated(algorithm, problem, sampling=fs.sampling.Uniform(6))
    with jax.enable_x64(True):
        assert bits(found) == bits(setup.algorithm.export(state.server))
    kinds = [kind for _, kind in grid.asked]
    assert kinds.count("train") == 18
    # who, keys, roster, and in each round shares: of 6 members 5 are enough
    assert 6 * 3 + 3 * 5 <= kinds.count("query") + kinds.count("query.secure") <= 6 * 6
    assert history.total("rejected") == 0


def test_what_the_server_is_sent_is_masked(tmp_path):
    """A reply has no byte in common with the client's own message, and differs from run to run."""
    seen = []

    def tamper(node, kind, content):
        if kind == "train":
            seen.append(bytes(content["message"]["bytes"].data))
        return content

    algorithm = secure(fs.FedAvg(0.1))
    for run in ("a", "b"):
        deploy(algorithm, tmp_path / run, tamper=tamper, rounds=1)
    first, second = seen[:6], seen[6:]
    assert all(a[-200:] != b[-200:] for a, b in zip(first, second, strict=True))


def test_clients_that_are_lost(tmp_path):
    """One is lost before its reply in round 2: the sum is that of the others, as in a round without it."""
    algorithm = secure(fs.FedAvg(0.1))
    found, history, _ = deploy(algorithm, tmp_path, deaf={(103, 1)}, grace=0.05, min_replies=5)
    assert history.rounds["dropped"].tolist() == [0, 1, 1]  # it is not asked in the round after
    # the same round without masks
    plain, _, _ = deploy(fs.FedAvg(0.1), tmp_path / "plain", deaf={(103, 1)}, grace=0.05, min_replies=5)
    for mine, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(plain), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-5)


def test_too_few_for_a_sum(tmp_path):
    """Four of six are lost: the round is skipped, and the model stays."""
    algorithm = secure(fs.FedAvg(0.1))
    deaf = {(node, 1) for node in (101, 102, 103, 104)}
    found, _, _ = deploy(algorithm, tmp_path, deaf=deaf, shortfall="skip", rounds=2)
    once, _, _ = deploy(algorithm, tmp_path / "once", rounds=1)
    assert bits(found) == bits(once)


@pytest.mark.full
def test_a_member_without_an_answer(tmp_path):
    """One member is silent, five of six open the sum; with two silent none is opened, and the run ends in a line."""

    def silent(*nodes):
        return lambda node, kind, content: (
            None if kind == "query.secure" and node in nodes and _is_late() else content
        )

    counts = {"asked": 0}

    def _is_late():
        counts["asked"] += 1
        return counts["asked"] > 4  # after hello and roster of these nodes

    found, _, _ = deploy(secure(fs.FedAvg(0.1)), tmp_path, rounds=1, tamper=silent(101))
    wanted, _, _ = deploy(secure(fs.FedAvg(0.1)), tmp_path / "all", rounds=1)
    assert bits(found) == bits(wanted)


@pytest.mark.full
def test_metrics_are_summed(tmp_path):
    """The means over all examples are those of a federation that sends each client's; no client's own are known."""
    settings = {"rounds": 2, "client_metrics": ("loss",)}
    _, history, _ = deploy(secure(fs.FedAvg(0.1)), tmp_path, **settings)
    _, plain, _ = deploy(fs.FedAvg(0.1), tmp_path / "plain", **settings)
    np.testing.assert_allclose(history.evaluations["train_loss"], plain.evaluations["train_loss"], rtol=1e-4)
    assert "client_loss_worst" not in history.evaluations
    assert history.evaluations["clients_measured"].tolist() == [6, 6, 6]


def test_what_a_client_says_of_its_metrics_is_not_trusted(tmp_path, capsys):
    """One says what is no JSON, one that its loss is an AUC: both are left out of evaluations, and the run goes on."""

    def junk(node, kind, content):
        data = content["data"]["bytes"] if kind == "query.secure" else None
        if data is not None and data.data.startswith(b"[[null") and node in (101, 102):
            auc = b'[[{"metric": "AUC", "weighted": false, "bins": 50, "scale": 1.0}], ["train"], false]'
            data.data = b"[nul]]" if node == 101 else auc
            data.shape = (len(data.data),)
        return content

    _, history, _ = deploy(secure(fs.FedAvg(0.1)), tmp_path, tamper=junk, **ONE_MEASURED)
    assert history.evaluations["clients_measured"].tolist() == [4, 4]
    said = capsys.readouterr().out
    assert "client 0 is not asked for metrics: the answer cannot be read" in said
    assert "client 1 has other metrics than most, and is not asked for them" in said


def test_an_owner_that_allows_sums_alone(tmp_path):
    """Such a client trains under fs.Secure, and refuses a method whose messages the server reads."""
    app = client_app(lambda node: JaxOracle.of_task(QUICK, node.client), min_sum=5)
    deploy(secure(fs.FedAvg(0.1)), tmp_path / "sums", app=app, rounds=1)
    with pytest.raises(Unavailable, match="allows sums of at least 5 clients alone"):
        deploy(fs.FedAvg(0.1), tmp_path / "clear", app=app, rounds=1, repeats=0)
    with pytest.raises(Unavailable, match="min_sum = 5"):
        deploy(secure(fs.FedAvg(0.1)), tmp_path / "few", app=app, rounds=1, repeats=0, clients_per_round=4)


def shared_noise(noise_multiplier, min_sum):
    inner = fs.FedExP(0.1, weighting="uniform")
    around = {"cohort": 6, "population": 6, "delta": 1e-5, "sampling": "none", "scalars": {"loss": 0}}
    dp = fs.privacy.DifferentialPrivacy(
        inner, noise_multiplier, 1.0, at="distributed", min_sum=min_sum, **around
    )
    return fs.Secure(dp, bound=BOUND, max_clients=6)


def test_noise_in_shares(tmp_path, monkeypatch):
    """Each client adds its share outside the program: nothing else differs from the simulation, and no run repeats."""
    setup, state, _ = simulated(shared_noise(0.0, 3), QUICK, sampling=fs.sampling.Uniform(6))
    models = []
    evaluate = lambda params, buffers: models.append(params) or {}  # noqa: E731
    with monkeypatch.context() as patched:
        patched.setattr(
            "fedsolve.deploy.secure.primitives.skellam_share", lambda n, variance: np.zeros(n, np.int64)
        )
        whole, _, _ = deploy(shared_noise(1e-3, 3), tmp_path / "whole", evaluate=evaluate)
    with jax.enable_x64(True):
        assert bits(whole) == bits(setup.algorithm.export(state.server))
    one, history, _ = deploy(shared_noise(1e-3, 3), tmp_path / "one", **ONE_MEASURED)
    other, _, _ = deploy(shared_noise(1e-3, 3), tmp_path / "other", rounds=1)
    assert bits(one) != bits(other)
    for mine, theirs in zip(jax.tree.leaves(one), jax.tree.leaves(models[1]), strict=True):
        assert 0 < np.abs(mine - theirs).max() < 0.01  # the noise of the mean: 1e-3 sqrt(2) / 6
    assert np.isfinite(history.evaluations["train_loss"]).all()
    with pytest.raises(
        Unavailable, match=r"noise of .* is for sums of at least 5 clients.*give client_app min_sum=5"
    ):
        deploy(shared_noise(1e-3, 5), tmp_path / "few", rounds=1, repeats=0)


@pytest.mark.full
def test_a_server_that_is_started_again(tmp_path):
    """It goes on with the keys that it has; the clients accept no others."""
    algorithm, folder = secure(fs.FedAvg(0.1)), tmp_path / "run"
    deploy(algorithm, folder, rounds=1)
    found, _, grid = deploy(algorithm, folder, rounds=3, resume=True)
    whole, _, _ = deploy(algorithm, tmp_path / "whole", rounds=3)
    assert bits(found) == bits(whole)
    assert (
        sum(kind == "query.secure" for _, kind in grid.asked) <= 3 * 6
    )  # the keys, and shares of two rounds


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"population": 2}, "needs at least 3 clients"),
        ({"norm_bound": 3.0}, "norm_bound looks at single messages"),
        ({"buffers": {"mean": np.zeros(2)}}, "buffers looks at single messages"),
    ],
)
def test_what_needs_single_messages_is_refused(options, words, tmp_path):
    with pytest.raises(InvalidInput, match=words):
        deploy(secure(fs.FedAvg(0.1)), tmp_path, **options)


@pytest.mark.full_rows("64")
@pytest.mark.parametrize("committee", [64, 5])
def test_a_run_that_ended_before_its_first_checkpoint(committee, tmp_path, monkeypatch, capsys):
    """Keys and rosters are there, and nothing else: it starts again in its folder, also where a committee is drawn."""
    monkeypatch.setattr("fedsolve.deploy.secure.keys.COMMITTEE", committee)
    algorithm, folder = secure(fs.FedAvg(0.1)), tmp_path / "run"
    nobody = {(node, 0) for node in range(101, 107)}
    with pytest.raises(Unavailable, match="0 of 6 replies count"):
        deploy(algorithm, folder, rounds=1, repeats=0, deaf=nobody)
    assert (folder / "server" / "secure-sums.bin").is_file()
    found, _, _ = deploy(algorithm, folder, rounds=1)
    whole, _, _ = deploy(algorithm, tmp_path / "whole", rounds=1)
    assert bits(found) == bits(whole)
    assert "is of a run that has not begun: clients are asked for their keys again" in capsys.readouterr().out


@pytest.mark.full_rows("False")
@pytest.mark.parametrize("second_sums", [True, False])
def test_a_server_that_ends_after_a_sum_was_opened(second_sums, tmp_path, monkeypatch, capsys):
    """The round is asked for again, and the same clients' sum is opened once more, unless an owner forbids it."""
    algorithm, folder = secure(fs.FedAvg(0.1)), tmp_path / "run"
    app = client_app(lambda node: JaxOracle.of_task(QUICK, node.client), second_sums=second_sums)
    deploy(algorithm, folder, app=app, rounds=1)

    def killed(self):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("fedsolve.deploy.server.rounds.FederationLoop.save", killed)
        with pytest.raises(KeyboardInterrupt):
            deploy(algorithm, folder, app=app, rounds=3, resume=True)
    found, history, _ = deploy(algorithm, folder, app=app, rounds=3, resume=True)
    whole, _, _ = deploy(algorithm, tmp_path / "whole", rounds=3 if second_sums else 2)
    assert history.rounds["dropped"].tolist() == [0, 0 if second_sums else 6, 0]
    if second_sums:
        assert bits(found) == bits(whole)
    else:
        assert "another sum of this round was opened already" in capsys.readouterr().out
