"""What rounds cost: known numbers, closed forms and relations between samplings."""

import json
import sys
from itertools import product
from pathlib import Path

import dp_accounting
import jax
import numpy as np
import pytest
from dp_accounting import NeighboringRelation as Relation
from dp_accounting.gaussian_mechanism import get_epsilon_gaussian, get_sigma_gaussian
from dp_accounting.pld import PLDAccountant
from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism
from dp_accounting.rdp import RdpAccountant
from typer.testing import CliRunner

import fedsolve as fs
from fedsolve.core.errors import InvalidInput
from fedsolve.geometry import L1, L2Ball
from fedsolve.methods.privacy.accounting import (
    epsilon,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_multiplier,
    noise_multiplier_for,
)
from fedsolve.methods.server.fedopt import FedOptMessage
from harness import crossed, engine, make_clients, make_task, prepare
from verbs_harness import play

SETTING = {"population": 100, "cohort": 10, "delta": 1e-5}


def reference(z: float, rounds: int, sampling: str) -> float:
    """dp-accounting's own composition, written out here."""
    if sampling == "poisson":
        accountant = RdpAccountant()
        event = dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.GaussianDpEvent(z))
    else:
        accountant = RdpAccountant(neighboring_relation=Relation.REPLACE_ONE)
        event = dp_accounting.GaussianDpEvent(z / 2)
        if sampling == "fixed":
            event = dp_accounting.SampledWithoutReplacementDpEvent(100, 10, event)
    return accountant.compose(event, rounds).get_epsilon(1e-5)


def test_known_numbers():
    """z = 1, 10 of 100 clients, 10 rounds, delta 1e-5: each sampling's Renyi bound, for its own neighbours."""
    found = {
        s: epsilon(1.0, 10, sampling=s, accountant="rdp", **SETTING) for s in ("poisson", "fixed", "none")
    }
    assert found["poisson"] == pytest.approx(3.4416, abs=1e-4)
    assert found["fixed"] == pytest.approx(17.5077, abs=1e-4)
    assert found["none"] == pytest.approx(48.8017, abs=1e-4)


@pytest.mark.parametrize("sampling", ["fixed", "none"])
def test_everyone_in_every_round_is_the_plain_gaussian_mechanism(sampling):
    """At q = 1 sensitivity 2C under replacement: closed form with sigma = z / (2 sqrt(T)); Renyi's bound is above."""
    z, rounds = 4.0, 10
    exact = get_epsilon_gaussian(z / 2 / rounds**0.5, 1e-5)
    everyone = {"population": 20, "cohort": 20, "delta": 1e-5}
    bound = epsilon(z, rounds, sampling=sampling, accountant="rdp", **everyone)
    assert exact < bound < 1.12 * exact
    assert epsilon(z, rounds, sampling=sampling, **everyone) == pytest.approx(exact, rel=1e-9)


@pytest.mark.full
def test_privacy_loss_distributions_are_tighter():
    """PLD below Renyi for Poisson cohorts; q = 1 is the closed form with sensitivity C."""
    both = [epsilon(1.0, 10, sampling="poisson", accountant=a, **SETTING) for a in ("pld", "rdp")]
    assert 2.8 < both[0] < both[1]
    everyone = {"population": 10, "cohort": 10, "delta": 1e-5}
    exact = get_epsilon_gaussian(4.0 / 10**0.5, 1e-5)
    assert epsilon(4.0, 10, sampling="poisson", **everyone) == pytest.approx(exact, rel=1e-9)
    composed = PLDAccountant(Relation.REPLACE_ONE).compose(dp_accounting.GaussianDpEvent(4.0), 10)
    assert epsilon(4.0, 10, sampling="none", **SETTING) == pytest.approx(composed.get_epsilon(1e-5), rel=1e-4)


