"""Each robust reduction by itself: masks, counts, choices, minimisers; refusals; names in a configuration."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise, product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

import fedsolve as fs
from fedsolve.core.sampling import Bernoulli, Trace, Uniform
from fedsolve.core.types import module, reduced
from fedsolve.engine.compute.casting import cast
from fedsolve.engine.compute.train import reduce_stacked, sum_messages
from fedsolve.engine.simulated_time import Scheduled
from fedsolve.geometry import L1, L2Ball
from fedsolve.methods.robust import REDUCTIONS
from fedsolve.methods.robust.reductions import _floor
from fedsolve.methods.robust.vectors import krum_scores, middle, vector_of
from harness import crossed
from wrappers import reduction_transcript as numpy_says

EVERY = {
    "median": fs.robust.Median(),
    "trimmed": fs.robust.TrimmedMean(0.25),
    "geometric": fs.robust.GeometricMedian(),
    "krum": fs.robust.Krum(1),
    "multi-krum": fs.robust.MultiKrum(1, 3),
    "norm clipping": fs.robust.NormClipping(),
    "centred clipping": fs.robust.CentredClipping(),
    "without outliers": fs.robust.WithoutOutliers(),
}


@module
class Up:
    delta: Any
    loss: Any
    step: Any = reduced("max")


@module
class Outer:
    inner: Any
    scalar: Any


@module
class Plain:
    params: Any
    step: Any = reduced("max")


def messages(n=7, seed=0):
    rng = np.random.default_rng(seed)
    delta = {"w": rng.standard_normal((n, 2, 3)), "b": rng.standard_normal(n)}
    return Up(delta, rng.standard_normal(n), rng.standard_normal(n))


def changed(x, at, value):
    """A copy of an array with another value in these rows."""
    x = np.array(x)
    x[at] = value
    return x


reduced_by = jax.jit(lambda reduction, *given: reduction(*given))
"""A reduction as one program: its operations one by one would be some four hundred."""


pytestmark = pytest.mark.usefixtures("x64")


@pytest.mark.gate("without outliers")
@pytest.mark.parametrize("name", EVERY)
def test_rows_that_are_not_used_do_not_count(name):
    """Among seven clients two hold NaN and infinity and are not used: the result is that of the five, to the bit."""
    take = [0, 2, 3, 5, 6]
    whole, weight = messages(), np.array([3.0, np.nan, 1.0, 2.0, np.inf, 1.0, 5.0])
    bad = jax.tree.map(lambda x: changed(changed(x, 1, np.nan), 4, -np.inf), whole)
    used = np.isin(np.arange(7), take)
    found = reduced_by(EVERY[name], bad, weight, used)
    five = reduced_by(EVERY[name], jax.tree.map(lambda x: x[take], whole), weight[take], np.ones(5, bool))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-14), found, five)
    nobody = reduced_by(EVERY[name], bad, weight, np.zeros(7, bool))
    assert all((np.asarray(x) == 0).all() for x in jax.tree.leaves(nobody))


@pytest.mark.parametrize("name", EVERY)
def test_order_does_not_matter(name):
    order, weight, every = [4, 2, 0, 6, 1, 5, 3], np.arange(1.0, 8.0), np.ones(7, bool)
    turned = reduced_by(EVERY[name], jax.tree.map(lambda x: x[order], messages()), weight[order], every)
    straight = reduced_by(EVERY[name], messages(), weight, every)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-13), turned, straight)


@pytest.mark.parametrize(("n", "expected"), [(3, 2.0), (4, 2.5), (1, 1.0), (2, 1.5)])
def test_median_of_odd_and_even_numbers(n, expected):
    """The middle of 1 ... n, the maximum's field included."""
    values = np.random.default_rng(0).permutation(n) + 1.0
    sent = Up(values[:, None], values, values)
    found = reduced_by(fs.robust.Median(), sent, np.ones(n), np.ones(n, bool))
    assert float(found.delta[0]) == float(found.loss) == float(found.step) == expected


