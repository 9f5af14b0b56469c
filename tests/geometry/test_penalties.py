"""Every penalty: its prox against an independent solver and by its optimality, its subgradients, its transforms.

All that is computed of a penalty on a shape is one program a type, over all kinds of points at once.
"""

from functools import cache
from itertools import chain

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedsolve.core.errors import InvalidInput
from fedsolve.geometry.penalties import L1, ElasticNet, GroupL1, LInf, NuclearNorm, SquaredL2
from fedsolve.geometry.variation import TotalVariation, TotalVariation2D

# name: penalty of a weight, shapes that it takes, the same psi of weight 1 in cvxpy
TALL, WIDE = (7, 4), (3, 8)
PENALTIES = {
    "l1": (L1, [TALL, (9,)], lambda u: cp.sum(cp.abs(u))),
    "squared l2": (SquaredL2, [TALL, (9,)], lambda u: cp.sum_squares(u) / 2),
    "elastic net": (lambda a: ElasticNet(a, 0.7 * a), [TALL, (9,)],
                    lambda u: cp.sum(cp.abs(u)) + 0.35 * cp.sum_squares(u)),
    "l-infinity": (LInf, [TALL, (1,), (9,)], lambda u: cp.max(cp.abs(u))),
    "rows": (GroupL1, [TALL, WIDE], lambda u: cp.sum(cp.norm(u, 2, axis=1))),
    "columns": (lambda a: GroupL1(a, 0), [TALL, WIDE], lambda u: cp.sum(cp.norm(u, 2, axis=0))),
    "nuclear": (NuclearNorm, [WIDE, (5, 5), (1, 4), TALL], cp.normNuc),
    "variation": (TotalVariation, [(2,), (12,), (1,), (30,)],
                  lambda u: cp.sum(cp.abs(cp.diff(u))) if u.size > 1 else cp.Constant(0)),
    "variation 2d": (lambda a: TotalVariation2D(a, 1e-15, 20000), [WIDE, (1, 5), TALL],
                     lambda u: sum(cp.sum(cp.abs(d)) for d in (u[1:] - u[:-1], u[:, 1:] - u[:, :-1]) if d.size)),
}  # fmt: skip
CASES = [
    pytest.param(
        name,
        shape,
        id=f"{name}-{shape}",
        marks=() if shape == shapes[-1] or 1 in shape else pytest.mark.full,
    )
    for name, (_, shapes, _) in PENALTIES.items()
    for shape in shapes
]
KINDS = ["normal", "tiny", "large", "zeros", "ties", "low rank"]


pytestmark = pytest.mark.usefixtures("x64")


def point(kind, shape, seed=0):
    """An array to start from; zeros, ties and low rank put it on the kinks."""
    draw = np.random.default_rng([seed, KINDS.index(kind), *shape])
    w = draw.normal(size=shape)
    if kind == "zeros":
        return w * (draw.random(shape) < 0.4) * (draw.random((*shape[:-1], 1)) < 0.6)
    if kind == "ties":
        return np.round(w).clip(-1, 1)
    if kind == "low rank":
        return np.outer(w[:, 0], w[0]) if len(shape) == 2 else np.full(shape, w.flat[0])
    return w * {"normal": 1.0, "tiny": 1e-3, "large": 1e2}[kind]


SOLVED = [("normal", 0.3, 0.5), ("zeros", 1.1, 1.0), ("ties", 0.3, 0.5), ("normal", 1.1, 1.0)]
WEIGHTS = (0.2, 3.0)
PAIRS = range(5)


