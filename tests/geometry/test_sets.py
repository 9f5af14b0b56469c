"""Every set: its vertices are optimal and feasible, its projections nearest, its violation right, in both types.

What a set computes in float64 is one program, batched over gradients and points.

The references are cvxpy (CLARABEL) and NumPy; a missing cvxpy skips only the tests that ask it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedsolve import wire
from fedsolve.geometry.balls import Box, L1Ball, L2Ball, LInfBall, LpBall
from fedsolve.geometry.penalties import L1
from fedsolve.geometry.regularizer import ProjectableSet
from fedsolve.geometry.simplex import GroupL1Ball, KSupportBall, Polytope, Simplex
from fedsolve.geometry.spectral import NuclearBall, SpectralBall

CORNERS = np.random.default_rng(5).standard_normal((7, 4, 3))
LOW, HIGH = -np.arange(1.0, 6.0), np.array([0.5, 1.0, 2.0, 0.1, 3.0])


@dataclass(frozen=True)
class Case:
    name: str
    make: Callable[[], Any]
    shape: tuple[int, ...]
    norm: Callable[[np.ndarray], float] | None  # the set is norm <= bound, where it is a ball
    bound: float
    cvx: Callable[[Any, Any], list[Any]]  # constraints on a cvxpy variable of the shape
    vertex_bytes: int  # in float32

    def inside(self, rng: np.random.Generator) -> np.ndarray:
        """A random feasible point, every other one on the boundary."""
        if self.norm is not None:
            x = rng.standard_normal(self.shape) * rng.choice([0, 1], self.shape, p=[0.3, 0.7])
            x = x + 1e-9
            return x * self.bound * rng.choice([1, rng.uniform()]) / self.norm(x)
        if self.name.startswith("box"):
            low, high = (np.broadcast_to(b, self.shape) for b in (self.make().lower, self.make().upper))
            return rng.uniform(low, high)
        if self.name == "simplex":
            return self.bound * rng.dirichlet(np.full(self.shape, 0.3))
        return np.tensordot(rng.dirichlet(np.full(7, 0.3)), CORNERS, 1)


def k_support(x: np.ndarray, k: int) -> float:
    """The k-support norm from its variational form: min over 0 <= t <= 1, sum t <= k of sqrt(sum x^2 / t).

    There t = min(|x| / mu, 1); mu by bisection.
    """
    a = np.abs(x).ravel()
    low, high = 0.0, float(a.sum())
    for _ in range(200):
        mid = (low + high) / 2
        low, high = (mid, high) if np.minimum(a / mid, 1).sum() > k else (low, mid)
    t = np.minimum(a / high, 1)
    return float(np.sqrt((a[t > 0] ** 2 / t[t > 0]).sum()))


def lp(p: float) -> Callable[[np.ndarray], float]:
    return lambda x: float(np.linalg.norm(x.ravel(), p))


def nuclear(x: np.ndarray) -> float:
    return float(np.linalg.norm(x, "nuc"))


def hull(cp: Any, x: Any) -> list[Any]:
    weights = cp.Variable(7, nonneg=True)
    return [cp.sum(weights) == 1, x == sum(weights[i] * CORNERS[i] for i in range(7))]


def k_hull(cp: Any, x: Any) -> list[Any]:
    t = cp.Variable(8)
    cost = sum(cp.quad_over_lin(x[i], t[i]) for i in range(8))
    return [t >= 0, t <= 1, cp.sum(t) <= 3, cost <= 2.0**2]


def p_ball(p: float, bound: float) -> Callable[[Any, Any], list[Any]]:
    return lambda cp, x: [cp.pnorm(cp.vec(x, order="C"), p) <= bound]


CASES = [
    Case("l1", lambda: L1Ball(2.0), (8,), lp(1), 2.0, p_ball(1, 2.0), 1),
    Case("l1 of a matrix", lambda: L1Ball(0.7), (4, 3), lp(1), 0.7, p_ball(1, 0.7), 1),
    Case("l2", lambda: L2Ball(1.5), (4, 3), lp(2), 1.5, p_ball(2, 1.5), 48),
    Case("linf", lambda: LInfBall(0.5), (9,), lp(np.inf), 0.5, lambda cp, x: [cp.abs(x) <= 0.5], 2),
    Case("box", lambda: Box(-1, 2.0), (4, 3), None, 0, lambda cp, x: [x >= -1, x <= 2], 2),
    # copies: JAX 0.10 fails on an array that is a constant of a float32 program and then of a float64 one
    Case("box of arrays", lambda: Box(LOW.copy(), HIGH.copy()), (5,), None, 0, lambda cp, x: [x >= LOW, x <= HIGH], 1),
    Case("l1.5", lambda: LpBall(2.0, 1.5), (6,), lp(1.5), 2.0, p_ball(1.5, 2.0), 24),
    Case("l1.1", lambda: LpBall(1.0, 1.1), (6,), lp(1.1), 1.0, p_ball(1.1, 1.0), 24),
    Case("l3", lambda: LpBall(1.0, 3), (2, 3), lp(3), 1.0, p_ball(3, 1.0), 24),
    Case("simplex", lambda: Simplex(2.5), (6,), None, 2.5, lambda cp, x: [x >= 0, cp.sum(x) == 2.5], 1),
    Case("polytope", lambda: Polytope(CORNERS), (4, 3), None, 0, hull, 1),
    Case("nuclear", lambda: NuclearBall(2.0, 1e-12), (4, 3), nuclear, 2.0,
         lambda cp, x: [cp.normNuc(x) <= 2], 28),
    Case("nuclear wide", lambda: NuclearBall(2.0, 1e-12), (3, 5), nuclear, 2.0,
         lambda cp, x: [cp.normNuc(x) <= 2], 32),
    Case("spectral", lambda: SpectralBall(0.5), (3, 4), lambda x: float(np.linalg.norm(x, 2)), 0.5,
         lambda cp, x: [cp.sigma_max(x) <= 0.5], 48),
    Case("rows", lambda: GroupL1Ball(2.0), (4, 3), lambda x: np.linalg.norm(x, axis=1).sum(), 2.0,
         lambda cp, x: [cp.sum(cp.norm(x, 2, axis=1)) <= 2], 13),
    Case("columns", lambda: GroupL1Ball(2.0, axis=0), (4, 3), lambda x: np.linalg.norm(x, axis=0).sum(), 2.0,
         lambda cp, x: [cp.sum(cp.norm(x, 2, axis=0)) <= 2], 17),
    Case("k-support", lambda: KSupportBall(2.0, 3), (8,), lambda x: k_support(x, 3), 2.0, k_hull, 15),
]  # fmt: skip
BALLS = [c for c in CASES if isinstance(c.make(), ProjectableSet)]
FURTHER = ("l1 of a matrix", "box of arrays", "l1.1", "l3", "nuclear wide", "columns")
"""Sets of which another of the same class is in `make test`."""


def of_each(cases: list[Case]) -> Any:
    marks = {case.name: pytest.mark.full if case.name in FURTHER else () for case in cases}
    return pytest.mark.parametrize("case", [pytest.param(c, id=c.name, marks=marks[c.name]) for c in cases])


each, each_projectable = of_each(CASES), of_each(BALLS)


@dataclass(frozen=True)
class Found:
    """What a set computed in float64: vertices of gradients, violations of points, projections of points."""

    gradients: np.ndarray
    vertices: np.ndarray
    vertex_violations: np.ndarray
    inside: np.ndarray
    inside_violations: np.ndarray
    inside_values: np.ndarray
    outside: np.ndarray
    outside_violations: np.ndarray
    outside_values: np.ndarray
    points: np.ndarray
    projections: tuple[Any, ...]  # of the points, of their projections; violations; gaps; proxes of no step
    by_numbers: dict[str, Any]  # with other numbers in the set: batched, and of the second alone


def face_names(psi: Any) -> list[str]:
    return ["lmo", "violation", *(["project"] if isinstance(psi, ProjectableSet) else [])]


@cache
def found(case: Case) -> Found:
    """All of it by one compiled call, batched over gradients, points and the numbers of the set."""
    with jax.enable_x64(True):
        psi, rng = case.make(), np.random.default_rng(1)
        gradients = rng.standard_normal((9, *case.shape))
        gradients[5] *= 1e-6
        gradients[6] *= 1e8
        gradients[7] = 0
        inside = np.stack([case.inside(rng) for _ in range(30)])
        outside = 3 * rng.standard_normal((20, *case.shape)) + (0 if case.norm else 20)
        exact = 0.999 if case.norm else 1
        points = np.concatenate([3 * rng.standard_normal((10, *case.shape)), exact * inside[:10]])
        factors = np.array([1.0, 1.2])  # of every numeric field: the radius, p, the tolerance, the bounds
        several = jax.tree.map(lambda x: jnp.stack([jnp.asarray(x, float) * f for f in factors]), psi)
        faces = face_names(psi)

        @jax.jit
        def everything(g: Any, inner: Any, outer: Any, w: Any, several: Any) -> Any:
            vertices = jax.vmap(psi.lmo)(g)
            seen = [(jax.vmap(psi.violation)(x), jax.vmap(psi.value)(x)) for x in (inner, outer)]
            projected: Any = ()
            if "project" in faces:
                p = jax.vmap(psi.project)(w)
                proxes = jax.vmap(lambda w: psi.prox(w, 0.0))(w)
                gaps = jax.vmap(psi.gap)(p, p - w)
                projected = p, jax.vmap(psi.project)(p), jax.vmap(psi.violation)(p), gaps, proxes
            second = jax.tree.map(lambda x: x[1], several)
            numbers = {
                face: (
                    jax.vmap(lambda s, face=face: getattr(s, face)(g[8]))(several),
                    getattr(second, face)(g[8]),
                )
                for face in faces
            }
            return vertices, jax.vmap(psi.violation)(vertices), *seen, projected, numbers

        vertices, feasible, inner, outer, projected, numbers = jax.device_get(
            everything(gradients, inside, outside, points, several)
        )
        return Found(
            gradients, vertices, feasible, inside, *inner, outside, *outer, points, projected, numbers
        )


@pytest.mark.full_rows("nuclear")
@each
def test_vertex_minimises_as_cvxpy(case: Case) -> None:
    """The linear function's minimum, and the point nearest to another one, by one call of the solver."""
    of = found(case)
    g, w = of.gradients[0], of.points[0]
    cp = pytest.importorskip("cvxpy")
    x, y = cp.Variable(case.shape), cp.Variable(case.shape)
    objective, constraints = cp.sum(cp.multiply(g, x)), case.cvx(cp, x)
    if of.projections:
        objective, constraints = objective + cp.sum_squares(y - w), constraints + case.cvx(cp, y)
    tight = dict.fromkeys(("tol_gap_abs", "tol_gap_rel", "tol_feas"), 1e-11)
    cp.Problem(cp.Minimize(objective), constraints).solve(solver="CLARABEL", **tight)
    assert float((g * of.vertices[0]).sum()) == pytest.approx(float((g * x.value).sum()), abs=1e-6)
    if of.projections:
        np.testing.assert_allclose(of.projections[0][0], y.value, atol=2e-6)


