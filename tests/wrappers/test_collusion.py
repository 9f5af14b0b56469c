"""Attackers who know all honest messages: their vectors against NumPy, rounds with them, who is left alone."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from scipy.stats import norm

import fedsolve as fs
from equations.cases import SOME, displacement_error, federation
from equations.server_rules import Average
from equations.transcript import LocalSGD
from fedsolve.core.types import module, reduced
from fedsolve.methods.attacks import Marked
from harness import engine, make_clients, make_task
from verbs_harness import play
from wrappers.reduction_transcript import median, robust

ATTACKERS = (1, 3)


@module
class Up:
    delta: Any
    loss: Any
    step: Any = reduced("max")


vector = jax.jit(lambda attack, *given: attack.vector(*given))


def little(honest: np.ndarray, attackers: int) -> np.ndarray:
    """Baruch et al. 2019, Algorithm 3."""
    n = len(honest) + attackers
    supporters = max(n // 2 + 1 - attackers, 1)
    z = max(norm.ppf((n - attackers - supporters) / (n - attackers)), 0)
    return honest.mean(axis=0) - z * honest.std(axis=0)


def min_max(honest: np.ndarray, direction: str) -> np.ndarray:
    """Shejwalkar and Houmansadr 2021, Algorithm 1: gamma by halving."""
    mean = honest.mean(axis=0)
    p = {"std": -honest.std(axis=0), "mean": -mean / np.linalg.norm(mean), "sign": -np.sign(mean)}[direction]
    widest = max(np.linalg.norm(x - y) for x in honest for y in honest)
    low, high = 0.0, 1e3
    for _ in range(80):
        middle = (low + high) / 2
        inside = max(np.linalg.norm(mean + middle * p - x) for x in honest) <= widest
        low, high = (middle, high) if inside else (low, middle)
    return mean + low * p


@pytest.fixture
def cohort():
    """Nine clients of dimension four: 6 honest, the others' rows 1e6."""
    with jax.enable_x64(True):
        vectors = np.random.default_rng(0).standard_normal((9, 4)) + 1
        honest = np.array([1, 1, 0, 1, 0, 1, 1, 0, 1], bool)
        yield np.where(honest[:, None], vectors, 1e6), honest


@pytest.mark.parametrize("attackers", [1, 2, 3, 8])
def test_a_little_is_enough(cohort, attackers):
    """From a few attackers, where z is 0, to more than half."""
    x, honest = cohort
    found = vector(fs.attacks.ALittleIsEnough(), x, honest, attackers)
    np.testing.assert_allclose(found, little(x[honest], attackers), rtol=1e-12)
    given = vector(fs.attacks.ALittleIsEnough(1.5), x, honest, attackers)
    np.testing.assert_allclose(given, x[honest].mean(0) - 1.5 * x[honest].std(0), rtol=1e-12)


def test_z_grows_with_the_attackers():
    """24 of 50 workers, as in the paper: 2 of 26 honest ones are needed."""
    with jax.enable_x64(True):
        z = fs.attacks.ALittleIsEnough._z(np.int64(26), np.int64(24))
    np.testing.assert_allclose(z, norm.ppf(24 / 26), rtol=1e-12)


def test_inner_product_manipulation(cohort):
    x, honest = cohort
    found = vector(fs.attacks.InnerProductManipulation(0.5), x, honest, 3)
    np.testing.assert_allclose(found, -0.5 * x[honest].mean(axis=0), rtol=1e-12)


@pytest.mark.parametrize("direction", ["std", "mean", "sign"])
def test_min_max(cohort, direction):
    x, honest = cohort
    found = vector(fs.attacks.MinMax(direction), x, honest, 3)
    np.testing.assert_allclose(found, min_max(x[honest], direction), rtol=1e-9)


@pytest.mark.parametrize(
    "attack", [fs.attacks.MinMax(), fs.attacks.MinMax("mean"), fs.attacks.ALittleIsEnough()]
)
def test_honest_clients_that_agree_leave_no_room(attack):
    """One honest client, and several that are alike: attackers can but send the same."""
    x = np.full((3, 4), 2.0, np.float32)
    for honest in ([1, 0, 0], [1, 1, 0]):
        np.testing.assert_allclose(vector(attack, x, np.array(honest, bool), 1), x[0], rtol=1e-6)


