"""Robust reductions under methods against NumPy: uneven clients, partial cohorts, attackers; chunks in the engine."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

import fedsolve as fs
from equations.cases import FULL, ROUNDS, SOME, availability, displacement_error, federation
from equations.server_rules import Average, FedDuA
from equations.transcript import LocalSGD
from fedsolve.core.sampling import Trace
from harness import crossed, engine, make_clients, make_task
from verbs_harness import play
from wrappers.reduction_transcript import (
    centred,
    clipped,
    geometric_median,
    median,
    multi_krum,
    robust,
    trimmed,
)

CASES = {
    "median": (fs.robust.Median(), median, median, 3),
    "trimmed": (fs.robust.TrimmedMean(0.2), trimmed(0.2), trimmed(0.2), 5),
    "geometric": (fs.robust.GeometricMedian(5, 1e-6), geometric_median(5, 1e-6), median, 3),
    "krum": (fs.robust.Krum(1), multi_krum(1, 1), median, 5),
    "krum of honest clients": (fs.robust.Krum(0), multi_krum(0, 1), median, 3),
    "multi-krum": (fs.robust.MultiKrum(1, 3), multi_krum(1, 3), median, 5),
    "multi-krum of most": (fs.robust.MultiKrum(0, 4), multi_krum(0, 4), median, 4),
    "clipped to the median": (fs.robust.NormClipping(), clipped(None), median, 3),
    "clipped to 0.2": (fs.robust.NormClipping(0.2), clipped(0.2), median, 1),
    "centred": (fs.robust.CentredClipping(), centred(None, 3), median, 3),
    "centred at 0.1": (fs.robust.CentredClipping(0.1), centred(0.1, 3), median, 3),
}
"""A reduction, what it makes of vectors and of scalars, and the fewest clients of a round that it is meant for."""
ALL = [0, 1, 2, 3, 4]
MANY = [ALL, [0, 1], [1, 2, 3, 4], ALL, [0, 2, 4], ALL, [], [3], ALL, [4, 1]]
VARYING = Trace(availability(MANY), 5)
RULES = {
    "FedAvg": (lambda: fs.FedAvg(0.3, server_lr=0.9), lambda: Average(0.9), "examples"),
    "FedDuAdam": (lambda: fs.FedDuAdam(0.3), lambda: FedDuA("adam", 0.9, 0.99, 1e-9, 0.0), "uniform"),
}


def run(algorithm, sampling=FULL, by=play, **options):
    return by(algorithm, make_task(make_clients()), sampling, ROUNDS, **options)


@cache
def plain():
    """FedAvg among honest clients."""
    return run(fs.FedAvg(0.3)).iterates


def check(found, expected):
    assert np.abs(expected[1:] - expected[0]).max() > 1e-3
    assert displacement_error(found.iterates[1:], expected[1:], expected[0]) < 1e-10


ONE_OF_EACH = ["median", "trimmed", "geometric", "krum", "clipped to the median", "centred"]
PAIRS = [(name, "FedAvg") for name in CASES] + [(name, "FedDuAdam") for name in ("trimmed", "krum")]


def equals_the_transcript(name, rule, **options):
    reduction, reduce, of_scalars, fewest = CASES[name]
    method, step, weighting = RULES[rule]
    found = run(fs.robust.Robust(method(), reduction), VARYING, **options)
    fed = federation(found, make_clients())
    check(found, robust(fed, found.iterates[0], LocalSGD(0.3), step(), weighting, reduce, of_scalars, fewest))
    sizes = np.array([len(cohort) for cohort in MANY])
    np.testing.assert_array_equal(found.logs["too_few"][sizes > 0], (sizes < fewest)[sizes > 0])


@pytest.mark.parametrize(
    ("name", "rule"),
    crossed(PAIRS, [*((name, "FedAvg") for name in [*ONE_OF_EACH, "multi-krum"]), ("trimmed", "FedDuAdam")]),
)
def test_equals_the_transcript(name, rule):
    """Cohorts of none to five of five clients of 3 to 12 examples; those that are too few leave the model."""
    equals_the_transcript(name, rule)


@pytest.mark.parametrize(
    ("name", "rule", "chunk"),
    crossed([("geometric", "FedAvg", 2), ("krum", "FedDuAdam", 3)], [("geometric", "FedAvg", 2)]),
)
def test_equals_the_transcript_in_the_engine(name, rule, chunk):
    """Two or three clients side by side: the last chunk is padded, the messages of all chunks are kept."""
    equals_the_transcript(name, rule, by=engine, chunk=chunk)


@pytest.mark.gate("geometric")
@pytest.mark.parametrize("name", crossed(CASES, ONE_OF_EACH))
def test_a_huge_attacker_does_not_carry_the_model_off(name):
    """Client 2, the largest, sends -1e12 times its displacement: the same NumPy sees it, and the model stays."""
    attacked = fs.attacks.Attacked(fs.FedAvg(0.3), fs.attacks.Scaled(-1e12), (2,))
    found = run(fs.robust.Robust(attacked, CASES[name][0]))
    fed = federation(found, make_clients())
    attack = lambda cohort, d: np.where(cohort[:, None] == 2, -1e12 * d, d)  # noqa: E731
    expected = robust(
        fed, found.iterates[0], LocalSGD(0.3), Average(1.0), "examples", CASES[name][1], attack=attack
    )
    honest = plain()
    furthest = np.linalg.norm(honest - honest[0], axis=1).max()
    check(found, expected)
    assert np.linalg.norm(found.iterates - honest[0], axis=1).max() < 4 * furthest


def test_without_a_reduction_it_does():
    attacked = fs.attacks.Attacked(fs.FedAvg(0.3), fs.attacks.Scaled(-1e12), (2,))
    assert np.linalg.norm(run(attacked).iterates[1] - plain()[0]) > 1e9 * np.linalg.norm(
        plain()[-1] - plain()[0]
    )


@pytest.mark.full
def test_an_attacker_that_is_not_finite_is_as_absent():
    """Infinite displacements of client 4 are dropped and counted, before the reduction sees them; in the engine."""
    attacked = fs.attacks.Attacked(fs.FedAvg(0.3), fs.attacks.Scaled(1e200), (4, -1))
    algorithm = fs.robust.Robust(
        fs.attacks.Attacked(attacked, fs.attacks.Scaled(1e200), (4,)), fs.robust.Median()
    )
    found = run(algorithm, by=engine)
    assert (found.logs["dropped"] == 1).all()
    assert not found.logs["too_few"].any()
    fed = federation(found, make_clients())
    fed.cohorts = [[i for i in cohort if i != 4] for cohort in fed.cohorts]
    check(found, robust(fed, found.iterates[0], LocalSGD(0.3), Average(1.0), "examples", median))


@pytest.mark.full
def test_a_round_that_failing_clients_leave_too_small_changes_nothing():
    """Krum(1) of five needs five: without client 4, whose message is infinite, no round has so many; a note says it."""
    attacked = fs.attacks.Attacked(fs.FedAvg(0.3), fs.attacks.Scaled(1e200), (4,))
    attacked = fs.attacks.Attacked(attacked, fs.attacks.Scaled(1e200), (4,))
    result = fs.run(
        fs.robust.Robust(attacked, fs.robust.Krum(1)), make_task(make_clients()), rounds=3, dtype="float64"
    )
    assert (result.rounds["too_few"] == 1).all()
    assert len(set(result.metrics["train_loss"])) == 1
    assert any("fewer messages could be used" in note for note in result.history.notes)


@pytest.mark.full
def test_nothing_trimmed_is_the_mean():
    """TrimmedMean(0) and FedLiLS with the cohort's largest step: means and the maximum, as without a wrapper."""
    inner = fs.FedLiLS(eta_max=2.0, server="max")
    found, plain = run(fs.robust.Robust(inner, fs.robust.TrimmedMean(0.0)), SOME), run(inner, SOME)
    np.testing.assert_allclose(found.iterates, plain.iterates, rtol=1e-11)
    np.testing.assert_allclose(found.logs["client_step"], plain.logs["client_step"], rtol=1e-12)


@pytest.mark.full
def test_a_proximal_wrapper_hands_the_reduction_on():
    """Robust inside FedProx is Robust around it."""
    inside = run(fs.Proximal(fs.robust.Robust(fs.FedAvg(0.3), fs.robust.Median()), 0.5))
    outside = run(fs.robust.Robust(fs.Proximal(fs.FedAvg(0.3), 0.5), fs.robust.Median()))
    np.testing.assert_array_equal(inside.iterates, outside.iterates)