def integrated(z: float, q: float, rounds: int, delta: float) -> float:
    """Epsilon of Poisson-sampled Gaussian noise by quadrature and convolution: the worse of P and Q as the true one."""
    x, h = np.linspace(-30.0, 30.0, 2_000_001), 1e-3
    off, on = (np.exp(-((x - c) ** 2) / (2 * z**2)) for c in (0, 1))
    q_, p_ = off / off.sum(), (1 - q) * off / off.sum() + q * on / on.sum()
    worst = 0.0
    for true, other in ((p_, q_), (q_, p_)):
        keep = (true > 0) & (other > 0)
        loss = np.round(np.log(true[keep] / other[keep]) / h).astype(int)
        size = 2 ** int(np.ceil(np.log2(rounds * np.abs(loss).max() + 1)) + 1)
        mass = np.bincount(loss % size, true[keep], size)
        total = np.fft.irfft(np.fft.rfft(mass) ** rounds, size).clip(0)
        losses = h * (np.arange(size) - size * (np.arange(size) > size // 2))
        low, high = 0.0, 100.0
        for _ in range(40):
            middle = (low + high) / 2
            above = losses > middle
            spent = np.sum(total[above] * -np.expm1(middle - losses[above]))
            low, high = (middle, high) if spent > delta else (low, middle)
        worst = max(worst, high)
    return worst


@pytest.mark.full
def test_privacy_loss_distributions_are_what_quadrature_and_convolution_give():
    """q = 0.1, z = 1, 10 rounds, and 7 to 23 % below Renyi's bound at usual settings."""
    assert epsilon(1.0, 10, sampling="poisson", **SETTING) == pytest.approx(
        integrated(1, 0.1, 10, 1e-5), rel=1e-3
    )
    for z, rounds, q, delta in ((1.02, 50, 0.2, 1e-3), (1.0, 200, 0.1, 1e-5), (0.8, 1000, 0.01, 1e-6)):
        setting = {"population": 1000, "cohort": 1000 * q, "delta": delta, "sampling": "poisson"}
        less = 1 - epsilon(z, rounds, **setting) / epsilon(z, rounds, accountant="rdp", **setting)
        assert 0.07 < less < 0.23


@pytest.mark.parametrize(
    ("z", "q", "delta"), crossed([(1.0, 0.1, 1e-5), (0.6, 0.01, 1e-6), (5.0, 0.1, 1e-2)], [(1.0, 0.1, 1e-5)])
)
def test_epsilon_between_the_round_counts_of_the_table(z, q, delta):
    """Interpolated as `dp-accounting` composes it on a finer grid: up to 0.1 % more, 0.01 % less."""
    setting = {"population": 1000, "cohort": 1000 * q, "delta": delta, "sampling": "poisson"}
    method = fs.privacy.DifferentialPrivacy(fs.FedAvg(weighting="uniform"), z, 0.5, **setting)
    fine = from_gaussian_mechanism(z, sampling_prob=q, value_discretization_interval=3e-4)
    with jax.enable_x64(True):
        epsilon_after = jax.jit(lambda rounds: method.epsilon_after(rounds))
        for rounds in (1, 3, 7, 19, 90, 1448):
            exact = fine.self_compose(rounds).get_epsilon_for_delta(delta)
            assert 0.9999 * exact - 1e-6 <= float(epsilon_after(rounds)) <= 1.001 * exact


@pytest.mark.gate("none")
@pytest.mark.parametrize("sampling", crossed(["poisson", "fixed", "none"], ["poisson", "none"]))
def test_calibration(sampling):
    """The noise found keeps the promise, and 1 % less would not."""
    z = noise_multiplier_for(5.0, 50, sampling=sampling, **SETTING)
    assert epsilon(z, 50, sampling=sampling, **SETTING) <= 5.0
    assert epsilon(0.99 * z, 50, sampling=sampling, **SETTING) > 5.0


@pytest.mark.gate("none")
@pytest.mark.parametrize("sampling", crossed(["poisson", "fixed", "none"], ["poisson", "none"]))
def test_what_the_log_shows_is_the_library_s_answer(sampling):
    """Inside the compiled program: Renyi's bound is dp-accounting's composition, epsilon that of `epsilon`."""
    inner = fs.FedAvg(weighting="uniform")
    method = fs.privacy.DifferentialPrivacy(inner, 1.0, 0.5, sampling=sampling, **SETTING)
    with jax.enable_x64(True):
        after = jax.jit(lambda rounds: (method._renyi_after(rounds), method.epsilon_after(rounds)))
        for rounds in (1, 10, 200):
            bound, found = map(float, after(rounds))
            assert bound == pytest.approx(reference(1.0, rounds, sampling), rel=1e-6)
            assert found == pytest.approx(epsilon(1.0, rounds, sampling=sampling, **SETTING), rel=2e-4)
            assert (found < bound) == (sampling != "fixed")


def test_edges():
    """No round costs nothing; no noise, everything; nothing told, nothing (delta large)."""
    assert epsilon(1.0, 0, **SETTING) == 0.0
    assert epsilon(0.0, 1, **SETTING) == epsilon(1e-300, 1, **SETTING) == np.inf
    assert 0.0 <= epsilon(1e300, 1, **SETTING) <= epsilon(1e5, 1, **SETTING)
    big = fs.privacy.DifferentialPrivacy(
        fs.FedAvg(weighting="uniform"), 1000.0, 0.5, cohort=10, population=100, delta=0.5
    )
    assert float(big.epsilon_after(1)) == 0.0


EPSILON, DELTA = jax.jit(gaussian_epsilon), jax.jit(gaussian_delta)  # many operations: one program each


@pytest.mark.full_rows("0.001-8.0", "0.001-0.1", "1e-06-1.0")
@pytest.mark.parametrize("eps", [0.1, 1.0, 8.0, 50.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-6])
def test_analytic_gaussian(eps, delta):
    """Calibration and its inverse against the closed form, and against each other; float32 to 1e-4."""
    sigma = gaussian_multiplier(eps, delta)
    assert sigma == pytest.approx(get_sigma_gaussian(eps, delta), rel=1e-9)
    with jax.enable_x64(True):
        assert float(EPSILON(1 / sigma, delta)) == pytest.approx(eps, rel=1e-9)
        assert float(DELTA(1 / sigma, eps)) == pytest.approx(delta, rel=1e-6)
    assert float(EPSILON(np.float32(1 / sigma), np.float32(delta))) == pytest.approx(eps, rel=1e-3)


def test_local_composition_is_exact():
    """t messages with multiplier z are one with z / sqrt(t)."""
    method = fs.privacy.LocalDifferentialPrivacy(fs.FedAvg(weighting="uniform"), 0.5, 1.0, delta=1e-5)
    assert float(method.noise_multiplier) == pytest.approx(2 * get_sigma_gaussian(1.0, 1e-5), rel=1e-9)
    with jax.enable_x64(True):
        server = method.init({"w": np.zeros(3)})
        message = FedOptMessage({"w": np.zeros(3)}, np.float64(0.0), ())
        after = method.update(server, message, fs.Cohort(9, 5, 10))
    assert float(after.epsilon_round) == pytest.approx(1.0, rel=1e-9)
    sigma = get_sigma_gaussian(1.0, 1e-5)
    assert float(after.epsilon) == pytest.approx(get_epsilon_gaussian(sigma / 10**0.5, 1e-5), rel=1e-6)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"cohort": 11, "population": 10}, "cohort = 11"),
        ({"cohort": 2.5}, "integer where sampling = 'fixed'"),
        ({"delta": 0.0}, "delta = 0.0"),
        ({"sampling": "posson"}, "did you mean 'poisson'"),
        ({"accountant": "pld"}, "not support sampling without replacement"),
        ({"accountant": "moments"}, "unknown accountant"),
        ({"population": 10.5}, "population = 10.5"),
    ],
)
def test_settings_that_are_no_mechanism(change, said):
    with pytest.raises(InvalidInput, match=said):
        epsilon(1.0, 10, **(SETTING | change))
    with pytest.raises(InvalidInput, match="noise_multiplier"):
        epsilon(-1.0, 10, **SETTING)
    with pytest.raises(InvalidInput, match="rounds"):
        epsilon(1.0, 1.5, **SETTING)  # pyright: ignore[reportArgumentType]


