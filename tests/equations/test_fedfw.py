"""FedFW, FedFWPlus and FedFWSto against Algorithm 1 of Dadras et al. 2024, with every step schedule, float64."""

from __future__ import annotations

from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pytest

import fedsolve as fs
from equations.cases import CLOSE, EVERY, FULL, ROUNDS, SOME, displacement_error, federation
from equations.composite_transcript import ALL, BIAS, WEIGHT, Psi, fedfw
from fedsolve.deploy.communication import payload
from fedsolve.geometry import L1Ball, L2Ball
from harness import crossed, default_start, make_clients, make_task
from verbs_harness import play

LAM0 = 0.3


class Set(NamedTuple):
    """The set ours and in NumPy, one for each client."""

    ours: Any
    parts: list[Psi]
    split: Any = None


_L1, _L2 = Psi([(ALL, "l1ball", 8.0)]), Psi([(ALL, "l2ball", 3.0)])
SETS = {
    "l1": Set(L1Ball(8.0), [_L1] * 5),
    "l2": Set(L2Ball(3.0), [_L2] * 5),
    "blocks": Set(
        L1Ball(7.0).on("weight") + L2Ball(2.0).on("bias"),
        [Psi([(WEIGHT, "l1ball", 7.0), (BIAS, "l2ball", 2.0)])] * 5,
    ),
    "split": Set(
        L2Ball(3.0),
        [_L2, _L1, Psi([(WEIGHT, "l2ball", 2.5), (BIAS, "l1ball", 3.0)]), _L1, _L2],
        fs.frank_wolfe.SplitSets(
            (L2Ball(3.0), L1Ball(8.0), L2Ball(2.5).on("weight") + L1Ball(3.0).on("bias")), (0, 1, 2, 1, 0)
        ),
    ),
}


class Steps(NamedTuple):
    """A schedule ours, and eta, lambda and rho as functions of t = 1, 2, ... from the theorems."""

    ours: Any
    eta: Any
    lam: Any
    rho: Any = lambda t: 4 / (t + 7) ** (2 / 3)


def horizon(T):
    return lambda t: T ** (-2 / 3), lambda t: LAM0 * T ** (1 / 3)


def clock(p):
    return lambda t: 2 / (p * (t - 1) + 2), lambda t: LAM0 * np.sqrt(p * (t - 1) + 2)


SCHEDULES = {
    "convex": Steps(fs.frank_wolfe.Convex(LAM0), lambda t: 2 / (t + 1), lambda t: LAM0 * np.sqrt(t + 1)),
    "convex, p = .6": Steps(fs.frank_wolfe.Convex(LAM0, 0.6), *clock(0.6)),
    "nonconvex": Steps(fs.frank_wolfe.NonConvex(10, LAM0), *horizon(10)),
    "nonconvex, p = .6": Steps(fs.frank_wolfe.NonConvex(10, LAM0, 0.6), *horizon(0.6 * 10 + 1)),
    "nonconvex, p = 1": Steps(fs.frank_wolfe.NonConvex(10, LAM0, 1.0), *horizon(11)),
    "stochastic": Steps(
        fs.frank_wolfe.Stochastic(LAM0), lambda t: 9 / (t + 8), lambda t: LAM0 * np.sqrt(t + 8)
    ),
    "own": Steps(
        fs.frank_wolfe.OwnSteps(
            fs.schedules.InverseSqrt(0.9), fs.schedules.Exponential(0.2, 0.9), lambda r: 1 / (r + 1), LAM0
        ),
        lambda t: 0.9 / np.sqrt(t),
        lambda t: 0.2 * 0.9 ** (t - 1),
        lambda t: 1 / t,
    ),
    "own numbers": Steps(
        fs.frank_wolfe.OwnSteps(0.25, 0.05, 0.5, LAM0), lambda t: 0.25, lambda t: 0.05, lambda t: 0.5
    ),
}
PAIRS = [("plain", name) for name in SCHEDULES] + [
    *(("plus", name) for name in ("convex", "nonconvex, p = .6", "own")),
    *(("stochastic", name) for name in ("stochastic", "own", "own numbers")),
]
METHODS = {"plain": fs.FedFW, "plus": fs.FedFWPlus, "stochastic": fs.FedFWSto}


def check(variant, schedule, kind, sampling, sends="code"):
    """xbar after every round, and every client's x_i, y_i and d_i at the end, agree to 1e-10."""
    clients, one, steps = make_clients(), SETS[kind], SCHEDULES[schedule]
    algorithm = METHODS[variant](one.ours, steps=steps.ours, split=one.split, sends=sends)
    run = play(algorithm, make_task(clients), sampling, ROUNDS)
    fed = federation(run, clients)
    walk = fedfw(fed, default_start(), one.parts, variant, steps.eta, steps.lam, steps.rho, LAM0)
    assert run.iterates.dtype == np.float64
    np.testing.assert_array_equal(run.iterates[0], default_start())
    assert np.abs(walk.mean[1] - walk.mean[0]).max() > 1e-2, "nothing moved: the test would prove nothing"
    assert displacement_error(run.iterates[1:], walk.mean[1:], walk.mean[0]) < CLOSE
    state = run.state.clients
    same(state.params, walk.x[-1])
    if variant == "plus":
        same(state.dual, walk.y[-1])
    else:
        assert state.dual == ()
    if variant == "stochastic":
        same(state.mean, walk.d[-1])
    else:
        assert state.mean == ()
    return run, walk


