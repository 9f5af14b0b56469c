"""FedProx and SCAFFOLD, alone and around other methods, against Li et al. 2020 and Karimireddy et al.
2020.
"""

from __future__ import annotations

import optax
import pytest
from fedsolve.server import DoublyAdaptive

import fedsolve as fs
from equations.cases import EVERY, FULL, SOME, check_fedopt, check_scaffold
from equations.server_rules import Average, FedDuA, FedExPRule, FedOptRule
from equations.transcript import LocalSGD
from harness import CLASSES, FEATURES, crossed, engine, make_clients, make_task, prepare
from verbs_harness import play

RATE = 0.3

OPTIONS = pytest.mark.parametrize("option", ["I", "II"])


@EVERY
@pytest.mark.parametrize("mu", [0.01, 1.0])
def test_fedprox(sampling, mu):
    """y -= eta_l (g + mu (y - w)); averages by examples; the first local step does not feel mu."""
    algorithm = fs.FedProx(0.3, mu=mu, server_lr=0.8)
    check_fedopt(algorithm, lambda: Average(0.8), LocalSGD(0.3, mu=mu), "examples", sampling)


@EVERY
def test_fedprox_around_fedadam(sampling):
    """The proximal gradient on the client, Adam of the paper on the server."""
    algorithm = fs.build("FedProx+FedAdam", {"client_lr": 0.3, "mu": 0.5, "weighting": "uniform"})
    rule = lambda: FedOptRule("adam", 0.1, 1e-3, 0.9, 0.99, 1e-6, False)  # noqa: E731
    check_fedopt(algorithm, rule, LocalSGD(0.3, mu=0.5), "uniform", sampling)


@EVERY
@OPTIONS
def test_scaffold(sampling, option):
    """y -= eta_l (g - c_i + c); c_i by option I or II; w += eta_g mean D_i; c += (1/5) sum over S of (c_i+
    - c_i).

    Clients that are absent keep c_i; the number of local steps K in (w - y)/(K eta_l) is the client's own.
    """
    algorithm = fs.SCAFFOLD(0.3, server_lr=0.9, option=option)
    check_scaffold(algorithm, lambda: Average(0.9), LocalSGD(0.3), option, sampling)


@pytest.mark.full
def test_scaffold_in_the_engine():
    """Whole rounds of the engine: absent clients' c_i wait in its stacked states."""
    check_scaffold(fs.SCAFFOLD(0.3), lambda: Average(1.0), LocalSGD(0.3), "II", SOME, by=engine)


@EVERY
def test_scaffold_with_a_number_of_steps(sampling):
    """K = 5 for everyone: 1, 2 and 3 minibatches per pass, so passes are cut in the middle."""
    check_scaffold(fs.SCAFFOLD(0.3), lambda: Average(1.0), LocalSGD(0.3), "II", sampling, local_steps=5)


@pytest.mark.parametrize(
    ("by", "equal_steps"),
    [(play, 5), pytest.param(engine, None, marks=pytest.mark.full)],
    ids=["told", "found"],
)
def test_scaffold_sends_client_updates_alone(by, equal_steps):
    """Of clients with as many steps: c and all c_i, of a cohort that varies, with a schedule and momentum."""
    rate = fs.schedules.Exponential(0.4, 0.8)
    algorithm = fs.SCAFFOLD(rate, client_momentum=0.6, equal_steps=equal_steps)
    local = LocalSGD(lambda t: 0.4 * 0.8**t, momentum=0.6)
    check_scaffold(algorithm, lambda: Average(1.0), local, "II", SOME, by=by, local_steps=5)