@cache
def proxes(name, shape):
    """By what it is for: arrays of points, weights, steps and their proxes, all from one compiled call."""
    groups = {
        "solved": [(point(kind, shape), weight, step) for kind, weight, step in SOLVED],
        "subgradient": [
            (w, weight, 0.7 * np.abs(w).max() + 0.01)
            for w in (point(kind, shape) for kind in KINDS)
            for weight in WEIGHTS
        ],
        "first": [(point("normal", shape, seed), 0.6, 1.5) for seed in PAIRS],
        "second": [(point("zeros", shape, seed + 1), 0.6, 1.5) for seed in PAIRS],
        "no step": [(point(kind, shape), 2.0, 0.0) for kind in KINDS],
        "no weight": [(point(kind, shape), 0.0, 2.0) for kind in KINDS],
        "nothing": [(np.zeros(shape), 2.0, 1.0)],
    }
    w, weights, steps = (np.stack(x) for x in zip(*chain.from_iterable(groups.values()), strict=True))
    psi = PENALTIES[name][0]
    p = np.asarray(jax.jit(jax.vmap(lambda a, t, x: psi(a).prox(x, t)))(weights, steps, w))
    ends = np.cumsum([len(group) for group in groups.values()])
    cut = [np.split(x, ends[:-1]) for x in (w, weights, steps, p)]
    return {group: tuple(part[i] for part in cut) for i, group in enumerate(groups)}


# the solver is asked for more digits than it may reach; the assertion is what counts
@pytest.mark.filterwarnings("ignore:Solution may be inaccurate:UserWarning")
@pytest.mark.parametrize(("name", "shape"), CASES)
def test_prox_is_what_an_independent_solver_finds(name, shape):
    """Several points at once: the objective is the sum of theirs."""
    points, weights, steps, found = proxes(name, shape)["solved"]
    us = [cp.Variable(shape) for _ in points]
    objective = sum(
        t * a * PENALTIES[name][2](u) + cp.sum_squares(u - w) / 2
        for u, w, a, t in zip(us, points, weights, steps, strict=True)
    )
    cp.Problem(cp.Minimize(objective)).solve(
        solver="CLARABEL", tol_gap_abs=1e-13, tol_gap_rel=1e-13, tol_feas=1e-12
    )
    for u, p in zip(us, found, strict=True):
        assert u.value is not None
        np.testing.assert_allclose(p, u.value, rtol=0, atol=2e-6)


@pytest.mark.full_rows("variation 2d-(7, 4)")
@pytest.mark.parametrize(("name", "shape"), CASES)
def test_prox_leaves_a_subgradient(name, shape):
    """(w - p) / step is a subgradient at p: psi(p) + <(w - p) / step, u - p> <= psi(u)."""
    psi = PENALTIES[name][0]
    points, weights, steps, found = proxes(name, shape)["subgradient"]
    tolerance = 1e-10 if name != "variation 2d" else 1e-6  # its prox is iterative
    sizes, near = 1 + np.abs(points).max(axis=tuple(range(1, points.ndim))), []
    for w, p, size in zip(points, found, sizes, strict=True):
        far = [point(k, shape, s) * size for k in KINDS for s in (1, 2)]
        near.append([p, w, 0 * w, -w, *far, *(p + 0.01 * point("zeros", shape, s) for s in range(3, 9))])
    u = np.array(near)
    values = np.asarray(jax.jit(jax.vmap(lambda a, x: jax.vmap(psi(a).value)(x)))(weights, jnp.asarray(u)))
    axes = tuple(range(2, u.ndim))
    slopes = ((points - found) / steps.reshape(-1, *[1] * len(shape)))[:, None]
    lower = values[:, :1] + np.sum(slopes * (u - found[:, None]), axis=axes)  # the first of them is p
    assert np.max((lower - values) / (1 + np.abs(values) + sizes[:, None] ** 2)) <= tolerance