# What cannot be made private is refused with the reason, before anything runs.

REFUSALS_SETTING = {"cohort": 3, "population": 5, "delta": 1e-2}
FEDAVG = fs.FedAvg(0.3, weighting="uniform")
TASK = make_task(make_clients())


def central(inner=FEDAVG, **more):
    return fs.privacy.DifferentialPrivacy(inner, 1.0, 0.5, **(REFUSALS_SETTING | more))


def local(inner=FEDAVG, **more):
    return fs.privacy.LocalDifferentialPrivacy(inner, 0.5, 1.0, delta=1e-2, **more)


WRAPPERS = pytest.mark.parametrize("wrap", [central, local])


@WRAPPERS
@pytest.mark.parametrize(
    ("inner", "said"),
    [
        (lambda: fs.FedAvg(0.3), "weighting='uniform'"),
        (lambda: fs.robust.Robust(FEDAVG, fs.robust.Median()), "not for another reduction"),
        (lambda: central(), "private already"),
        (lambda: local(), "private already"),
    ],
)
def test_methods_refused_at_construction(wrap, inner, said):
    with pytest.raises(InvalidInput, match=said):
        wrap(inner())


@WRAPPERS
@pytest.mark.parametrize(
    ("inner", "said"),
    [
        (lambda: fs.SCAFFOLD(0.3, weighting="uniform"), "SCAFFOLD keeps a state on each client"),
        (lambda: fs.FedDR(L1(0.1), 0.3), "keeps a state on each client"),
        (lambda: fs.FedFW(L2Ball(5.0)), "keeps a state on each client"),
        (lambda: fs.FedDyn(0.3), "FedDyn keeps a state on each client"),
        (lambda: fs.FedNova(0.3, weighting="uniform"), r"scalars=\{'measured.rate_sum': 10.0\}"),
        (lambda: fs.FedLiLU(0.3, server_lr=1.0), r"scalars=\{'measured.f': 10.0\}"),
        (lambda: fs.FedLiLS(eta_max=1.0), "search.step"),
        (lambda: fs.FedMiD(L1(0.1), 0.3), "rate_sum"),
        (lambda: fs.FedDualAvg(L1(0.1), 0.3), "rate_sum"),
        (lambda: fs.FedOpt(fs.client.SGD(0.3), fs.server.Polyak(), weighting="uniform"), "measured.loss"),
    ],
)
def test_messages_refused_before_anything_runs(wrap, inner, said):
    with pytest.raises(InvalidInput, match=said):
        engine(wrap(inner()), TASK, fs.sampling.Uniform(3), 1)


