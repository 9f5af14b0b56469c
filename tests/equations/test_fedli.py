"""FedLiLS and FedLiLU against Algorithms 1 to 4 of their paper, as section 9 of the facts reads them; float64."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest

import fedsolve as fs
from equations.cases import CLOSE, EVERY, FULL, ROUNDS, SOME, compare, federation
from equations.server_rules import Average, FedDuA, FedOptRule
from equations.transcript import Federation
from equations.tuning_transcript import (
    ArmijoSGD,
    LinearUpdate,
    displaced,
    largest_step,
    local_sgd,
    polyak,
    rounds,
    searching,
    with_search_log,
)
from harness import SIZES, crossed, make_clients, make_task
from verbs_harness import play

WEIGHTINGS = ("uniform", "examples")


def check(algorithm, client, server, weighting, sampling, **work):
    """Iterates and every column that the server logs; returns the run and the transcript's log."""
    clients = make_clients()
    run = play(algorithm, make_task(clients, **work), sampling, ROUNDS)
    fed = federation(run, clients, **work)
    weights = fed.size if weighting == "examples" else lambda i: 1
    iterates, log = rounds(run.cohorts, run.iterates[0], client(fed), server, weights)
    compare(run, iterates, log["server_lr"])
    for name, column in log.items():
        np.testing.assert_allclose(run.logs[name], column, rtol=CLOSE, atol=0, err_msg=name)
    return run, log


def average():
    return displaced(Average(1.0))


# softmax regression takes steps up to about 4 here: from 8 most searches go back, but not all
LS = [
    ("uniform", "one", 0),
    ("uniform", "one", 1),
    ("uniform", "one", 2),
    ("examples", "max", 1),
]


@EVERY
@pytest.mark.parametrize(
    ("weighting", "server", "reset"), crossed(product(WEIGHTINGS, ("one", "max"), (0, 1, 2)), LS)
)
def test_fedli_ls(reset, server, weighting, sampling):
    """Each step by backtracking on its own minibatch; w += D, or w += (largest last step) D."""
    highest = 8.0 if server == "one" else 2.0  # the server multiplies by the largest step: 8 would diverge
    algorithm = fs.FedLiLS(
        eta_max=highest, c=0.5, beta=0.8, delta=3.0, reset=reset, server=server, weighting=weighting
    )
    step = with_search_log(average() if server == "one" else largest_step)
    search = ArmijoSGD(highest, 0.5, 0.8, 3.0, reset)
    run, log = check(algorithm, lambda fed: searching(fed, search), step, weighting, sampling)
    steps = [2 * math.ceil(n / 4) for n in SIZES]
    least = [np.mean([steps[i] for i in cohort]) for cohort in run.cohorts if cohort]
    more = [n for n, cohort in zip(log["loss_evaluations"], run.cohorts, strict=True) if cohort]
    assert sum(more) > 1.1 * sum(least), "few searches went back: the test would prove little"


def test_resets_differ():
    """The three rules do not make the same steps here, nor does growth without its cap or its exponent."""
    ends = [
        play(
            fs.FedLiLS(eta_max=8.0, c=0.2, beta=0.8, delta=3.0, reset=r), make_task(make_clients()), FULL
        ).iterates[-1]
        for r in (0, 1, 2)
    ]
    for a, b in ((0, 1), (0, 2), (1, 2)):
        assert np.abs(ends[a] - ends[b]).max() > 1e-3


@EVERY
def test_fedli_ls_defaults(sampling):
    """eta_max 1, c .1, beta .9, reset 1, server 1, uniform."""
    check(
        fs.FedLiLS(),
        lambda fed: searching(fed, ArmijoSGD()),
        with_search_log(average()),
        "uniform",
        sampling,
    )


@pytest.mark.parametrize("steps", crossed([1, 5], [5]))
def test_fedli_ls_with_a_number_of_steps(steps):
    """One step a round starts at eta_max whatever the reset; five cut passes in the middle."""
    check(
        fs.FedLiLS(eta_max=8.0, reset=0),
        lambda fed: searching(fed, ArmijoSGD(8.0, reset=0)),
        with_search_log(average()),
        "uniform",
        SOME,
        local_steps=steps,
    )