def rounds(algorithm, by=play, **options):
    return by(algorithm, make_task(make_clients()), SOME, 6, **options)


def collude(cohort, vectors):
    """Clients 1 and 3 of a cohort with an honest one send -2 times the honest mean."""
    attacks = np.isin(cohort, ATTACKERS)
    if attacks.all():
        return vectors
    return np.where(attacks[:, None], -2 * vectors[~attacks].mean(axis=0), vectors)


@pytest.mark.gate("None-play")
@pytest.mark.parametrize("by", [play, pytest.param(engine, marks=pytest.mark.full)])
@pytest.mark.parametrize("reduction", [fs.robust.Median(), None])
def test_rounds_equal_the_transcript(by, reduction):
    """Cohorts of none to five of five clients, under a median and under the method's own weighted mean."""
    inner = fs.FedAvg(0.3) if reduction is None else fs.robust.Robust(fs.FedAvg(0.3), reduction)
    found = rounds(fs.attacks.Colluding(inner, fs.attacks.InnerProductManipulation(2.0), ATTACKERS), by)
    fed = federation(found, make_clients())
    assert any(set(c) & set(ATTACKERS) and set(c) - set(ATTACKERS) for c in fed.cohorts)
    reduce = median if reduction is not None else lambda vectors, p: p @ vectors
    start, fewest = found.iterates[0], 1 if reduction is None else 3
    expected = robust(
        fed, start, LocalSGD(0.3), Average(1.0), "examples", reduce, fewest=fewest, attack=collude
    )
    moved = (expected != start).any(axis=1)
    assert moved[-1]
    assert (found.iterates[~moved] == start).all()
    assert displacement_error(found.iterates[moved], expected[moved], start) < 1e-10


@pytest.mark.full
def test_without_attackers_it_is_the_method():
    """Means by weight and a maximum, each as its field says: FedLiLS with the cohort's largest step."""
    inner = fs.FedLiLS(eta_max=2.0, server="max")
    found = rounds(fs.attacks.Colluding(inner, fs.attacks.MinMax(), ()))
    np.testing.assert_allclose(found.iterates, rounds(inner).iterates, rtol=1e-11)


def test_only_the_vector_of_an_attacker_changes():
    """Its loss and its step stay; clients that are not used neither count as honest nor attack."""
    delta, loss = np.float32([[1], [2], [3], [90]]), np.float32([1, 2, 4, np.nan])
    messages = Marked(Up(delta, loss, loss), np.float32([0, 0, 1, 1]))
    used = np.array([True, True, True, False])
    reduction = fs.attacks.Colluding(fs.FedAvg(), fs.attacks.InnerProductManipulation(2.0), ()).reduction
    found = reduction(messages, np.ones(4, np.float32), used)
    np.testing.assert_allclose(found.delta, [(1 + 2 - 3) / 3], atol=1e-6)
    np.testing.assert_allclose(found.loss, 7 / 3, rtol=1e-6)
    assert float(found.step) == 4


def test_it_goes_around_a_robust_method():
    with pytest.raises(fs.InvalidInput, match=r"Robust cannot wrap Colluding: .* one reduction"):
        fs.robust.Robust(fs.attacks.Colluding(fs.FedAvg(), fs.attacks.MinMax(), ()), fs.robust.Median())


def test_bad_attacks_are_refused():
    attack = fs.attacks.MinMax()
    for bad, says in (
        (lambda: fs.attacks.MinMax("best"), "'std', 'mean' or 'sign'"),
        (lambda: fs.attacks.InnerProductManipulation(-1.0), "epsilon"),
        (lambda: fs.attacks.ALittleIsEnough(float("nan")), "z = nan"),
        (lambda: fs.attacks.Colluding(fs.FedAvg(), attack, (0.5,)), "numbers of clients"),
        (lambda: fs.attacks.Colluding("FedAvg", attack, (0,)), "wraps an algorithm"),
    ):
        with pytest.raises(fs.InvalidInput, match=says):
            bad()