@each
def test_vertices_are_feasible_and_beat_feasible_points(case: Case) -> None:
    """Of gradients of any scale, and of none."""
    of = found(case)
    assert of.vertex_violations.max() <= 1e-10
    flat = of.gradients.reshape(9, -1)
    best = (flat @ of.inside.reshape(30, -1).T).min(axis=1)
    values = (flat * of.vertices.reshape(9, -1)).sum(axis=1)
    assert (values <= best + 1e-10 * np.abs(flat).max(axis=1).clip(1)).all()
    if case.norm is not None:  # by another formula, and not short of the boundary
        for s in of.vertices[of.gradients.any(axis=tuple(range(1, of.gradients.ndim)))]:
            assert case.norm(s) == pytest.approx(case.bound, abs=3e-10)


@pytest.mark.full_rows("k-support", "nuclear")
@each
def test_violation_is_zero_inside_and_positive_outside(case: Case) -> None:
    of = found(case)
    assert of.inside_violations.max() <= 1e-10
    assert not of.inside_values.any()
    if case.norm is not None:
        expected = [max(case.norm(x) - case.bound, 0) for x in of.outside]
        np.testing.assert_allclose(of.outside_violations, expected, atol=1e-8)
    else:
        assert of.outside_violations.min() > 1
        assert (of.outside_values == np.inf).all()