@pytest.mark.parametrize(("name", "shape"), CASES)
def test_subgradient_lies_below(name, shape):
    """psi(u) >= psi(w) + <s, u - w>, also where psi has a kink."""
    psi = PENALTIES[name][0](0.8)
    at = np.stack([*(point(kind, shape) for kind in KINDS), np.zeros(shape)])
    others = np.stack([point(kind, shape, 1) for kind in KINDS])
    both = jax.jit(lambda w, u: (jax.vmap(psi.subgradient)(w), *(jax.vmap(psi.value)(x) for x in (w, u))))
    slopes, here, there = (np.asarray(x) for x in both(at, others))
    assert slopes.shape == at.shape
    assert slopes.dtype == at.dtype
    assert np.isfinite(slopes).all()
    for s, w, value in zip(slopes, at, here, strict=True):
        slack = there - value - np.sum(s * (others - w), axis=tuple(range(1, at.ndim)))
        assert (slack >= -1e-12 * (1 + there + value)).all()
    assert not slopes[-1].any()


@pytest.mark.full_rows("variation-(30,)")
@pytest.mark.parametrize(("name", "shape"), CASES)
def test_prox_brings_points_closer_and_is_the_identity_of_nothing(name, shape):
    found = proxes(name, shape)
    slack = 1e-12 if name != "variation 2d" else 1e-6
    for (a, *_, p), (b, *_, q) in zip(
        zip(*found["first"], strict=True), zip(*found["second"], strict=True), strict=True
    ):
        assert np.linalg.norm(p - q) <= np.linalg.norm(a - b) + slack
    for kind in ("no step", "no weight"):
        w, *_, p = found[kind]
        np.testing.assert_array_equal(p, w)
    np.testing.assert_allclose(found["nothing"][-1], 0, atol=0)


def single(name):
    """The penalty of a weight, to a tolerance that float32 can reach."""
    return PENALTIES[name][0] if name != "variation 2d" else lambda a: TotalVariation2D(a, 1e-6)


@pytest.mark.parametrize(("name", "shape"), CASES)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_type_and_shape_are_kept(name, shape, dtype):
    """With plain numbers for weight and step, and with traced ones, alone and batched; nothing is compiled."""
    psi, w, number = single(name), jax.ShapeDtypeStruct((3, *shape), dtype), jax.ShapeDtypeStruct((3,), dtype)

    def all_ways(w, a, t):
        batched = jax.vmap(lambda w, a, t: psi(a).prox(w, t))(w, a, t)
        alone = psi(0.3).prox(w[1], 0.5), psi(a[1]).prox(w[1], t[1]), psi(0.3).subgradient(w[1])
        return batched[0], *alone

    for found in jax.eval_shape(all_ways, w, number, number):
        assert found.dtype == dtype
        assert found.shape == shape


@pytest.mark.full_rows("variation", "variation 2d")
@pytest.mark.parametrize("name", PENALTIES)
def test_prox_in_float32_and_batched(name):
    """Near what float64 gives; of a batch as alone."""
    psi = single(name)
    *given, exact = proxes(name, PENALTIES[name][1][-1])["solved"]
    inputs = [jnp.asarray(x, jnp.float32) for x in given]

    @jax.jit
    def both_ways(w, a, t):
        return jax.vmap(lambda w, a, t: psi(a).prox(w, t))(w, a, t), psi(a[1]).prox(w[1], t[1])

    batched, alone = both_ways(*inputs)
    np.testing.assert_allclose(batched[1], alone, atol=20 * float(jnp.finfo(jnp.float32).eps))
    if name != "variation 2d":
        np.testing.assert_allclose(batched, exact, atol=3e-6)


@pytest.mark.full_rows("variation 2d")
@pytest.mark.parametrize("name", ["l-infinity", "nuclear", "variation 2d"])
def test_outside_a_program_it_is_the_same(name):
    """Plain numbers and no tracing: as a user tries it."""
    psi, shapes, _ = PENALTIES[name]
    w, weights, steps, found = proxes(name, shapes[-1])["solved"]
    alone = psi(float(weights[1])).prox(jnp.asarray(w[1]), float(steps[1]))
    assert alone.dtype == jnp.float64
    np.testing.assert_allclose(alone, found[1], atol=1e-14 if name != "variation 2d" else 1e-6)


