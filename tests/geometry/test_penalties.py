"""Every penalty: its prox against an independent solver and by its optimality, its subgradients, its transforms."""

from __future__ import annotations

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedsolve.geometry.groups import GroupL1
from fedsolve.geometry.images import TotalVariation2D
from fedsolve.geometry.matrices import NuclearNorm
from fedsolve.geometry.variation import TotalVariation
from fedsolve.geometry.vectors import L1, ElasticNet, LInf, SquaredL2

# name: penalty of a weight, shapes that it takes, the same psi of weight 1 in cvxpy
TALL, WIDE = (7, 4), (3, 8)
PENALTIES = {
    "l1": (L1, [(9,), TALL], lambda u: cp.sum(cp.abs(u))),
    "squared l2": (SquaredL2, [(9,), TALL], lambda u: cp.sum_squares(u) / 2),
    "elastic net": (lambda a: ElasticNet(a, 0.7 * a), [(9,), TALL],
                    lambda u: cp.sum(cp.abs(u)) + 0.35 * cp.sum_squares(u)),
    "l-infinity": (LInf, [(1,), (9,), TALL], lambda u: cp.max(cp.abs(u))),
    "rows": (GroupL1, [TALL, WIDE], lambda u: cp.sum(cp.norm(u, 2, axis=1))),
    "columns": (lambda a: GroupL1(a, 0), [TALL, WIDE], lambda u: cp.sum(cp.norm(u, 2, axis=0))),
    "nuclear": (NuclearNorm, [TALL, WIDE, (5, 5), (1, 4)], cp.normNuc),
    "variation": (TotalVariation, [(1,), (2,), (12,), (30,)],
                  lambda u: cp.sum(cp.abs(cp.diff(u))) if u.size > 1 else cp.Constant(0)),
    "variation 2d": (lambda a: TotalVariation2D(a, 1e-15, 20000), [TALL, WIDE, (1, 5)],
                     lambda u: sum(cp.sum(cp.abs(d)) for d in (u[1:] - u[:-1], u[:, 1:] - u[:, :-1]) if d.size)),
}  # fmt: skip
CASES = [
    pytest.param(name, shape, id=f"{name}-{shape}") for name, (_, s, _) in PENALTIES.items() for shape in s
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


def prox(name, weight, step, w):
    return np.asarray(_prox(name)(weight, step, jnp.asarray(w)))


_COMPILED: dict = {}


def _prox(name):
    if name not in _COMPILED:
        _COMPILED[name] = jax.jit(lambda weight, step, w: PENALTIES[name][0](weight).prox(w, step))
    return _COMPILED[name]


# the solver is asked for more digits than it may reach; the assertion is what counts
@pytest.mark.filterwarnings("ignore:Solution may be inaccurate:UserWarning")
@pytest.mark.parametrize(("name", "shape"), CASES)
@pytest.mark.parametrize("kind", ["normal", "zeros", "ties"])
def test_prox_is_what_an_independent_solver_finds(name, shape, kind):
    w = point(kind, shape)
    for weight, step in ((0.3, 0.5), (1.1, 1.0)):
        u = cp.Variable(shape)
        objective = step * weight * PENALTIES[name][2](u) + cp.sum_squares(u - w) / 2
        cp.Problem(cp.Minimize(objective)).solve(
            solver="CLARABEL", tol_gap_abs=1e-13, tol_gap_rel=1e-13, tol_feas=1e-12
        )
        assert u.value is not None
        np.testing.assert_allclose(prox(name, weight, step, w), u.value, rtol=0, atol=2e-6)


@pytest.mark.parametrize(("name", "shape"), CASES)
@pytest.mark.parametrize("kind", KINDS)
def test_prox_leaves_a_subgradient(name, shape, kind):
    """(w - p) / step is a subgradient at p: psi(p) + <(w - p) / step, u - p> <= psi(u)."""
    psi, w = PENALTIES[name][0], point(kind, shape)
    size = 1 + np.abs(w).max()
    tolerance = 1e-10 if name != "variation 2d" else 1e-6  # its prox is iterative
    for weight in (0.2, 3.0):
        step = 0.7 * np.abs(w).max() + 0.01
        p = prox(name, weight, step, w)
        near = [p, w, np.zeros(shape), -w] + [point(k, shape, s) * size for k in KINDS for s in (1, 2)]
        near += [p + 0.01 * point("zeros", shape, s) for s in range(3, 9)]
        u = jnp.asarray(np.stack(near))
        values = jax.vmap(psi(weight).value)(u)
        lower = psi(weight).value(jnp.asarray(p)) + jnp.stack([jnp.sum((w - p) / step * (x - p)) for x in u])
        scale = 1 + jnp.abs(values) + size**2
        assert float(jnp.max((lower - values) / scale)) <= tolerance


@pytest.mark.parametrize(("name", "shape"), CASES)
@pytest.mark.parametrize("kind", KINDS)
def test_subgradient_lies_below(name, shape, kind):
    """psi(u) >= psi(w) + <s, u - w>, also where psi has a kink."""
    psi, w = PENALTIES[name][0](0.8), jnp.asarray(point(kind, shape))
    s = psi.subgradient(w)
    assert s.shape == w.shape
    assert s.dtype == w.dtype
    assert np.isfinite(s).all()
    for other in KINDS:
        u = point(other, shape, 1)
        slack = psi.value(u) - psi.value(w) - jnp.sum(s * (u - w))
        assert float(slack) >= -1e-12 * (1 + float(psi.value(u)) + float(psi.value(w)))
    assert not np.asarray(psi.subgradient(jnp.zeros(shape))).any()


@pytest.mark.parametrize(("name", "shape"), CASES)
def test_prox_brings_points_closer(name, shape):
    for seed in range(5):
        a, b = point("normal", shape, seed), point("zeros", shape, seed + 1)
        moved = prox(name, 0.6, 1.5, a) - prox(name, 0.6, 1.5, b)
        slack = 1e-12 if name != "variation 2d" else 1e-6
        assert np.linalg.norm(moved) <= np.linalg.norm(a - b) + slack


@pytest.mark.parametrize(("name", "shape"), CASES)
@pytest.mark.parametrize("kind", KINDS)
def test_prox_of_nothing_is_the_identity(name, shape, kind):
    w = point(kind, shape)
    np.testing.assert_array_equal(prox(name, 2.0, 0.0, w), w)
    np.testing.assert_array_equal(prox(name, 0.0, 2.0, w), w)
    np.testing.assert_allclose(prox(name, 2.0, 1.0, np.zeros(shape)), 0, atol=0)


@pytest.mark.parametrize(("name", "shape"), CASES)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_prox_keeps_type_and_shape_when_compiled_and_batched(name, shape, dtype):
    psi = PENALTIES[name][0]
    if name == "variation 2d":
        psi = lambda a: TotalVariation2D(a, 1e-6)  # noqa: E731 what float32 can reach
    w = jnp.stack([jnp.asarray(point(kind, shape), dtype) for kind in ("normal", "zeros", "ties")])
    weights, steps = jnp.array([0.0, 0.3, 2.0], dtype), jnp.array([1.0, 0.5, 1.0], dtype)
    batched = jax.jit(jax.vmap(lambda a, t, x: psi(a).prox(x, t)))(weights, steps, w)
    assert batched.dtype == dtype
    assert batched.shape == w.shape
    single = jax.jit(lambda a, t, x: psi(a).prox(x, t))
    for i in range(3):
        alone = single(weights[i], steps[i], w[i])
        assert alone.dtype == dtype
        np.testing.assert_allclose(batched[i], alone, atol=20 * float(jnp.finfo(dtype).eps))
    plain = psi(0.3).prox(w[1], 0.5)
    assert plain.dtype == dtype
    assert plain.shape == shape
    np.testing.assert_allclose(plain, batched[1], atol=20 * float(jnp.finfo(dtype).eps))
    assert psi(0.3).subgradient(w[1]).dtype == dtype
    if dtype == jnp.float32 and name != "variation 2d":
        exact = prox(name, 0.3, 0.5, np.asarray(w[1], np.float64))
        np.testing.assert_allclose(batched[1], exact, atol=3e-6)


@pytest.mark.parametrize("name", PENALTIES)
@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf")])
def test_a_bad_weight_is_refused(name, weight):
    with pytest.raises(ValueError, match=r"^weight of \w+ = (-1.0|nan|inf) must be finite and >= 0$"):
        PENALTIES[name][0](weight)