BOUNDED = {
    "FedLiLU": (fs.FedLiLU(0.3, server_lr=1.0), {"measured.f": 5.0}),
    "FedMiD": (fs.FedMiD(L1(0.1), 0.3), {"rate_sum": 3.0}),
    "FedLiLS": (fs.FedLiLS(eta_max=1.0), {"search.step": 0, "search.evaluations": 0}),
}


@pytest.mark.full_rows("local-FedMiD")
@pytest.mark.parametrize(
    ("wrap", "name"),
    crossed(product((central, local), BOUNDED), [(central, "FedLiLS"), (local, "FedMiD")]),
)
def test_bounds_make_a_refused_method_private(wrap, name):
    """0 leaves out what is only logged."""
    inner, scalars = BOUNDED[name]
    assert play(wrap(inner, scalars=scalars), TASK, fs.sampling.Uniform(3), 1).logs["epsilon"][0] > 0


@WRAPPERS
def test_scalars(wrap):
    """A maximum has no other way; a scalar's former name, which a configuration may hold, is refused with the
    name of now.
    """
    for inner, scalars, said in (
        (
            fs.FedLiLS(eta_max=1.0),
            {"search.step": 1.0, "search.evaluations": 9.0},
            "whose maximum the server uses",
        ),
        (FEDAVG, {"measured.f": 1.0}, "sends no measured.f; it sends loss"),
        (fs.FedMiD(L1(0.1), 0.3), {"elapsed": 3.0}, "elapsed is now rate_sum"),
        (FEDAVG, {"elapsed": 3.0}, "sends no elapsed; it sends loss"),
    ):
        with pytest.raises(InvalidInput, match=said):
            engine(wrap(inner, scalars=scalars), TASK, fs.sampling.Uniform(3), 1)
    for bad in ({"loss": -1.0}, {"loss": "5"}, {"loss": float("inf")}, 3.0):
        with pytest.raises(InvalidInput, match="scalars"):
            wrap(scalars=bad)


@WRAPPERS
def test_paths_of_vectors(wrap):
    """FedDualAvg's averaged output sends every iterate."""
    inner = fs.FedDualAvg(L1(0.1), 0.3, averaged=True)
    with pytest.raises(InvalidInput, match="only scalars can be protected"):
        engine(
            wrap(inner, scalars={"rate_sum": 3.0}),
            make_task(make_clients(), local_steps=2),
            fs.sampling.Uniform(3),
            1,
        )


def test_wrappers_around_private_methods():
    """Control variates would go up beside the noise; another reduction than the mean is not what it was made for."""
    for wrap in (central, local):
        with pytest.raises(InvalidInput, match="control variates unprotected"):
            fs.ControlVariates(wrap())
        with pytest.raises(InvalidInput, match="control variates unprotected"):
            fs.ControlVariates(fs.Proximal(wrap(), 0.1))
    with pytest.raises(InvalidInput, match="noise is made for the mean"):
        fs.robust.Robust(central(), fs.robust.Median())
    assert (
        fs.robust.Robust(local(), fs.robust.Median()).privacy == "local"
    )  # what is done with private messages is free