@pytest.mark.parametrize("name", PENALTIES)
def test_a_bad_weight_is_refused(name):
    for weight in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=r"^weight of \w+ = (-1.0|nan|inf) must be finite and >= 0$"):
            PENALTIES[name][0](weight)


# What only some penalties promise: conjugates that are balls, long sequences, tolerances, shapes they refuse.

# for a norm the prox is w minus the projection on the dual norm's ball of radius step weight
DUAL = {
    "l1": (L1, lambda g: np.abs(g).max()),
    "l-infinity": (LInf, lambda g: np.abs(g).sum()),
    "rows": (GroupL1, lambda g: np.linalg.norm(g, axis=1).max()),
    "nuclear": (NuclearNorm, lambda g: np.linalg.norm(g, 2)),
}


@cache
def _dual_programs(name):
    psi = DUAL[name][0]
    return jax.jit(psi(2.0).prox), jax.jit(psi(1.0).value)


@pytest.mark.parametrize("name", DUAL)
@pytest.mark.parametrize("threshold", [0.01, 0.5, 2.0, 100.0])
def test_what_a_norm_takes_away_is_a_projection(name, threshold):
    dual = DUAL[name][1]
    prox, value_of = _dual_programs(name)
    for seed in range(5):
        w = np.random.default_rng(seed).normal(size=(6, 4))
        p = np.asarray(prox(w, threshold / 2))
        assert dual(w - p) <= threshold * (1 + 1e-12)
        # Moreau: the two parts meet at <w - p, p> = threshold psi(p)
        value = float(value_of(p))
        np.testing.assert_allclose(np.sum((w - p) * p), threshold * value, rtol=1e-10, atol=1e-12)
        if dual(w) <= threshold:
            assert not p.any()


@pytest.mark.parametrize("spread", [0.0, 1.0, 8.0])
def test_l_infinity_level_over_many_scales(spread):
    w = np.exp(spread * np.random.default_rng(3).normal(size=2000))
    for mass in (1e-6, 1.0, 0.5 * w.sum(), 0.999999 * w.sum()):
        p = np.asarray(_level(w, mass))
        np.testing.assert_allclose(np.sum(w - p), mass, rtol=1e-9, atol=1e-12 * w.max())
        assert np.isin(p[p < p.max()], w).all()


_level = jax.jit(LInf(1.0).prox)

