"""Unusable sets, penalties, starts and steps: one line that says what is wrong and what would work."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedsolve as fs
from fedsolve.geometry import (
    L1,
    DiagonalQuadratic,
    Entropy,
    L1Ball,
    L2Ball,
    PNorm,
    Quadratic,
)
from fedsolve.geometry.balls import LpBall
from fedsolve.geometry.diagnostics import FrankWolfeGap, ProxGradient
from fedsolve.methods.algorithms.feddr import DouglasRachford
from harness import default_start, make_clients, make_task
from verbs_harness import play

TASK = make_task(make_clients())
BALL = L1Ball(8.0)


def refused(make, *words):
    """InvalidInput, on one line, with all the words."""
    with pytest.raises(fs.InvalidInput) as caught:
        make()
    text = str(caught.value)
    assert "\n" not in text
    for word in words:
        assert word in text, f"{word!r} is not in: {text}"


def run(algorithm, task=TASK, **options):
    return fs.run(algorithm, task, rounds=1, **options)


# what is missing, and what would work; `lambda` where the construction itself must fail
FACES = {
    "FedFW with a penalty": (lambda: fs.FedFW(L1(0.1)), ["FedFW", "lmo", "L1 ", "L1Ball"]),
    "FedFWPlus with a penalty": (lambda: fs.FedFWPlus(L1(0.1)), ["FedFWPlus", "lmo", "L1Ball"]),
    "FedFWSto with a penalty": (lambda: fs.FedFWSto(L1(0.1)), ["FedFWSto", "lmo", "L1Ball"]),
    "FedFW with a penalty on a leaf": (
        lambda: fs.FedFW(L1Ball(1.0).on("bias") + L1(0.1).on("weight")),
        ["lmo", "L1 ", "L1Ball"],
    ),
    "FedMiD with a set without projection": (lambda: fs.FedMiD(LpBall(2.0, 1.5)), ["prox", "LpBall", "L1("]),
    "FedDualAvg with it": (lambda: fs.FedDualAvg(LpBall(2.0, 1.5)), ["FedDualAvg", "prox", "LpBall", "L1("]),
    "FedDR with it": (lambda: fs.FedDR(LpBall(2.0, 1.5)), ["FedDR", "prox", "LpBall", "L1Ball"]),
    "subgradients of a set": (
        lambda: fs.Subgradient(fs.FedAvg(), BALL),
        ["subgradient", "L1Ball", "L1(0.1)"],
    ),
    "projected start without projection": (
        lambda: fs.FedFW(LpBall(2.0, 1.5), start="projected"),
        ["project", "LpBall", "start='given'"],
    ),
    "split with a penalty": (
        lambda: fs.frank_wolfe.SplitSets((BALL, L1(0.1)), (0, 1)),
        ["lmo", "L1 ", "L2Ball"],
    ),
    "gap of a penalty": (lambda: FrankWolfeGap(L1(0.1)), ["FrankWolfeGap", "lmo", "L1Ball"]),
    "prox gradient without prox": (lambda: ProxGradient(LpBall(2.0, 1.5)), ["ProxGradient", "prox", "L1("]),
    "no penalty at all": (lambda: fs.FedMiD(0.1), ["0.1", "not a penalty or a set", "L1Ball"]),
    "a number as a set": (lambda: fs.FedFW(10.0), ["10.0", "not a penalty or a set", "L1Ball"]),
}


@pytest.mark.parametrize("case", FACES)
def test_what_a_method_needs(case):
    make, words = FACES[case]
    refused(make, *words)


@pytest.mark.parametrize("radius", [0.0, -1.0, np.nan, np.inf])
@pytest.mark.parametrize("ball", [L1Ball, L2Ball])
def test_radius(ball, radius):
    refused(lambda: ball(radius), "radius", ball.__name__, "> 0")


@pytest.mark.parametrize("weight", [-0.1, np.nan, np.inf])
def test_weight(weight):
    refused(lambda: L1(weight), "weight", "L1", ">= 0")


METHODS_ON_A_SET = {"FedFW": fs.FedFW, "FedFWPlus": fs.FedFWPlus, "FedFWSto": fs.FedFWSto}


@pytest.mark.gate("FedFWPlus")
@pytest.mark.parametrize("name", METHODS_ON_A_SET)
def test_a_start_outside_the_set(name):
    """|w|_1 of the start is about 3.9 here, and the ball has radius 1; 'projected' then begins inside it."""
    outside = np.abs(default_start()).sum() - 1
    method = METHODS_ON_A_SET[name]
    refused(lambda: run(method(L1Ball(1.0))), name, "outside", f"{outside:.3g}", "start='projected'")
    inside = play(method(L1Ball(1.0), start="projected"), TASK, fs.sampling.Uniform(5), 1).iterates
    assert np.abs(inside).sum(axis=1).max() <= 1 + 1e-12


def test_a_projected_start_is_the_projection():
    """Radius .5 in the l2 norm: the start scaled."""
    start = default_start()
    found = play(fs.FedFW(L2Ball(0.5), start="projected"), TASK, fs.sampling.Uniform(5), 1).iterates[0]
    np.testing.assert_allclose(found, 0.5 * start / np.linalg.norm(start), rtol=1e-12)


def test_a_start_outside_a_set_without_projection():
    """No projection to offer: a point of the set is."""
    refused(lambda: run(fs.FedFW(LpBall(0.1, 1.5))), "outside", "lmo(params)")


def test_a_pattern_that_matches_nothing():
    """It names the pattern and what there is."""
    for make in (fs.FedMiD, fs.FedDualAvg, fs.FedDR, lambda psi: fs.Subgradient(fs.FedAvg(), psi)):
        refused(lambda make=make: run(make(L1(0.1).on("wieght"))), "'wieght'", "weight, bias")
    refused(lambda: run(fs.FedFW(BALL.on("wieght"))), "'wieght'", "weight, bias")


def test_a_leaf_under_two():
    """It names the leaf, both, and what is usually meant."""
    twice = L1(0.1) + L2Ball(1.0).on("weight")
    refused(lambda: run(fs.FedMiD(twice)), "weight", "L1", "L2Ball", "ElasticNet")


def test_a_free_leaf():
    """FedFW needs a set on every leaf; FedMiD leaves it free."""
    ball = BALL.on("weight")
    refused(lambda: run(fs.FedFW(ball)), "FedFW", "bias", "FedMiD")
    split = fs.frank_wolfe.SplitSets((BALL, ball), (0, 1, 0, 1, 0))
    refused(lambda: run(fs.FedFW(BALL, split=split)), "FedFW", "bias", "free")
    assert np.isfinite(play(fs.FedMiD(ball), TASK, fs.sampling.Uniform(5), 1).iterates).all()


STEPS = {
    "step 0": (lambda: fs.frank_wolfe.OwnSteps(0.0, 0.1), ["step", "> 0"]),
    "step above 1": (lambda: fs.frank_wolfe.OwnSteps(1.5, 0.1), ["step", "<= 1"]),
    "a schedule above 1": (
        lambda: fs.frank_wolfe.OwnSteps(fs.schedules.InverseSqrt(1.5), 0.1),
        ["step", "1.5", "round 1"],
    ),
    "a schedule above 1 later": (
        lambda: fs.frank_wolfe.OwnSteps(lambda r: 0.3 * (r + 1), 0.1),
        ["step", "round 4", "1.2"],
    ),
    "averaging above 1": (lambda: fs.frank_wolfe.OwnSteps(0.5, 0.1, 1.1), ["averaging", "<= 1"]),
    "averaging by a schedule": (
        lambda: fs.frank_wolfe.OwnSteps(0.5, 0.1, lambda r: 2.0),
        ["averaging", "round 1"],
    ),
    "weight": (lambda: fs.frank_wolfe.OwnSteps(0.5, -0.1), ["weight", "> 0"]),
    "lam0": (lambda: fs.frank_wolfe.Convex(0.0), ["lam0", "> 0"]),
    "participation": (lambda: fs.frank_wolfe.Convex(0.1, 1.2), ["participation", "<= 1"]),
    "participation 0": (lambda: fs.frank_wolfe.NonConvex(10, 0.1, 0.0), ["participation", "> 0"]),
    "rounds": (lambda: fs.frank_wolfe.NonConvex(0), ["rounds", ">= 1"]),
    "a number as steps": (lambda: fs.FedFW(BALL, steps=0.1), ["steps = 0.1", "Convex"]),
    "start": (lambda: fs.FedFW(BALL, start="zero"), ["'zero'", "'given'", "'projected'"]),
    "variant": (
        lambda: fs.frank_wolfe.FrankWolfe(BALL, variant="minus"),
        ["'minus'", "plain", "plus", "stochastic"],
    ),
    "client rate": (lambda: fs.FedMiD(L1(0.1), 0.0), ["client_lr", "> 0"]),
    "server rate": (lambda: fs.FedDualAvg(L1(0.1), 0.1, server_lr=-1.0), ["server_lr", "> 0"]),
    "weighting": (lambda: fs.FedMiD(L1(0.1), weighting="even"), ["'even'", "'uniform'", "'examples'"]),
    "alpha 2": (lambda: fs.FedDR(L1(0.1), alpha=2.0), ["alpha", "< 2"]),
    "alpha 0": (lambda: fs.FedDR(L1(0.1), alpha=0.0), ["alpha", "> 0"]),
    "eta": (lambda: fs.FedDR(L1(0.1), eta=0.0), ["eta", "> 0"]),
    "solver": (lambda: fs.FedDR(L1(0.1), solver="exakt"), ["'exakt'", "did you mean 'exact'"]),
    "a number as solver": (lambda: DouglasRachford(L1(0.1), 0.1), ["local = 0.1", "client.SGD"]),
    "iterations": (lambda: fs.client.ConjugateGradient(0), ["iterations = 0", "at least 1"]),
}


@pytest.mark.parametrize("case", STEPS)
def test_numbers_out_of_range(case):
    make, words = STEPS[case]
    refused(make, *words)


def test_entropy_needs_a_positive_start():
    """The start has negative entries; the leaf is named, and what to do."""
    for method in (fs.FedMiD, fs.FedDualAvg):
        algorithm = method(L1(0.1), mirror=Entropy())
        refused(lambda a=algorithm: run(a), "positive", "weight", "PNorm")


MIRRORS = {
    "p-norm and a ball": (PNorm(1.5), BALL, ["PNorm", "L1Ball", "Euclidean()"]),
    "entropy and a ball": (Entropy(), L2Ball(1.0), ["Entropy", "L2Ball", "Euclidean()"]),
    "diagonal and a ball": (DiagonalQuadratic(2.0), BALL, ["DiagonalQuadratic", "L1Ball", "Euclidean()"]),
    "quadratic and a penalty": (Quadratic(np.eye(15)), L1(0.1), ["Quadratic", "L1", "Euclidean()"]),
    "p-norm and one of two": (PNorm(1.5), L1(0.1).on("weight") + BALL.on("bias"), ["PNorm", "L1Ball"]),
}


@pytest.mark.parametrize("case", MIRRORS)
@pytest.mark.parametrize("method", [fs.FedMiD, fs.FedDualAvg])
def test_a_mirror_map_without_closed_form(method, case):
    """It names the pair, what there is a closed form for, and the map that always works."""
    mirror, psi, words = MIRRORS[case]
    refused(lambda: method(psi, mirror=mirror), "no closed form", *words)


def test_averaging_needs_equal_steps():
    """Clients of 2 to 6 steps have no common k: local_steps is offered, and works."""
    algorithm = fs.FedDualAvg(L1(0.05), averaged=True)
    refused(lambda: run(algorithm), "averaged", "local_steps")
    equal = make_task(make_clients(), local_steps=3)
    assert np.isfinite(play(algorithm, equal, fs.sampling.Uniform(5), 1).iterates).all()


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ((0, 1, 2, 0, 1), ["0 to 2", "2 sets", "0 to 1"]),
        ((0, -1, 1, 0, 1), ["-1 to 1", "2 sets"]),
        ((), ["one integer for each client"]),
        ((0.5, 1.0, 0.0), ["one integer for each client"]),
        (((0, 1), (1, 0)), ["one integer for each client"]),
    ],
    ids=["too large", "negative", "none", "fractions", "a matrix"],
)
def test_numbers_of_split_sets(numbers, words):
    refused(lambda: fs.frank_wolfe.SplitSets((BALL, L2Ball(3.0)), numbers), *words)


@pytest.mark.parametrize("count", [4, 6])
def test_split_sets_for_another_number_of_clients(count):
    """Five clients, four or six numbers: client 4 would silently have client 3's set."""
    split = fs.frank_wolfe.SplitSets((BALL, L2Ball(3.0)), (0, 1) * (count // 2))
    refused(lambda: run(fs.FedFW(L2Ball(3.0), split=split)), "of_client", "5")


NEEDS = {
    "FedFW": "constraint",
    "FedFWPlus": "constraint",
    "FedFWSto": "constraint",
    "FedMiD": "psi",
    "FedMiDOSP": "psi",
    "FedDualAvg": "psi",
    "FedDualAvgOSP": "psi",
    "FedDR": "psi",
    "Subgradient": "psi",
}


@pytest.mark.parametrize("name", NEEDS)
def test_the_catalogue_says_what_is_missing(name):
    """It names the argument and shows one, in Python and in a configuration."""
    example = "L1Ball(10.0)" if NEEDS[name] == "constraint" else "L1(0.1)"
    refused(lambda: fs.build(name), name, f"needs {NEEDS[name]}", example, 'name="L1')


def test_settings_that_a_method_has_not():
    """The Frank-Wolfe methods have no client rate; a slip is met with the nearest name."""
    refused(lambda: fs.build("FedFW", {"constraint": BALL, "client_lr": 0.1}), "client_lr", "FedFW", "Known")
    refused(lambda: fs.build("FedFW", {"constrain": BALL}), "did you mean 'constraint'")
    refused(lambda: fs.build("FedMid", {"psi": L1(0.1)}), "did you mean 'FedMiD'")


def test_a_gradient_that_is_traced_is_not_checked():
    """Radii and starts inside a program pass: a sweep over radii traces them."""

    def gap(radius):
        ball = L1Ball(radius).each()
        return ball.gap({"w": jnp.ones(2)}, {"w": jnp.array([1.0, -3.0])})

    np.testing.assert_allclose(jax.jit(jax.vmap(gap))(jnp.array([1.0, 2.0])), [-2 + 3, -2 + 6])
