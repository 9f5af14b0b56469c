"""Every penalty: its prox against an independent solver and by its optimality, its subgradients, its transforms.

All that is computed of a penalty on a shape is one program a type, over all kinds of points at once.
"""

from __future__ import annotations

from functools import cache
from itertools import chain

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
import pytest

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


@pytest.fixture(autouse=True)
def _double():
    with jax.enable_x64(True):
        yield


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