SEQUENCES = {
    "noise": lambda r, n: r.normal(size=n),
    "walk": lambda r, n: r.normal(size=n).cumsum(),
    "steps": lambda r, n: np.sign(np.sin(np.arange(n) / 40)) + 0.3 * r.normal(size=n),
    "ties": lambda r, n: r.integers(0, 3, n).astype(float),
    "zigzag": lambda r, n: (-1.0) ** np.arange(n),
    "growing": lambda r, n: 1.02 ** np.arange(n),
    "alternating scales": lambda r, n: (-0.97) ** np.arange(n),
    "ramp": lambda r, n: np.arange(n, dtype=float),
    "outlier": lambda r, n: np.where(np.arange(n) == n // 3, 1e6, r.normal(size=n)),
    "offset": lambda r, n: 1e6 + r.normal(size=n),
}


@pytest.mark.full_rows("0.01-noise")
@pytest.mark.parametrize("name", SEQUENCES)
@pytest.mark.parametrize("strength", [0.01, 0.7, 10.0, 1e4])
def test_total_variation_is_exact_on_long_sequences(name, strength):
    """The dual u = cumsum(w - p) stays within the strength and touches it, with p's sign, where p jumps."""
    w = SEQUENCES[name](np.random.default_rng(1), 1500)
    p = np.asarray(_variation(strength, jnp.asarray(w)))
    dual = np.cumsum(w - p)
    rounding = 1e-12 * (np.abs(w).max() * 10 + strength) * 10
    assert abs(dual[-1]) <= rounding
    assert np.abs(dual[:-1]).max() <= strength + rounding
    jump = np.diff(p)
    real = np.abs(jump) > rounding
    np.testing.assert_allclose(dual[:-1][real], -strength * np.sign(jump[real]), atol=rounding)


_variation = jax.jit(lambda strength, w: TotalVariation(strength).prox(w, 1.0))


def test_total_variation_of_two_entries_is_known():
    for gap in (0.5, 2.0, 2.5):
        p = _variation(1.0, jnp.array([0.0, gap]))
        move = min(1.0, gap / 2)
        np.testing.assert_allclose(p, [move, gap - move], atol=1e-15)


@pytest.mark.full
def test_derivatives_of_the_exact_proxes():
    """Forward and backward, against differences; every one is piecewise linear or smooth at this point."""
    w = jnp.asarray(np.random.default_rng(5).normal(size=12))
    matrix = w.reshape(4, 3)
    cases = [(LInf(0.9), w), (TotalVariation(0.4), w), (ElasticNet(0.4, 0.2), w), (GroupL1(0.5), matrix)]
    for psi, x in [*cases, (NuclearNorm(0.5), matrix), (TotalVariation2D(0.2, 1e-15, 20000), matrix)]:
        way = jnp.cos(jnp.arange(x.size)).reshape(x.shape)
        backward = not isinstance(psi, TotalVariation2D)

        @jax.jit
        def all_slopes(x, step, psi=psi, way=way, backward=backward):
            along = lambda v: psi.prox(*v)  # noqa: E731 of the point and of the step
            ways = [(way, jnp.zeros(())), (jnp.zeros_like(x), jnp.ones(()))]
            slopes = [jax.jvp(along, ((x, step),), (d,))[1] for d in ways]
            back = jax.grad(lambda v: jnp.sum(along(v) * way))((x, step)) if backward else None
            return slopes, back

        prox = jax.jit(psi.prox)
        (by_point, by_step), back = all_slopes(x, jnp.asarray(1.0))
        point_slope = (prox(x + 1e-6 * way, 1.0) - prox(x - 1e-6 * way, 1.0)) / 2e-6
        step_slope = (prox(x, 1.0 + 1e-6) - prox(x, 1.0 - 1e-6)) / 2e-6
        np.testing.assert_allclose(by_point, point_slope, atol=1e-6)
        np.testing.assert_allclose(by_step, step_slope, atol=1e-6)
        if back is not None:
            np.testing.assert_allclose(jnp.sum(back[0] * way), jnp.sum(point_slope * way), atol=1e-5)
            np.testing.assert_allclose(back[1], jnp.sum(step_slope * way), atol=1e-5)


@pytest.mark.full_rows("tv2d")
@pytest.mark.parametrize(
    "psi", [LInf(1.0), GroupL1(1.0), TotalVariation2D(1.0)], ids=["linf", "rows", "tv2d"]
)
def test_derivatives_are_finite_at_zero(psi):
    slopes = jax.jit(lambda v, d: jax.jvp(lambda v: psi.prox(v, 0.5), (v,), (d,))[1])
    slope = slopes(jnp.zeros((3, 2)), jnp.ones((3, 2)))
    assert np.isfinite(slope).all()


def test_gradient_of_groups_at_zero_is_zero():
    w = jnp.array([[0.0, 0.0], [3.0, 4.0]])
    np.testing.assert_allclose(jax.grad(GroupL1(1.0).value)(w), [[0, 0], [0.6, 0.8]])


def test_axes_of_a_convolution():
    w = jnp.asarray(np.random.default_rng(0).normal(size=(3, 3, 2, 4)))
    np.testing.assert_allclose(
        GroupL1(1.0, (0, 1)).value(w), np.sqrt((np.asarray(w) ** 2).sum((0, 1))).sum(), rtol=1e-12
    )
    assert GroupL1(0.3, (0, 1)).prox(w, 1.0).shape == w.shape


def test_nuclear_norm_makes_low_rank():
    w = jnp.asarray(np.random.default_rng(0).normal(size=(9, 5)))
    s = np.linalg.svd(w, compute_uv=False)
    p = NuclearNorm(float(s[2])).prox(w, 1.0)
    np.testing.assert_allclose(np.linalg.svd(p, compute_uv=False), np.maximum(s - s[2], 0), atol=1e-13)


_variation_2d = jax.jit(lambda tolerance, w: TotalVariation2D(0.5, tolerance, 100000).prox(w, 1.0))


@pytest.mark.parametrize("tolerance", [1e-2, 1e-4, 1e-6])
def test_total_variation_2d_is_as_near_as_it_says(tolerance):
    w = jnp.asarray(5 + np.random.default_rng(2).normal(size=(20, 15)))
    exact, rough = (_variation_2d(t, w) for t in (1e-15, tolerance))
    spread = float(jnp.linalg.norm(w - jnp.mean(w)))
    assert float(jnp.linalg.norm(rough - exact)) <= tolerance**0.5 * spread + 1e-9


@pytest.mark.full
def test_a_single_row_has_the_variation_of_a_sequence():
    w = np.random.default_rng(2).normal(size=40)
    flat = _variation(0.5, jnp.asarray(w))
    for shape in ((1, 40), (40, 1)):
        p = _variation_2d(1e-15, w.reshape(shape))
        np.testing.assert_allclose(p.ravel(), flat, atol=1e-6)


REFUSED = [
    (NuclearNorm(0.1), (3,), "NuclearNorm needs a matrix, leaf bias has shape (3,): put it on matrices, such as "
                             "NuclearNorm(0.1).on('weight')"),
    (NuclearNorm(0.1), (3, 2, 2), "NuclearNorm needs a matrix, leaf bias has shape (3, 2, 2)"),
    (GroupL1(0.1), (3,), "GroupL1 needs two axes or more, leaf bias has shape (3,)"),
    (GroupL1(0.1, 2), (3, 4), "GroupL1 has axis 2, leaf bias has shape (3, 4): no such axis"),
    (GroupL1(0.1, (0, 1)), (3, 4), "GroupL1 has axis (0, 1), leaf bias has shape (3, 4): name different axes"),
    (GroupL1(0.1, (0, -2)), (3, 4), "GroupL1 has axis (0, -2), leaf bias has shape (3, 4): name different axes"),
    (TotalVariation(0.1), (3, 4), "TotalVariation needs a vector, leaf bias has shape (3, 4)"),
    (TotalVariation2D(0.1), (3,), "TotalVariation2D needs a matrix, leaf bias has shape (3,)"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("psi", "shape", "text"), REFUSED, ids=[f"{type(p).__name__}-{s}" for p, s, _ in REFUSED]
)
def test_shapes_without_a_meaning_are_refused(psi, shape, text):
    with pytest.raises(InvalidInput) as error:
        psi.check(shape, "leaf bias")
    assert str(error.value).startswith(text)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: ElasticNet(1.0, -2.0), "l2 of ElasticNet = -2.0 must be finite and >= 0"),
        (lambda: GroupL1(1.0, 0.5), "axis of GroupL1 = 0.5 must be an integer or a tuple of integers"),
        (lambda: GroupL1(1.0, ()), "axis of GroupL1 = () must be an integer or a tuple of integers"),
        (lambda: TotalVariation2D(1.0, 0.0), "tolerance of TotalVariation2D = 0.0 must be finite and > 0"),
        (
            lambda: TotalVariation2D(1.0, 1e-3, 0),
            "max_iterations of TotalVariation2D = 0 must be finite and >= 1",
        ),
    ],
    ids=["l2", "axis", "no axis", "tolerance", "iterations"],
)
def test_bad_fields_are_refused(make, text):
    with pytest.raises(InvalidInput, match=r".") as error:
        make()
    assert str(error.value) == text
