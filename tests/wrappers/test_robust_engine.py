"""Robust reductions under methods against NumPy: uneven clients, partial cohorts, attackers; chunks in the engine."""

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

import fedsolve as fs
from equations.cases import FULL, ROUNDS, SOME, availability, displacement_error, federation
from equations.server_rules import Average, FedDuA
from equations.transcript import LocalSGD
from fedsolve.core import trees
from fedsolve.core.sampling import Trace
from fedsolve.core.types import MessageBounds, bounded, module, reduced, replace
from fedsolve.methods.attacks import Marked
from fedsolve.methods.robust.reductions import FACTOR, Mean, parts_of, usual_norm
from harness import crossed, engine, make_clients, make_task
from harness import squares_of_leaf as squares
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


# Norms far beyond the usual: what is usual, by hand; the mean of the rest against NumPy; attackers in the engine.

FAR = 2 * FACTOR


@pytest.mark.parametrize("xp", [np, jnp])
@pytest.mark.parametrize(
    ("norms", "before", "usual"),
    [
        ([3.0], 0, 3.0),  # a first reply alone: nothing to compare it with
        ([3.0, FAR], 0, 3.0),
        ([3.0, 1.0, 2.0], 0, 2.0),
        ([1.0, 2.0, FAR, FAR], 0, 2.0),  # the smaller of the middle two
        ([0.0, 0.0, 0.0, 5.0], 0, 5.0),  # zeros do not count
        ([0.0, 0.0], 0, 0.0),
        ([0.0, 0.0], 4, 4.0),
        ([1.0, 1.0, 1.0], 4, 4.0),  # it never falls
        ([7.0, 7.0, 7.0], 4, 7.0),
        ([9.0, 9.0, 9.0], 4, 8.0),  # at most twice that of before
        ([3 * FACTOR, 5 * FACTOR, FAR], 1, 3 * FACTOR),  # most are beyond: the run has changed
        ([FAR, FAR], 1, 2.0),  # two cannot say so
        ([FAR], 1, 2.0),
        ([1.0, 1.0, np.inf], 1, 1.0),
    ],
)
def test_what_is_usual(norms, before, usual, xp):
    with jax.enable_x64(True):
        assert float(usual_norm(xp.asarray(norms), xp.asarray(float(before)), xp)) == usual


@module
class Inner:
    delta: Any
    steps: Any
    squared: Any = bounded(MessageBounds(of_delta=trees.squared_norm))


@module
class Up:
    inner: Inner
    control: Any = reduced("average")
    step: Any = reduced("max")


def test_what_is_compared():
    """Each field by itself; not what follows from the displacement, whose ratios would be squares."""
    up = Up(Inner({"a": 1, "b": 2}, (), 3), [4], 5)
    assert parts_of(up) == {"inner.delta": [1, 2], "control": [4], "step": [5]}
    assert parts_of({"w": 6}) == {"message": [6]}


def sent(n=8, seed=0):
    rng = np.random.default_rng(seed)
    delta = {"a": rng.standard_normal((n, 3)), "b": rng.standard_normal((n, 2, 2))}
    squares = sum((x**2).reshape(n, -1).sum(1) for x in delta.values())
    return Up(Inner(delta, (), squares), 1e-3 * rng.standard_normal((n, 4)), np.abs(rng.standard_normal(n)))


@pytest.mark.gate("control")
@pytest.mark.parametrize("field", ["delta", "control", "step"])
def test_the_mean_of_the_rest(field):
    """Clients 1 and 4 are far beyond in one field, client 6 is not used: NumPy's means of the other five."""
    up, weight, used = sent(), np.arange(1.0, 9.0), np.arange(8) != 6
    scaled = np.where(np.isin(np.arange(8), (1, 4)), 5 * FACTOR, 1.0)

    def times(x):
        return x * scaled.reshape(-1, *(1,) * (x.ndim - 1))

    if field == "delta":
        inner = replace(up.inner, delta=jax.tree.map(times, up.inner.delta))
        up = replace(up, inner=inner)
    else:
        up = replace(up, **{field: times(getattr(up, field))})
    rest = used & (scaled == 1)
    with jax.enable_x64(True):
        found = fs.robust.WithoutOutliers()(up, weight, used)
    share = weight[rest] / weight[rest].sum()
    for name, x in up.inner.delta.items():
        np.testing.assert_allclose(found.inner.delta[name], np.tensordot(share, x[rest], 1), rtol=1e-12)
    np.testing.assert_allclose(found.control, up.control[rest].mean(0), rtol=1e-12)
    assert float(found.step) == up.step[rest].max()


def uneven(counts):
    """Least squares of clients with so many examples."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((sum(counts), 3)).astype(np.float32)
    y = (x @ np.ones(3) + 0.1 * rng.standard_normal(len(x))).astype(np.float32)
    data = fs.FederatedData(fs.Examples(x, y), np.array(counts))
    return fs.Task("uneven", lambda key: {"w": jnp.zeros(3)}, squares, data)


def model_of(method, task, **options):
    given = {"rounds": 4, "eval_every": 4, "batch_size": 5, "epochs": 2} | options
    return np.asarray(fs.run(method, task, **given).params["w"])


@pytest.mark.full
def test_honest_clients_of_very_different_size_all_count():
    """Three clients of one example and one of 400, at a small rate: the bits of the plain mean."""
    task = uneven([1, 1, 1, 400])
    without, mean = (
        model_of(fs.robust.Robust(fs.FedAvg(1e-3), reduction), task)
        for reduction in (fs.robust.WithoutOutliers(), Mean())
    )
    np.testing.assert_array_equal(without, mean)
    assert np.abs(mean).min() > 1e-3


@pytest.mark.gate("1e+18")
@pytest.mark.parametrize("size", [1e6, 1e18, 1e30])
def test_attackers_in_the_engine(size):
    """Two of six send so many times their displacement: the model is that of the other four alone."""
    task, honest = uneven([5] * 6), uneven([5] * 6)
    keep = np.repeat(np.arange(6) < 4, 5)
    examples = fs.Examples(honest.data.examples.x[keep], honest.data.examples.y[keep])
    alone = fs.Task("four", honest.init, honest.loss, fs.FederatedData(examples, np.full(4, 5)))
    attacked = fs.attacks.Attacked(fs.FedAvg(0.1), fs.attacks.Scaled(size), (4, 5))
    found = model_of(fs.robust.Robust(attacked, fs.robust.WithoutOutliers()), task)
    np.testing.assert_allclose(found, model_of(fs.FedAvg(0.1), alone), rtol=1e-5)


# Attackers who know all honest messages: their vectors against NumPy, rounds with them, who is left alone.

ATTACKERS = (1, 3)


@module
class CollusionUp:
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
    messages = Marked(CollusionUp(delta, loss, loss), np.float32([0, 0, 1, 1]))
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