RULES = {
    "FedDuAdam": (
        fs.server.DoublyAdaptive(beta1=0.9, eps_g=0.05, preconditioner="adam"),
        lambda: FedDuA("adam", 0.9, 0.99, 1e-9, 0.05),
        "uniform",
    ),
    "FedExP": (fs.server.DoublyAdaptive(), lambda: FedDuA("identity", None, 0.99, 1e-9, 0.0), "uniform"),
    "FedAdam": (
        fs.server.Adaptive(0.1),
        lambda: FedOptRule("adam", 0.1, 1e-3, 0.9, 0.99, 1e-6, False),
        "examples",
    ),
    "momentum": (fs.server.ServerSGD(0.5, momentum=0.8), lambda: Average(0.5, 0.8), "examples"),
}


@EVERY
@pytest.mark.parametrize("name", crossed(RULES, ["FedAdam"]))
def test_line_search_under_other_rules(name, sampling):
    """The same displacements, other server steps."""
    rule, theirs, weighting = RULES[name]
    check(
        fs.FedOpt(fs.client.Armijo(8.0), rule),
        lambda fed: searching(fed, ArmijoSGD(8.0)),
        with_search_log(displaced(theirs())),
        weighting,
        sampling,
    )


@EVERY
def test_line_search_in_fedprox(sampling):
    """Trials, decrease and gradient are those of f_i + (mu/2) |y - w|^2."""
    check(
        fs.Proximal(fs.FedLiLS(eta_max=8.0, reset=2), 0.7),
        lambda fed: searching(fed, ArmijoSGD(8.0, reset=2), 0.7),
        with_search_log(average()),
        "uniform",
        sampling,
    )


@EVERY
def test_line_search_in_scaffold(sampling):
    """Option I: searches on f_i + <c - c_i, y - w>, c_i+ = grad f_i(w), c += (1/5) sum of the changes."""
    clients = make_clients()
    run = play(fs.ControlVariates(fs.FedLiLS(eta_max=8.0), option="I"), make_task(clients), sampling, ROUNDS)
    fed, w = federation(run, clients), run.iterates[0]
    c, ci, want = np.zeros_like(w), np.zeros((5, len(w))), [run.iterates[0]]
    for t, cohort in enumerate(run.cohorts):
        ends, changes = [], []
        for i in cohort:
            more = c - ci[i]

            def value(y, rows, i=i, more=more, w=w):
                return fed.loss(i, y, rows) + more @ (y - w)

            def gradient(y, rows, i=i, more=more):
                return fed.gradient(i, y, rows) + more

            ends.append(ArmijoSGD(8.0)(value, gradient, w, fed.minibatches(t, i), 4, fed.size(i)).y)
            changes.append(fed.gradient(i, w) - ci[i])
            ci[i] = ci[i] + changes[-1]
        if cohort:
            w, c = np.mean(ends, axis=0), c + np.sum(changes, axis=0) / 5
        want.append(w)
    compare(run, np.stack(want), np.ones(ROUNDS))


# eta = 30 makes gamma interior in most rounds, without clipping at either end
LU = [
    ("uniform", "same", "start"),
    ("uniform", "plain", "last"),
    ("examples", "plain", "mean"),
    ("examples", "examples", "end"),
]


@EVERY
@pytest.mark.parametrize(
    ("weighting", "loss_weights", "f"),
    crossed(product(WEIGHTINGS, ("same", "plain", "examples"), ("start", "end", "last", "mean")), LU),
)
def test_fedli_lu(f, loss_weights, weighting, sampling):
    """gamma from f, D and r = lam w; w -= eta (r + gamma D)."""
    algorithm = fs.FedLiLU(0.3, server_lr=30.0, lam=1e-3, f=f, loss_weights=loss_weights, weighting=weighting)
    server = LinearUpdate(30.0, 1e-3, 0.0, 1e-5, f, loss_weights)
    _, log = check(algorithm, lambda fed: local_sgd(fed, 0.3), server, weighting, sampling)
    assert ((log["gamma"] > 0) & (log["gamma"] < 1)).sum() >= 3, "gamma was never interior"