def test_what_scaffold_sends():
    """As much as FedAvg with option II, as many steps and uniform weights; a vector more otherwise."""

    def sent(method, **work):
        task = make_task(make_clients(), **(work or {"local_steps": 5}))
        return sum(prepare(method, task, FULL, dtype="float32").traffic.up)

    least, vector = sent(fs.FedAvg(RATE, weighting="uniform")), 4 * (FEATURES + 1) * CLASSES
    assert sent(fs.SCAFFOLD(RATE)) == sent(fs.SCAFFOLD(RATE, equal_steps=5)) == least
    for more in ({"option": "I"}, {"weighting": "examples"}):
        assert sent(fs.SCAFFOLD(RATE, **more)) == least + vector
    assert sent(fs.SCAFFOLD(RATE), epochs=1) == least + vector
    with pytest.raises(fs.InvalidInput, match="local steps differ between clients"):
        sent(fs.SCAFFOLD(RATE, equal_steps=5), epochs=1)
    with pytest.raises(fs.InvalidInput, match="needs option='II' and weighting='uniform'"):
        fs.SCAFFOLD(RATE, option="I", equal_steps=5)


@EVERY
@pytest.mark.parametrize("option", crossed(["I", "II"], ["II"]))
def test_scaffold_around_feddudam(sampling, option):
    """FedDuAdam's server step on SCAFFOLD's displacements."""
    algorithm = fs.build("SCAFFOLD+FedDuAdam", {"client_lr": 0.3, "eps_g": 0.05, "option": option})
    check_scaffold(algorithm, lambda: FedDuA("adam", 0.9, 0.99, 1e-9, 0.05), LocalSGD(0.3), option, sampling)


@pytest.mark.parametrize(
    ("most", "geometry", "b1"),
    [(1e9, "identity", None), (0.9, "identity", None), (1.5, "adam", 0.9)],
)
def test_scaffold_extrapolates_by_the_clients_own_gradients(most, geometry, b1):
    """m of mean |K eta_l h_i|^2, cut off at most |v|^2, of uneven clients in part, with client momentum."""
    step = DoublyAdaptive(beta1=b1, preconditioner=geometry, uncorrected=most)
    algorithm = fs.ControlVariates(fs.FedOpt(fs.client.SGD(0.3, momentum=0.6), step))
    local, rule = LocalSGD(0.3, momentum=0.6), lambda: FedDuA(geometry, b1, 0.99, 1e-9, 0.0, most)
    run = check_scaffold(algorithm, rule, local, "II", SOME, uncorrected=True)
    if geometry == "identity":
        assert (run.logs["server_lr"] == most).any() == (most < 1)


def test_uncorrected_alone_and_where_clients_tell_no_rates():
    """Without SCAFFOLD the step is FedExP's; within it, option I, Optax's clients are refused."""
    step = DoublyAdaptive(uncorrected=1e9)
    alone = fs.FedOpt(fs.client.SGD(RATE), step)
    check_fedopt(alone, lambda: FedExPRule(0.0), LocalSGD(RATE), "uniform", SOME)
    adam = fs.FedOpt(fs.client.Optax(optax.adam, learning_rate=RATE), step)
    with pytest.raises(fs.InvalidInput, match="whose steps add up gradients"):
        play(fs.ControlVariates(adam, option="I"), make_task(make_clients()), SOME, 1)
    with pytest.raises(fs.InvalidInput, match="uncorrected = 0 must be"):
        DoublyAdaptive(uncorrected=0)


def test_scaffold_with_client_momentum():
    """Option II divides by what a unit gradient would have moved: eta_l sum_k (1 + .6 + ... + .6^(k-1))."""
    check_scaffold(
        fs.SCAFFOLD(0.2, client_momentum=0.6),
        lambda: Average(1.0),
        LocalSGD(0.2, momentum=0.6),
        "II",
        SOME,
    )


@pytest.mark.parametrize("sampling", [FULL])
def test_scaffold_clips_and_decays_the_raw_gradient(sampling):
    """clip(g + .05 y, .4) - c_i + c: the correction is added after clipping and may make the step longer."""
    check_scaffold(
        fs.SCAFFOLD(0.3, weight_decay=0.05, clip_norm=0.4),
        lambda: Average(1.0),
        LocalSGD(0.3, decay=0.05, clip=0.4),
        "II",
        sampling,
    )


def test_scaffold_with_a_client_schedule():
    """eta_l = .4 x .8^t: K eta_l of option II is that of the round."""
    rate = fs.schedules.Exponential(0.4, 0.8)
    check_scaffold(fs.SCAFFOLD(rate), lambda: Average(1.0), LocalSGD(lambda t: 0.4 * 0.8**t), "II", SOME)
