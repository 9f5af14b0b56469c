"""Every set: its vertices are optimal and feasible, its projections nearest, its violation right, in both types.

The references are cvxpy (CLARABEL) and NumPy; a missing cvxpy skips only the tests that ask it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedsolve import wire
from fedsolve.geometry.balls import Box, L1Ball, L2Ball, LInfBall, LpBall
from fedsolve.geometry.regularizer import ProjectableSet
from fedsolve.geometry.simplex import Polytope, Simplex
from fedsolve.geometry.sparse_sets import GroupL1Ball, KSupportBall
from fedsolve.geometry.spectral import NuclearBall, SpectralBall
from fedsolve.geometry.vectors import L1

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
    Case("box of arrays", lambda: Box(LOW, HIGH), (5,), None, 0, lambda cp, x: [x >= LOW, x <= HIGH], 1),
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
each = pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
each_projectable = pytest.mark.parametrize("case", BALLS, ids=lambda c: c.name)


@pytest.fixture
def x64():
    with jax.enable_x64(True):
        yield


def solve(case: Case, objective: Callable[[Any, Any], Any]) -> np.ndarray:
    cp = pytest.importorskip("cvxpy")
    x = cp.Variable(case.shape)
    tight = dict.fromkeys(("tol_gap_abs", "tol_gap_rel", "tol_feas"), 1e-11)
    problem = cp.Problem(cp.Minimize(objective(cp, x)), case.cvx(cp, x))
    problem.solve(solver="CLARABEL", **tight)
    return np.asarray(x.value)


@each
def test_vertex_minimises_as_cvxpy(case: Case, x64: None) -> None:
    g = np.random.default_rng(0).standard_normal(case.shape)
    best = solve(case, lambda cp, x: cp.sum(cp.multiply(g, x)))
    found = float(jnp.sum(g * case.make().lmo(jnp.asarray(g))))
    assert found == pytest.approx(float((g * best).sum()), abs=1e-6)


@each
def test_vertex_beats_1000_feasible_points(case: Case, x64: None) -> None:
    rng = np.random.default_rng(1)
    points = np.stack([case.inside(rng) for _ in range(1000)]).reshape(1000, -1)
    lmo = jax.jit(case.make().lmo)
    for _ in range(5):
        g = rng.standard_normal(case.shape)
        found = float(jnp.sum(g * lmo(jnp.asarray(g))))
        assert found <= (points @ g.ravel()).min() + 1e-10


@each
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("float64", 1e-10)])
def test_vertex_is_feasible_and_keeps_type(case: Case, dtype: str, tolerance: float, x64: None) -> None:
    psi = case.make()
    rng = np.random.default_rng(2)
    for scale in (1e-6, 1.0, 1e8):
        g = jnp.asarray(scale * rng.standard_normal(case.shape), dtype)
        s = jax.jit(psi.lmo)(g)
        assert s.shape == case.shape
        assert s.dtype == dtype
        assert float(psi.violation(s)) <= tolerance
        assert psi.violation(s).dtype == dtype
        if case.norm is not None:  # by another formula, and not short of the boundary
            assert case.norm(np.asarray(s, float)) == pytest.approx(case.bound, abs=3 * tolerance)


@each
def test_zero_gradient_gives_a_feasible_point(case: Case, x64: None) -> None:
    s = case.make().lmo(jnp.zeros(case.shape))
    assert float(case.make().violation(s)) <= 1e-10


@each
def test_violation_is_zero_inside_and_positive_outside(case: Case, x64: None) -> None:
    rng = np.random.default_rng(3)
    psi = case.make()
    inside = jnp.asarray(np.stack([case.inside(rng) for _ in range(50)]))
    assert float(jax.vmap(psi.violation)(inside).max()) <= 1e-10
    assert bool(psi.contains(inside[0]))
    assert float(psi.value(inside[0])) == 0
    violation = jax.jit(psi.violation)
    for _ in range(20):
        x = 3 * rng.standard_normal(case.shape)
        if case.norm is not None:
            expected = max(case.norm(x) - case.bound, 0)
            assert float(violation(jnp.asarray(x))) == pytest.approx(expected, abs=1e-8)
        else:
            assert float(violation(jnp.asarray(20 + x))) > 1
            assert float(psi.value(jnp.asarray(20 + x))) == np.inf


@each
def test_code_travels_bit_for_bit(case: Case) -> None:
    psi = case.make()
    g = jnp.asarray(np.random.default_rng(4).standard_normal(case.shape), jnp.float32)
    code = psi.vertex(g)
    data = wire.encode(code)
    assert len(data) == wire.size(code) == case.vertex_bytes
    arrived = psi.point(wire.decode(data, code), g)
    assert np.asarray(arrived).tobytes() == np.asarray(psi.point(code, g)).tobytes()


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
    code = make().vertex(g)
    assert len(wire.encode(code)) == wire.size(code) == count
    arrived = make().point(wire.decode(wire.encode(code), code), g)
    assert np.asarray(arrived).tobytes() == np.asarray(make().point(code, g)).tobytes()


@each
def test_nan_shows_in_the_point(case: Case) -> None:
    psi = case.make()
    g = np.random.default_rng(4).standard_normal(case.shape)
    g.flat[1] = np.nan
    code = psi.vertex(jnp.asarray(g, jnp.float32))
    arrived = psi.point(wire.decode(wire.encode(code), code), jnp.asarray(g, jnp.float32))
    corner = isinstance(psi, LInfBall | Box)  # bits cannot say it
    assert bool(jnp.isnan(arrived).any()) == (not corner)
    if isinstance(psi, ProjectableSet):
        assert bool(jnp.isnan(psi.project(jnp.asarray(g, jnp.float32))).any())


@each
def test_vmap_over_gradients_equals_a_loop(case: Case, x64: None) -> None:
    psi = case.make()
    g = jnp.asarray(np.random.default_rng(6).standard_normal((5, *case.shape)))
    np.testing.assert_allclose(jax.vmap(psi.lmo)(g), [psi.lmo(x) for x in g], atol=1e-9)
    violations = [float(psi.violation(5 * x)) for x in g]
    np.testing.assert_allclose(jax.jit(jax.vmap(psi.violation))(5 * g), violations, atol=1e-8)
    if isinstance(psi, ProjectableSet):
        np.testing.assert_allclose(jax.jit(jax.vmap(psi.project))(g), [psi.project(x) for x in g], atol=1e-12)


@each
def test_vmap_over_the_numbers_of_the_set(case: Case, x64: None) -> None:
    psi = case.make()
    factors = jnp.array([1.0, 1.2])  # of every numeric field: the radius, p, the tolerance, the bounds
    several = jax.tree.map(lambda x: jnp.stack([jnp.asarray(x, float) * f for f in factors]), psi)
    g = jnp.asarray(np.random.default_rng(6).standard_normal(case.shape))
    faces = ["lmo", "violation", *(["project"] if isinstance(psi, ProjectableSet) else [])]
    for face in faces:
        together = jax.jit(jax.vmap(lambda s, face=face: getattr(s, face)(3 * g)))(several)
        for i in range(2):
            alone = getattr(jax.tree.map(lambda x, i=i: x[i], several), face)(3 * g)
            np.testing.assert_allclose(together[i], alone, atol=1e-8)


@each_projectable
def test_projection_is_that_of_cvxpy(case: Case, x64: None) -> None:
    w = np.random.default_rng(7).standard_normal(case.shape)
    best = solve(case, lambda cp, x: cp.sum_squares(x - w))
    np.testing.assert_allclose(case.make().project(jnp.asarray(w)), best, atol=2e-6)


@each_projectable
def test_projection_is_feasible_idempotent_and_obtuse(case: Case, x64: None) -> None:
    psi, rng = case.make(), np.random.default_rng(8)
    project, gap, prox = jax.jit(psi.project), jax.jit(psi.gap), jax.jit(psi.prox)
    for w in (jnp.asarray(3 * rng.standard_normal(case.shape)) for _ in range(10)):
        p = project(w)
        assert float(psi.violation(p)) <= 1e-10
        np.testing.assert_allclose(project(p), p, atol=1e-10)
        feasible = np.stack([case.inside(rng) for _ in range(100)])
        angle = ((np.asarray(w) - np.asarray(p)) * (feasible - np.asarray(p))).reshape(100, -1).sum(1)
        assert angle.max() <= 1e-10
        assert float(gap(p, p - w)) <= 1e-9  # the same against the best vertex
        np.testing.assert_allclose(prox(w, 0.0), p, rtol=1e-14, atol=1e-15)


@each_projectable
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_projection_keeps_inside_points_and_types(case: Case, dtype: str, x64: None) -> None:
    psi, rng = case.make(), np.random.default_rng(9)
    project = jax.jit(psi.project)
    exact = not isinstance(psi, Simplex)  # the sum of a simplex point is only right to rounding
    for _ in range(10):
        w = jnp.asarray(case.inside(rng) * (0.999 if exact and case.norm else 1), dtype)
        p = project(w)
        assert p.dtype == dtype
        assert p.shape == case.shape
        np.testing.assert_allclose(p, w, rtol=0, atol=0 if exact else 1e-6)


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
    for w in np.random.default_rng(10).standard_normal((10, 4, 3)):
        np.testing.assert_allclose(make().project(jnp.asarray(w)) + prox(w), w, atol=1e-12)


@pytest.mark.parametrize("case", [c for c in BALLS if c.norm is not None], ids=lambda c: c.name)
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
    np.testing.assert_allclose(case.make().project(jnp.asarray(w)) + x.value, w, atol=5e-6)


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
    assert float(make().violation(jnp.asarray(point, float))) == pytest.approx(violation, abs=1e-9)


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
        np.testing.assert_allclose(L1Ball(radius).project(jnp.asarray(w)), expected, atol=1e-12 * radius)


def test_l1_projection_of_a_million_in_float32() -> None:
    w = jnp.asarray(np.random.default_rng(13).standard_normal(1_000_000), jnp.float32)
    p = np.asarray(jax.jit(L1Ball(1000.0).project)(w), float)
    assert np.abs(p).sum() == pytest.approx(1000, rel=1e-6)
    on = p != 0
    level = np.abs(np.asarray(w, float)[on]) - np.abs(p[on])
    assert np.ptp(level) < 2e-6  # one threshold for all that stay


@pytest.mark.parametrize("size", [1, 1023, 1024, 1025, 5000])
@pytest.mark.parametrize("place", ["first", "last", "tie"])
def test_l1_vertex_is_the_first_largest(size: int, place: str) -> None:
    g = np.full(size, 0.5, np.float32)
    j = 0 if place == "first" else size - 1
    g[j] = -2.0
    if place == "tie":
        g[size // 2] = 2.0
    expected = int(np.argmax(np.abs(g)))
    assert int(L1Ball(1.0).vertex(jnp.asarray(g)).value) == 2 * expected + int(g[expected] > 0)