@pytest.mark.full_rows("polytope", "rows")
@each
def test_numbers_of_the_set_may_be_batched(case: Case) -> None:
    of = found(case)
    for face, (together, alone) in of.by_numbers.items():
        np.testing.assert_allclose(together[1], alone, atol=1e-8, err_msg=face)
    np.testing.assert_allclose(of.by_numbers["lmo"][0][0], of.vertices[8], atol=1e-8)


@each
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_type_and_shape_are_kept(case: Case, dtype: str, x64: None) -> None:
    """With the numbers of the set as they are, and traced; nothing is compiled."""
    psi, w = case.make(), jax.ShapeDtypeStruct(case.shape, dtype)
    for face in face_names(psi):
        for s in (
            jax.eval_shape(getattr(psi, face), w),
            jax.eval_shape(lambda p, w, f=face: getattr(p, f)(w), psi, w),
        ):
            assert s.shape == (() if face == "violation" else case.shape)
            assert s.dtype == dtype


@cache
def single(case: Case) -> tuple[Any, Any]:
    """The code of a vertex and its point, compiled in float32 (alone, as a client has them)."""
    psi = case.make()
    return jax.jit(psi.vertex), jax.jit(psi.point)


@each
def test_code_travels_bit_for_bit(case: Case) -> None:
    vertex, point = single(case)
    g = jnp.asarray(np.random.default_rng(4).standard_normal(case.shape), jnp.float32)
    code = vertex(g)
    data = wire.encode(code)
    assert len(data) == wire.size(code) == case.vertex_bytes
    s = np.asarray(point(code, g))
    assert np.asarray(point(wire.decode(data, code), g)).tobytes() == s.tobytes()
    assert s.dtype == np.float32
    if case.norm is not None:
        assert case.norm(np.asarray(s, float)) == pytest.approx(case.bound, abs=3e-6)