def same(tree, want):
    got = np.concatenate([np.reshape(x, (5, -1)) for x in tree], axis=1)
    assert np.abs(want).max() > 1e-2
    assert np.abs(got - want).max() < CLOSE * np.abs(want).max()


SET_PAIRS = [
    ("plain", "split"),
    ("plus", "blocks"),
    ("stochastic", "l2"),
]


@EVERY
@pytest.mark.parametrize(("variant", "kind"), crossed(product(METHODS, SETS), SET_PAIRS))
def test_every_set(variant, kind, sampling):
    """One ball on everything, a ball for each leaf, and a superset for each client (section 4.3)."""
    check(variant, "stochastic" if variant == "stochastic" else "convex, p = .6", kind, sampling)


@pytest.mark.parametrize(("variant", "kind"), [("plain", "split"), ("stochastic", "l2"), ("plus", "blocks")])
def test_clients_send_the_step(variant, kind):
    """The server's mean is the same where clients send s_i - x_i, whose sum is all that it uses."""
    schedule = "stochastic" if variant == "stochastic" else "convex, p = .6"
    check(variant, schedule, kind, SOME, sends="step")
    is_sum = {sends: not payload(fs.FedFW(L1Ball(8.0), sends=sends)).not_a_sum for sends in ("code", "step")}
    assert is_sum == {"code": False, "step": True}


@pytest.mark.parametrize(
    ("variant", "schedule"),
    crossed(
        PAIRS,
        [
            *(("plain", name) for name in ("convex", "nonconvex, p = .6", "own")),
            ("plus", "own"),
            ("stochastic", "stochastic"),
        ],
    ),
)
def test_every_schedule(variant, schedule):
    """eta, lambda and rho of Theorems 1 to 3, of section 4.2 and of one's own; t counts rounds from 1.

    y_i uses lambda_0, whatever lambda is. The partial non-convex form has p T + 1: p = 1 is not the full form.
    """
    check(variant, schedule, "l1", SOME)


def test_partial_participation_with_p_1_is_theorem_1():
    """2 / (1 (t - 1) + 2) = 2 / (t + 1) and lam0 sqrt(t + 1); the non-convex forms differ: T and T + 1."""
    for t in range(1, 20):
        assert float(fs.frank_wolfe.Convex(0.5).eta(t)) == pytest.approx(2 / (t + 1), rel=1e-6)
        assert float(fs.frank_wolfe.Convex(0.5).penalty(t)) == pytest.approx(0.5 * np.sqrt(t + 1), rel=1e-6)
    assert float(fs.frank_wolfe.NonConvex(8).eta(3)) == pytest.approx(1 / 4, rel=1e-6)
    assert float(fs.frank_wolfe.NonConvex(7, 1.0, 1.0).eta(3)) == pytest.approx(1 / 4, rel=1e-6)
    assert float(fs.frank_wolfe.NonConvex(8, 0.5).penalty(3)) == pytest.approx(1.0, rel=1e-6)


def test_one_step_a_round_whatever_the_local_work():
    """FedFW does one linear minimisation on the full gradient: batches, epochs and shuffles do not matter."""
    algorithm = fs.FedFW(L1Ball(8.0), steps=fs.frank_wolfe.Convex(LAM0))
    small = play(algorithm, make_task(make_clients()), SOME, ROUNDS)
    large = play(algorithm, make_task(make_clients(), batch=None, local_steps=7), SOME, ROUNDS)
    assert displacement_error(large.iterates[1:], small.iterates[1:], small.iterates[0]) < 1e-12


def test_the_first_stochastic_gradient_is_taken_as_it_is():
    """rho_1 = 4 / 8^(2/3) = 1 and eta_1 = 9/9 = 1: after round 1 d_i is the minibatch gradient / n, x_i = s_i."""
    run, walk = check("stochastic", "stochastic", "l2", FULL)
    clients, radius = make_clients(), 3.0
    fed = federation(run, clients)
    for i in range(5):
        g = fed.gradient(i, default_start(), fed.minibatches(0, i)[0]) / 5
        np.testing.assert_allclose(walk.d[1][i], g, rtol=1e-12)
        np.testing.assert_allclose(walk.x[1][i], -radius * g / np.linalg.norm(g), rtol=1e-12)