@EVERY
@pytest.mark.parametrize("preset", ["paper", "code"])
def test_fedli_lu_presets(preset, sampling):
    """paper: eta 1, lam 1e-3, no momentum, uniform; code: .01, 1e-5, .9, by examples; gamma stays at 1 here."""
    constants = {"paper": (1.0, 1e-3, 0.0, 1e-5), "code": (0.01, 1e-5, 0.9, 1e-5)}[preset]
    weighting = {"paper": "uniform", "code": "examples"}[preset]
    algorithm = fs.FedLiLU(0.3, preset=preset)
    _, log = check(algorithm, lambda fed: local_sgd(fed, 0.3), LinearUpdate(*constants), weighting, sampling)
    assert (log["gamma"] == 1).all()


@EVERY
def test_fedli_lu_momentum(sampling):
    """z = mu z - eta gamma (D + r) with gamma interior and r of the model before the step; w += mu z."""
    algorithm = fs.FedLiLU(0.3, server_lr=fs.schedules.Exponential(8.0, 0.9), lam=0.02, momentum=0.6, eps=0.1)
    server = LinearUpdate(lambda t: 8.0 * 0.9**t, 0.02, 0.6, 0.1)
    _, log = check(algorithm, lambda fed: local_sgd(fed, 0.3), server, "uniform", sampling)
    assert (log["gamma"] < 1).any()


def test_fedli_lu_in_fedprox():
    """f is that of the proximal objective, whose gradient made D."""
    algorithm = fs.Proximal(fs.FedLiLU(0.3, server_lr=30.0), 0.7)
    server = LinearUpdate(30.0, 1e-3, 0.0, 1e-5)
    check(algorithm, lambda fed: local_sgd(fed, 0.3, 0.7), server, "uniform", SOME)


@pytest.mark.full
def test_fedli_lu_with_line_search():
    """Deep Frank-Wolfe on searched displacements, f where they started."""
    algorithm = fs.FedOpt(fs.client.Armijo(8.0), fs.server.DeepFrankWolfe(5.0, lam=0.0, f="start"))
    server = with_search_log(LinearUpdate(5.0, 0.0, 0.0, 1e-5, "start"))
    check(algorithm, lambda fed: searching(fed, ArmijoSGD(8.0)), server, "uniform", SOME)


@EVERY
@pytest.mark.parametrize("weighting", crossed(WEIGHTINGS, ["examples"]))
def test_polyak(weighting, sampling):
    """eta = mean of K_i eta_l (f_i(w) - f*) / |D|^2; clients differ in K_i."""
    algorithm = fs.FedOpt(fs.client.SGD(0.05), fs.server.Polyak(0.4), weighting=weighting)
    check(algorithm, lambda fed: local_sgd(fed, 0.05), polyak(0.4), weighting, sampling)


@EVERY
def test_polyak_with_line_search(sampling):
    """The rates that count are the accepted steps."""
    algorithm = fs.FedOpt(fs.client.Armijo(0.8), fs.server.Polyak(0.4))
    client = lambda fed: searching(fed, ArmijoSGD(0.8))  # noqa: E731
    check(algorithm, client, with_search_log(polyak(0.4)), "examples", sampling)


def test_loss_of_the_transcript():
    """The transcript's loss has the transcript's gradient: central differences."""
    fed, w = Federation(make_clients(), [], None, 4), np.linspace(-1, 1, 15)
    for i in (0, 2):
        for j in (0, 7, 14):
            e = 1e-6 * np.eye(15)[j]
            slope = (fed.loss(i, w + e) - fed.loss(i, w - e)) / 2e-6
            assert slope == pytest.approx(fed.gradient(i, w)[j], abs=1e-8)