@pytest.mark.full_rows("nuclear")
@pytest.mark.parametrize(
    ("make", "shape", "count"),
    [
        (lambda: L1Ball(1.0), (1_000_000,), 3),
        (lambda: Box(0, 1), (1_000_000,), 125_000),
        (lambda: NuclearBall(1.0, 1e-2), (300, 200), 4 * 500),
        (lambda: GroupL1Ball(1.0), (1000, 50), 2 + 4 * 50),
        (lambda: KSupportBall(1.0, 10), (1_000_000,), 10 * 7),
    ],
    ids=["l1", "box", "nuclear", "group", "k-support"],
)
def test_bytes_of_a_large_vertex(make: Callable[[], Any], shape: tuple[int, ...], count: int) -> None:
    g = jnp.asarray(np.random.default_rng(4).standard_normal(shape), jnp.float32)
    code, point = jax.jit(make().vertex)(g), jax.jit(make().point)
    assert len(wire.encode(code)) == wire.size(code) == count
    arrived = point(wire.decode(wire.encode(code), code), g)
    assert np.asarray(arrived).tobytes() == np.asarray(point(code, g)).tobytes()


@each
def test_nan_shows_in_the_point(case: Case) -> None:
    vertex, point = single(case)
    g = np.random.default_rng(4).standard_normal(case.shape)
    g.flat[1] = np.nan
    code = vertex(jnp.asarray(g, jnp.float32))
    arrived = point(wire.decode(wire.encode(code), code), jnp.asarray(g, jnp.float32))
    psi = case.make()
    corner = isinstance(psi, LInfBall | Box)  # bits cannot say it
    assert bool(jnp.isnan(arrived).any()) == (not corner)
    assert bool(jnp.isnan(arrived).all()) or not psi.spreads_nan
    assert psi.spreads_nan or not isinstance(psi, L1Ball | Simplex | Polytope)


@each_projectable
def test_projection_in_float32(case: Case) -> None:
    """Inside points stay as they are; NaN shows."""
    of, project = found(case), jax.jit(jax.vmap(case.make().project))
    w = np.asarray(of.points, np.float32)
    w[0].flat[1] = np.nan
    p = np.asarray(project(w))
    assert np.isnan(p[0]).any()
    exact = not isinstance(case.make(), Simplex)  # the sum of a simplex point is only right to rounding
    np.testing.assert_allclose(p[10:], w[10:], rtol=0, atol=0 if exact else 1e-6)
    np.testing.assert_allclose(p[1:], of.projections[0][1:], atol=1e-5)