@pytest.mark.parametrize(
    ("shape", "kind"),
    crossed(
        product([(40_001,), (20_000, 2), (9, 3, 2), (6,), (4, 0)], [np.float16, np.float32, np.float64]),
        [
            ((40_001,), np.float64),
            ((20_000, 2), np.float32),
            ((9, 3, 2), np.float16),
            ((6,), np.float32),
            ((4, 0), np.float64),
        ],
    ),
)
def test_medians_are_those_of_sorted_values(kind, shape):
    """To the bit: both signs, ties, infinities, a fifth not used; coordinates at once and in parts."""
    rng = np.random.default_rng(5)
    x = np.where(rng.random(shape) < 0.3, 0.5, rng.standard_normal(shape)).astype(kind)
    x.reshape(-1)[:2] = [-np.inf, np.inf][: x.size]
    for used in (np.ones(len(x), bool), rng.random(len(x)) < 0.8):
        ordered = np.sort(x[used], axis=0)
        low, high = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
        got = jax.jit(middle)(x, used)
        assert got.dtype == kind
        np.testing.assert_array_equal(got, low / kind(2) + high / kind(2))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("n", "trim", "cut"),
    [
        (10, 0.1, 1),
        (10, 0.29, 2),
        (100, 0.29, 29),
        (2, 0.49, 0),
        (5, 0.4, 2),
        (10, 0.0999, 0),
        (10, 0.099999, 0),
    ],
)
def test_how_many_are_trimmed(n, trim, cut, dtype):
    """floor(trim n) at each end, exactly, in both types; of a maximum what is left."""
    values = np.random.default_rng(1).permutation(n).astype(dtype) ** 2
    sent = Up(values, values, values)
    reduction = cast(fs.robust.TrimmedMean(trim), dtype)
    found = reduced_by(reduction, sent, np.ones(n, dtype), np.ones(n, bool))
    left = np.sort(values)[cut : n - cut]
    np.testing.assert_allclose(found.loss, left.mean(), rtol=1e-6 if dtype == "float32" else 1e-14)
    assert float(found.step) == left[-1]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_share_of_hundredths_is_trimmed_exactly(dtype):
    """Shares k/100 and 1/k of cohorts up to 300: the floor of the exact product, whatever rounding makes of it."""
    shares = [Fraction(k, 100) for k in range(1, 50)] + [Fraction(1, k) for k in range(3, 40)]
    counts = np.arange(1, 301)
    given = np.array([float(share) for share in shares]).astype(dtype)
    found = np.asarray(_floor(given[:, None] * counts.astype(dtype)))
    np.testing.assert_array_equal(found, [[share * int(n) // 1 for n in counts] for share in shares])


@pytest.mark.parametrize(
    "shape",
    [(40_001,), (9, 3, 2), (4, 0), *(pytest.param(s, marks=pytest.mark.full) for s in ((20_000, 2), (6,)))],
)
def test_trimmed_means_are_those_of_sorted_values(shape):
    """Both signs, ties at the ends and everywhere, a fifth not used; coordinates at once and in parts."""
    rng = np.random.default_rng(6)
    x = np.where(rng.random(shape) < 0.3, rng.choice([-0.7, 0.0, 0.7], shape), rng.standard_normal(shape))
    for trim, values in ((0.26, x), (0.45, x), (0.0, x), (0.3, np.full_like(x, 0.1))):
        used = rng.random(len(x)) < 0.8
        ordered = np.sort(values[used], axis=0)
        cut = int(trim * len(ordered))
        left = ordered[cut : len(ordered) - cut]
        given = np.where(used.reshape(-1, *(1,) * (x.ndim - 1)), values, np.nan)
        sent = Up(given, given, given)
        found = reduced_by(fs.robust.TrimmedMean(trim), sent, np.ones(len(x)), used)
        np.testing.assert_allclose(found.loss, left.mean(axis=0), rtol=1e-12, atol=1e-14)
        np.testing.assert_array_equal(found.step, left[-1])


@pytest.mark.parametrize("attackers", [0, 1, 2, 6])
def test_krum_scores_by_brute_force(attackers):
    x = np.random.default_rng(2).standard_normal((7, 4))
    got = jax.jit(krum_scores)(x, np.ones(7, bool), attackers)
    np.testing.assert_allclose(got, numpy_says.krum_scores(x, attackers), rtol=1e-13)


def test_krum_chooses_one_client():
    """Its displacement is that client's to the bit."""
    sent = messages()
    flat = np.concatenate([np.reshape(x, (7, -1)) for x in jax.tree.leaves(sent.delta)], axis=1)
    best = int(np.argmin(numpy_says.krum_scores(flat, 1)))
    found = reduced_by(fs.robust.Krum(1), sent, np.ones(7), np.ones(7, bool))
    np.testing.assert_array_equal(found.delta["w"], sent.delta["w"][best])


@pytest.mark.full
def test_geometric_median_minimises_weighted_distances():
    """200 iterations agree with a minimiser of sum_i p_i |x_i - v| to 1e-6; the objective never rises."""
    rng = np.random.default_rng(3)
    x, p = rng.standard_normal((6, 3)), np.array([1.0, 2, 3, 1, 1, 4])
    objective = lambda v: float(p @ np.linalg.norm(x - v, axis=1))  # noqa: E731
    best = minimize(objective, x.mean(axis=0), method="Nelder-Mead", options={"xatol": 1e-10, "fatol": 1e-14})
    values = []
    for iterations in (1, 4, 200):
        found = reduced_by(fs.robust.GeometricMedian(iterations), x, p, np.ones(6, bool))
        values.append(objective(np.asarray(found)))
    np.testing.assert_allclose(found, best.x, atol=1e-6)
    assert all(b <= a + 1e-14 for a, b in pairwise(values))


@pytest.mark.parametrize("name", EVERY)
def test_one_liar_cannot_set_a_scalar(name):
    """A client with an honest displacement and a loss and a step of 1e300 moves neither beyond the others'."""
    sent = messages()
    lie = Up(sent.delta, changed(sent.loss, 3, 1e300), changed(sent.step, 3, 1e300))
    found = reduced_by(EVERY[name], lie, np.ones(7), np.ones(7, bool))
    assert float(found.loss) <= np.delete(sent.loss, 3).max()
    assert float(found.step) <= np.delete(sent.step, 3).max()


@pytest.mark.full
def test_float32_survives_what_overflows_when_squared():
    """1e30 squared is infinite in float32: the attacker is then left out, not made NaN."""
    x = changed(np.random.default_rng(4).standard_normal((7, 3)).astype(np.float32), 2, 1e30)
    for name, reduction in EVERY.items():
        found = reduced_by(reduction, x, np.ones(7, np.float32), np.ones(7, bool))
        assert found.dtype == jnp.float32
        assert np.abs(found).max() < 4, name


def test_the_vector_of_a_message():
    """`delta` where there is one, however deep; else all that is reduced by a mean."""
    assert jax.tree.leaves(vector_of(messages(2))) == [True, True, False, False]
    assert jax.tree.leaves(vector_of(Outer(messages(2), 3.0))) == [True, True, False, False, False]
    assert vector_of({"plain": 1.0}) == {"plain": True}
    assert jax.tree.leaves(vector_of(Plain(1.0, 2.0))) == [True, False]


@pytest.mark.full
def test_stacked_messages_of_a_mean_are_totals():
    """Without a reduction `reduce_stacked` is, to the bit, what the engine makes of one chunk."""
    weight, used = jnp.asarray([1.0, 0, 2, 3, 0, 1, 1]), jnp.asarray([1, 0, 1, 1, 0, 1, 1], bool)
    found = reduce_stacked(fs.FedAvg(), messages(), weight, used)
    want = sum_messages(messages(), weight, used, jnp.ones((7, 1), bool), used).reduce()
    jax.tree.map(np.testing.assert_array_equal, found, want)
    robust = fs.robust.Robust(fs.FedAvg(), fs.robust.Median())
    median = jax.jit(lambda *given: reduce_stacked(robust, *given))(messages(), weight, used)
    alone = reduced_by(fs.robust.Median(), messages(), weight, used)
    jax.tree.map(np.testing.assert_array_equal, median, alone)


@pytest.mark.parametrize(
    ("inner", "reason"),
    [
        (lambda: fs.SCAFFOLD(), "mean of all clients' c_i"),
        (lambda: fs.Proximal(fs.SCAFFOLD(), 0.1), "mean of all clients' c_i"),
        (lambda: fs.FedFW(L2Ball(1.0)), "mean of all clients' x_i"),
        (lambda: fs.FedFWPlus(L2Ball(1.0)), "mean of all clients' x_i"),
        (lambda: fs.FedDR(L1(0.1)), "mean of all clients' xhat_i"),
        (lambda: fs.robust.Robust(fs.FedAvg(), fs.robust.Median()), "one reduction"),
    ],
)
def test_methods_that_need_the_mean_are_refused(inner, reason):
    with pytest.raises(fs.InvalidInput, match=reason):
        fs.robust.Robust(inner(), fs.robust.Median())


def test_other_refusals():
    with pytest.raises(fs.InvalidInput, match="SCAFFOLD cannot wrap Robust"):
        fs.build("SCAFFOLD+Robust+FedAvg", {"reduction": fs.robust.Median()})
    with pytest.raises(fs.InvalidInput, match="must be one such as Median"):
        fs.robust.Robust(fs.FedAvg(), "mean")
    with pytest.raises(fs.InvalidInput, match="Robust\\+FedAdam needs reduction, such as 'median'"):
        fs.build("Robust+FedAdam")
    for bad in (
        lambda: fs.robust.TrimmedMean(0.5),
        lambda: fs.robust.Krum(-1),
        lambda: fs.robust.Krum(1.5),
        lambda: fs.robust.MultiKrum(1, 0),
        lambda: fs.robust.GeometricMedian(0),
        lambda: fs.robust.GeometricMedian(3, 0.0),
        lambda: fs.robust.NormClipping(0.0),
        lambda: fs.robust.NormClipping("mean"),
        lambda: fs.robust.CentredClipping(0.0),
        lambda: fs.robust.CentredClipping(1.0, 0),
    ):
        with pytest.raises(fs.InvalidInput):
            bad()


SMALLEST = {
    "Median": (fs.robust.Median(), 3),
    "GeometricMedian": (fs.robust.GeometricMedian(), 3),
    "CentredClipping": (fs.robust.CentredClipping(), 3),
    "CentredClipping(1.0)": (fs.robust.CentredClipping(1.0), 3),
    "NormClipping": (fs.robust.NormClipping(), 3),
    "NormClipping(1.0)": (fs.robust.NormClipping(1.0), 1),
    "Krum(0)": (fs.robust.Krum(0), 3),
    "Krum(1)": (fs.robust.Krum(1), 5),
    "Krum(5)": (fs.robust.Krum(5), 13),
    "MultiKrum(1, 9)": (fs.robust.MultiKrum(1, 9), 10),
    "MultiKrum(3, 2)": (fs.robust.MultiKrum(3, 2), 9),
    "TrimmedMean": (fs.robust.TrimmedMean(), 10),
    "TrimmedMean(0.0999)": (fs.robust.TrimmedMean(0.0999), 11),
    "TrimmedMean(0.49)": (fs.robust.TrimmedMean(0.49), 3),
    "TrimmedMean(1/3)": (fs.robust.TrimmedMean(1 / 3), 3),
    "TrimmedMean(0)": (fs.robust.TrimmedMean(0.0), 1),
    "WithoutOutliers": (fs.robust.WithoutOutliers(), 2),
}
"""Reductions, and the fewest clients of which their guarantee holds."""


@pytest.mark.parametrize("name", SMALLEST)
def test_cohorts_that_are_too_small_are_refused(name):
    """The documented number of clients passes, one less does not, in both types; the line gives it."""
    reduction, fewest = SMALLEST[name]
    for dtype in ("float32", "float64"):
        method = fs.robust.Robust(fs.FedAvg(0.1), cast(reduction, dtype))
        method.check(Uniform(fewest), 20)
        assert float(method.reduction.fewest) == fewest
        if fewest > 1:
            with pytest.raises(
                fs.InvalidInput, match=f"at least n = {fewest} clients a round.*has {fewest - 1}: "
            ):
                method.check(Uniform(fewest - 1), 20)


def test_a_trimmed_mean_is_meant_for_cohorts_of_which_it_cuts_one():
    """Of all shares: `fewest` is the least n with floor(trim n) >= 1."""
    for trim in [k / 1000 for k in range(1, 500, 7)] + [1 / k for k in range(3, 60)]:
        fewest = int(fs.robust.TrimmedMean(trim).fewest)
        assert int(_floor(np.float64(trim) * fewest)) >= 1 > int(_floor(np.float64(trim) * (fewest - 1))), (
            trim
        )


def test_cohorts_of_random_size():
    """Krum(1) needs five: of Bernoulli cohorts on average, of a trace in its best row, of a clock in its best round."""
    method, row = fs.robust.Robust(fs.FedAvg(0.1), fs.robust.Krum(1)), np.arange(8)
    there = np.stack([row < 4, row < 6])
    method.check(Bernoulli(0.63), 8)
    method.check(Trace(there, 8), 8)
    method.check(Scheduled(np.zeros((2, 8), int), there), 8)
    for sampling in (
        Bernoulli(0.62),
        Trace(there, 4),
        Trace(there[:1], 8),
        Scheduled(np.zeros((1, 8), int), there[:1]),
    ):
        with pytest.raises(fs.InvalidInput, match="at least n = 5"):
            method.check(sampling, 8)


@pytest.mark.gate("1-4", "2-5")
@pytest.mark.parametrize(("f", "keep"), [(0, 3), (1, 1), (1, 4), (2, 5), (3, 6)])
def test_what_krum_averages_lies_near_the_honest(f, keep):
    """n = max(2f + 3, keep + f), f attackers anywhere: each chosen vector has an honest one within sqrt(n - f - 2)
    times the honest ones' diameter; with keep = n - f + 1 an attacker far away is among them.
    """
    n, rng = max(2 * f + 3, keep + f), np.random.default_rng(f)
    apart = lambda x, y: np.linalg.norm(x[:, None] - y[None], axis=2)  # noqa: E731
    for distance in (1.0, 3.0, 10.0, 1e6):
        vectors = rng.standard_normal((n, 3))
        vectors[:f] += distance * rng.standard_normal(3)
        honest = vectors[f:]
        scores = np.array(numpy_says.krum_scores(vectors, f))
        chosen = vectors[np.argsort(scores, kind="stable")[:keep]]
        bound = np.sqrt(n - f - 2) * apart(honest, honest).max()
        assert apart(chosen, honest).min(axis=1).max() <= bound
        one = np.ones(n, bool)
        found = reduced_by(
            fs.robust.MultiKrum(float(f), float(keep)), Up(vectors, one * 1.0, one * 1.0), np.ones(n), one
        )
        np.testing.assert_allclose(found.delta, chosen.mean(axis=0), rtol=1e-9)


PLACES = {  # where attackers put their vectors, among honest ones of length about 1.7
    "far in one coordinate": lambda honest: np.r_[1e30, np.zeros(honest.shape[1] - 1)],
    "all at the edge": lambda honest: honest.max(0) * 1.5,
    "against the mean": lambda honest: -3 * honest.mean(0) / np.linalg.norm(honest.mean(0)),
    "tiny": lambda honest: np.full(honest.shape[1], 1e-30),
    "as an honest one": lambda honest: honest[0],
}


@pytest.mark.full_rows("far in one coordinate", "all at the edge", "tiny")
@pytest.mark.parametrize("place", PLACES)
def test_how_far_attackers_can_pull(place):
    """Three of seven (of a trimmed mean one): what each reduction promises, wherever they are and in float32."""
    honest = np.random.default_rng(6).standard_normal((6, 3)).astype(np.float32) + 0.5
    bad = PLACES[place](honest).astype(np.float32)
    found = lambda reduction, sent: np.asarray(  # noqa: E731
        reduced_by(reduction, sent, np.ones(7, np.float32), np.ones(7, bool)), float
    )
    minority = np.stack([*honest[:4], bad, bad, bad])
    one = np.stack([*honest, bad])
    near = 1e-6 * np.abs(honest).max()
    median = found(fs.robust.Median(), minority)
    assert (median >= honest[:4].min(0) - near).all()
    assert (median <= honest[:4].max(0) + near).all()
    trimmed = found(fs.robust.TrimmedMean(0.15), one)
    assert (trimmed >= honest.min(0) - near).all()
    assert (trimmed <= honest.max(0) + near).all()
    # of a minority m of n: at most 2 (n - m) / (n - 2 m) times the honest ones' largest distance from a point
    middle_of_honest = honest[:4].mean(0)
    spread = np.linalg.norm(honest[:4] - middle_of_honest, axis=1).max()
    pulled = np.linalg.norm(found(fs.robust.GeometricMedian(200), minority) - middle_of_honest)
    assert pulled <= 2 * 4 / (7 - 2 * 3) * spread
    for bound in (0.5, None):
        limit = bound or np.median(np.linalg.norm(minority.astype(float), axis=1))
        without = found(fs.robust.NormClipping(limit), np.stack([*honest[:4], *np.zeros((3, 3), np.float32)]))
        clipped = found(fs.robust.NormClipping(bound), minority)
        assert np.linalg.norm(clipped - without) <= 3 / 7 * limit * (1 + 1e-5)
    for radius in (0.5, None):
        centre = found(fs.robust.CentredClipping(radius, iterations=1), minority)
        apart = np.linalg.norm(minority.astype(float) - median, axis=1)
        limit = radius or np.median(apart)
        steps = np.minimum(1, limit / np.where(apart[:4] > 0, apart[:4], 1))[:, None] * (honest[:4] - median)
        assert np.linalg.norm(centre - median - steps.sum(0) / 7) <= 3 / 7 * limit * (1 + 1e-5)


def test_names_in_a_configuration():
    assert REDUCTIONS.build("x", "median") == fs.robust.Median()
    assert REDUCTIONS.build("x", "geometric_median") == fs.robust.GeometricMedian()
    assert REDUCTIONS.build("x", {"name": "multi-krum", "attackers": 2, "keep": 5}) == fs.robust.MultiKrum(
        2, 5
    )
    assert set(REDUCTIONS) == {
        "Median",
        "TrimmedMean",
        "GeometricMedian",
        "Krum",
        "MultiKrum",
        "NormClipping",
        "CentredClipping",
        "WithoutOutliers",
    }
    with pytest.raises(fs.InvalidInput, match="did you mean 'Median'"):
        REDUCTIONS.build("x", "medain")
    with pytest.raises(fs.InvalidInput, match="Krum needs attackers"):
        REDUCTIONS.build("x", "krum")
    assert fs.build("Robust+FedAdam", {"reduction": fs.robust.Median()}).name == "Robust+FedAdam"