@pytest.mark.full_rows(
    "more2-sampling2-sampling = 'fixed'",
    "more6-sampling6-population = 6 but the run has 5",
    "more3-sampling3-draws 2.5",
)
@pytest.mark.parametrize(
    ("more", "sampling", "said"),
    [
        ({}, fs.sampling.Uniform(4), "cohort = 3 but the run draws 4"),
        ({}, fs.sampling.Bernoulli(0.6), "sampling = 'poisson'"),
        ({"sampling": "poisson"}, fs.sampling.Uniform(3), "sampling = 'fixed'"),
        ({"sampling": "poisson"}, fs.sampling.Bernoulli(0.5), "draws 2.5"),
        ({}, fs.sampling.Weighted(np.ones(5), 3), "sampling = 'none'"),
        ({}, fs.sampling.Trace(np.ones((1, 5), bool), 3), "sampling = 'none'"),
        ({"population": 6}, fs.sampling.Uniform(3), "population = 6 but the run has 5"),
    ],
)
def test_runs_that_are_not_the_accounted_ones(more, sampling, said):
    with pytest.raises(InvalidInput, match=said):
        fs.run(central(**more), TASK, rounds=1, sampling=sampling)
    with pytest.raises(InvalidInput, match=said):
        fs.sweep(
            lambda z: central(fs.Proximal(FEDAVG, z), **more), TASK, {"z": [1.0]}, rounds=1, sampling=sampling
        )


def test_runs_without_amplification_may_be_drawn_by_any_rule():
    for sampling in (
        fs.sampling.Uniform(3),
        fs.sampling.Weighted(np.ones(5), 3),
        fs.sampling.Trace(np.ones((1, 5), bool), 3),
    ):
        prepare(central(sampling="none"), TASK, sampling, dtype="float32")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"clipping": "adaptiv"}, "clipping"),
        ({"at": "proxy"}, "at"),
        ({"share": 1.0}, "share"),
        ({"quantile": 1.5}, "quantile"),
        ({"quantile_lr": 0.0}, "quantile_lr"),
        ({"delta": 2.0}, "delta"),
        ({"cohort": 6}, "cohort"),
    ],
)
def test_numbers_out_of_range(change, said):
    with pytest.raises(InvalidInput, match=said):
        central(**change)


def test_local_needs_one_of_two():
    with pytest.raises(InvalidInput, match="epsilon of one message, or noise_multiplier"):
        fs.privacy.LocalDifferentialPrivacy(FEDAVG, 0.5, delta=1e-2)
    with pytest.raises(InvalidInput, match="not both"):
        fs.privacy.LocalDifferentialPrivacy(FEDAVG, 0.5, 1.0, delta=1e-2, noise_multiplier=1.0)


def test_without_the_library_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    from fedsolve.methods.privacy import accounting as renyi

    renyi._renyi.cache_clear()
    with pytest.raises(InvalidInput, match=r"fedsolve\[privacy\]"):
        central()
    fs.privacy.LocalDifferentialPrivacy(FEDAVG, 0.5, 1.0, delta=1e-2)  # needs none


def test_updates_without_randomness():
    method = central()
    server = method.init({"w": 0.0 * TASK.init(None).weight})
    with pytest.raises(InvalidInput, match="give Cohort a key"):
        method.update(server, None, fs.Cohort(0, 3, 5))
    with pytest.raises(InvalidInput, match="population = 5 but the run has 7"):
        method.broadcast(server, fs.Cohort(0, 3, 7))


@pytest.mark.full
def test_on_the_command_line(tmp_path, monkeypatch):
    """`DP+FedLiLS` with a table of bounds: a run whose record has epsilon and C of every round."""
    from fedsolve.cli.main import app

    monkeypatch.chdir(tmp_path)
    settings = [
        "weighting=uniform", "noise_multiplier=1.0", "clip_norm=0.5", "cohort=2", "population=4", "delta=0.01",
        "clipping=adaptive", "eta_max=0.1", 'scalars={"search.step"=0, "search.evaluations"=0}',
    ]  # fmt: skip
    command = ["run", "digits", "DP+FedLiLS", *(a for s in settings for a in ("--set", s))]
    small = [
        "--task-set",
        "num_clients=4",
        "--task-set",
        "model=softmax",
        "--clients-per-round=2",
        "--rounds=3",
    ]
    ended = CliRunner().invoke(app, [*command, *small, "--out", "r"])
    assert ended.exit_code == 0, ended.output
    rounds = json.loads(Path("r/history.json").read_text())["rounds"]
    assert rounds["epsilon"] == sorted(rounds["epsilon"])
    assert len(rounds["clip_norm"]) == 3
    assert Path("r/page.html").exists()