@each_projectable
def test_projection_is_feasible_idempotent_and_obtuse(case: Case) -> None:
    of = found(case)
    p, again, violations, gaps, proxes = of.projections
    assert violations.max() <= 1e-10
    np.testing.assert_allclose(again, p, atol=1e-10)
    apart, feasible = (of.points - p).reshape(20, -1), of.inside.reshape(30, -1)
    for way, own in zip(apart, p.reshape(20, -1), strict=True):
        assert ((feasible - own) @ way).max() <= 1e-10
    assert gaps.max() <= 1e-9  # the same against the best vertex
    np.testing.assert_allclose(proxes, p, rtol=1e-14, atol=1e-15)
    exact = not isinstance(case.make(), Simplex)
    np.testing.assert_allclose(p[10:], of.points[10:], rtol=0, atol=0 if exact else 1e-12)


def threshold(w: np.ndarray, t: float) -> np.ndarray:
    return np.sign(w) * np.maximum(np.abs(w) - t, 0)


def shrunk(w: np.ndarray, r: float, axis: Any = None) -> np.ndarray:
    norm = np.sqrt((w**2).sum(axis=axis, keepdims=True))
    return w * np.maximum(1 - r / norm, 0)


def singular_threshold(w: np.ndarray, r: float) -> np.ndarray:
    u, s, v = np.linalg.svd(w, full_matrices=False)
    return (u * threshold(s, r)) @ v


MOREAU = [
    (lambda: L2Ball(1.5), lambda w: shrunk(w, 1.5)),
    (lambda: LInfBall(0.5), lambda w: threshold(w, 0.5)),
    (lambda: LInfBall(0.5), lambda w: np.asarray(L1(0.5).prox(jnp.asarray(w), 1.0))),
    (lambda: Box(-0.5, 0.5), lambda w: threshold(w, 0.5)),
    (lambda: SpectralBall(0.7), lambda w: singular_threshold(w, 0.7)),
]


@pytest.mark.parametrize("i", range(len(MOREAU)), ids=["l2", "linf", "linf and L1", "box", "spectral"])
def test_moreau_with_the_prox_of_the_support_function(i: int, x64: None) -> None:
    make, prox = MOREAU[i]
    project = jax.jit(make().project)
    for w in np.random.default_rng(10).standard_normal((10, 4, 3)):
        np.testing.assert_allclose(project(w) + prox(w), w, atol=1e-12)


@of_each([c for c in BALLS if c.norm is not None])
def test_moreau_with_the_dual_norm_by_cvxpy(case: Case, x64: None) -> None:
    cp = pytest.importorskip("cvxpy")
    w = 2 * np.random.default_rng(11).standard_normal(case.shape)
    x = cp.Variable(case.shape)
    flat = cp.vec(x, order="C")
    dual = {
        "l1": lambda: cp.norm(flat, "inf"),
        "l2": lambda: cp.norm(flat, 2),
        "linf": lambda: cp.norm(flat, 1),
        "nuclear": lambda: cp.sigma_max(x),
        "spectral": lambda: cp.normNuc(x),
        "rows": lambda: cp.max(cp.norm(x, 2, axis=1)),
        "columns": lambda: cp.max(cp.norm(x, 2, axis=0)),
    }[case.name.split()[0]]()
    tight = dict.fromkeys(("tol_gap_abs", "tol_gap_rel", "tol_feas"), 1e-11)
    cp.Problem(cp.Minimize(case.bound * dual + cp.sum_squares(x - w) / 2)).solve(solver="CLARABEL", **tight)
    np.testing.assert_allclose(jax.jit(case.make().project)(w) + x.value, w, atol=5e-6)


@pytest.mark.parametrize(
    ("make", "point", "violation"),
    [
        (lambda: L1Ball(1.0), [3.0, -4.0], 6.0),
        (lambda: L2Ball(1.0), [3.0, -4.0], 4.0),
        (lambda: LInfBall(1.0), [3.0, -4.0], 3.0),
        (lambda: Box(-1.0, 1.0), [0.0, -4.0], 3.0),
        (lambda: Box([0.0, -1.0], [1.0, 1.0]), [2.0, 0.5], 1.0),
        (lambda: LpBall(1.0, 3.0), [1.0, 1.0], 2 ** (1 / 3) - 1),
        (lambda: Simplex(), [0.5, 1.0], 0.5),
        (lambda: Simplex(), [1.5, -0.5], 0.5),
        (lambda: Polytope([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]]), [1.0, 1.0], 0.5**0.5),
        (lambda: Polytope([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]]), [-3.0, -4.0], 5.0),
        (lambda: Polytope([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]]), [0.0, 0.0], 0.0),
        (lambda: Polytope([[2.0, 1.0]]), [2.0, 3.0], 2.0),
        (lambda: NuclearBall(1.0), [[3.0, 0.0], [0.0, -4.0]], 6.0),
        (lambda: SpectralBall(1.0), [[3.0, 0.0], [0.0, -4.0]], 3.0),
        (lambda: GroupL1Ball(1.0), [[3.0, 4.0], [0.0, 2.0]], 6.0),
        (lambda: GroupL1Ball(1.0, 0), [[3.0, 0.0], [4.0, 2.0]], 6.0),
        (lambda: KSupportBall(1.0, 2), [3.0, 4.0, 0.0], 4.0),
        (lambda: KSupportBall(1.0, 2), [1.0, 1.0, 1.0, 1.0], 8**0.5 - 1),
    ],
    ids=map(str, range(18)),
)  # fmt: skip
def test_violation_of_known_points(make: Callable[[], Any], point: Any, violation: float, x64: None) -> None:
    found = jax.jit(make().violation)(jnp.asarray(point, float))
    assert float(found) == pytest.approx(violation, abs=1e-9)


@pytest.mark.full
def test_l1_projection_of_hard_vectors(x64: None) -> None:
    rng = np.random.default_rng(12)
    vectors = [
        2.0 ** np.arange(60), np.ones(50), np.r_[np.ones(50), 2 * np.ones(50)], np.r_[1e10, rng.normal(size=99)],
        np.r_[0.0, 0.0, 5.0], rng.standard_cauchy(2000), np.array([7.0]),
    ]  # fmt: skip
    for w, radius in itertools.product(vectors, (1e-3, 1.0, 30.0)):
        ordered = np.sort(np.abs(w))[::-1]
        if ordered.sum() <= radius:
            continue
        # Duchi et al. 2008, on the differences to the maximum so that the reference does not round either
        drop = ordered[0] - ordered
        sums = radius + np.cumsum(drop)
        level = (sums / np.arange(1, w.size + 1)).min()
        expected = np.sign(w) * np.maximum(level - (ordered[0] - np.abs(w)), 0)
        np.testing.assert_allclose(_project(radius, w), expected, atol=1e-12 * radius)


_project = jax.jit(lambda radius, w: L1Ball(radius).project(w))


def test_l1_projection_of_a_million_in_float32() -> None:
    w = jnp.asarray(np.random.default_rng(13).standard_normal(1_000_000), jnp.float32)
    p = np.asarray(jax.jit(L1Ball(1000.0).project)(w), float)
    assert np.abs(p).sum() == pytest.approx(1000, rel=1e-6)
    on = p != 0
    level = np.abs(np.asarray(w, float)[on]) - np.abs(p[on])
    assert np.ptp(level) < 2e-6  # one threshold for all that stay


_vertex = jax.jit(lambda g: L1Ball(1.0).vertex(g))


@pytest.mark.parametrize("size", [1, 1023, 1024, 1025])
@pytest.mark.parametrize("place", ["first", "last", "tie"])
def test_l1_vertex_is_the_first_largest(size: int, place: str) -> None:
    g = np.full(size, 0.5, np.float32)
    j = 0 if place == "first" else size - 1
    g[j] = -2.0
    if place == "tie":
        g[size // 2] = 2.0
    expected = int(np.argmax(np.abs(g)))
    assert int(_vertex(g).value) == 2 * expected + int(g[expected] > 0)
