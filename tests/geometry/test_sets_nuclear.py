"""The leading singular pair: exact on request, whatever the spectrum, the shape and the start."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedsolve.geometry.spectral import NuclearBall, RankOne, fixed_unit, leading_pair

pytestmark = pytest.mark.usefixtures("x64")


def matrix(
    m: int, n: int, spectrum: np.ndarray, seed: int = 0, first: np.ndarray | None = None
) -> np.ndarray:
    """U diag(spectrum) V', with a given first column of V."""
    rng = np.random.default_rng(seed)
    k = min(m, n)
    u = np.linalg.qr(rng.standard_normal((m, k)))[0]
    v = rng.standard_normal((n, k))
    if first is not None:
        v[:, 0] = first
    v = np.linalg.qr(v)[0]
    return (u * spectrum[:k]) @ v.T


SPECTRA = {
    "clustered": np.r_[1 - 1e-9 * np.arange(5), 1 - 1e-5 * np.arange(5), np.linspace(0.9, 0, 90)],
    "all equal": np.ones(100),
    "close pair": np.r_[1, 1 - 1e-4, np.linspace(0.9, 0, 98)],
    "rank one": np.r_[3.0, np.zeros(99)],
    "slow decay": np.linspace(1, 0.99, 100),
    "tiny": 1e-200 * np.linspace(1, 0, 100),
    "huge": 1e200 * np.linspace(1, 0, 100),
}
SHAPES = [(100, 100), (100, 130), (700, 8), (5, 400)]
pair_of = jax.jit(leading_pair)
vertex_of = jax.jit(NuclearBall(1.0, tolerance=1e-8).vertex)


@pytest.mark.full_rows(
    "clustered-(100, 100)", "clustered-(700, 8)", "clustered-(100, 130)", "clustered-(5, 400)"
)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", SPECTRA)
def test_pair_to_1e8_on_request(name: str, shape: tuple[int, int]) -> None:
    g = matrix(*shape, SPECTRA[name])
    pair = pair_of(jnp.asarray(g), tolerance=1e-8, max_products=3000)
    u, v, sigma = np.asarray(pair.u), np.asarray(pair.v), float(pair.sigma)
    best = SPECTRA[name][: min(shape)].max()
    assert u.shape == shape[:1]
    assert v.shape == shape[1:]
    assert np.linalg.norm(u) == pytest.approx(1, abs=1e-12)
    assert np.linalg.norm(v) == pytest.approx(1, abs=1e-12)
    assert (u @ (g / best) @ v) == pytest.approx(1, abs=1e-8)
    assert sigma / best == pytest.approx(1, abs=1e-8)
    assert np.linalg.norm((g / best).T @ u - v) <= 1.1e-8
    assert np.linalg.norm((g / best) @ v - u) <= 1.1e-8


@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (5, 3)], ids=str)
def test_small_matrices(shape: tuple[int, int]) -> None:
    g = np.random.default_rng(3).standard_normal(shape)
    pair = pair_of(jnp.asarray(g), tolerance=1e-12)
    assert float(pair.sigma) == pytest.approx(np.linalg.norm(g, 2), rel=1e-12)


@pytest.mark.full
@pytest.mark.parametrize("shape", [(6, 4), (1, 1)], ids=str)
def test_zero_matrix_gives_some_vertex(shape: tuple[int, int]) -> None:
    ball, zeros = NuclearBall(2.0), jnp.zeros(shape)

    @jax.jit
    def cold_and_warm():
        code = ball.vertex(zeros)
        return ball.point(code, zeros), ball.vertex(zeros, code)

    s, again = cold_and_warm()
    assert np.linalg.norm(s, "nuc") == pytest.approx(2, abs=1e-12)
    assert np.isfinite(np.asarray(again.u)).all()


def test_fixed_start_orthogonal_to_the_leading_vector() -> None:
    start = np.asarray(fixed_unit(100, jnp.float64))
    across = np.random.default_rng(2).standard_normal(100)
    across -= (across @ start) * start
    g = matrix(100, 100, np.r_[1, np.linspace(0.9, 0, 99)], first=across)
    pair = pair_of(jnp.asarray(g), tolerance=1e-10, max_products=1000)
    assert float(pair.sigma) == pytest.approx(1, abs=1e-10)


@pytest.mark.parametrize("second", [0.5, 0.99, 0.9999])
def test_warm_start_at_a_lower_singular_vector_is_left(second: float) -> None:
    g = matrix(100, 100, np.r_[1, second, np.linspace(0.9 * second, 0, 98)])
    u, _, v = np.linalg.svd(g)
    warm = RankOne(jnp.asarray(u[:, 1]), jnp.asarray(v[1]))
    code = vertex_of(jnp.asarray(g), warm)
    assert float(code.u @ g @ code.v) == pytest.approx(-1 if float(code.u @ g @ code.v) < 0 else 1, abs=1e-8)


def test_warm_start_takes_fewer_products_and_one_of_zeros_is_a_cold_one() -> None:
    rng = np.random.default_rng(4)
    g = jnp.asarray(rng.standard_normal((100, 100)))
    near = g + 1e-5 * rng.standard_normal((100, 100))
    cold, old = (pair_of(x, tolerance=1e-6, max_products=1000) for x in (near, g))
    warm = pair_of(near, (old.u, old.v), tolerance=1e-6)
    assert int(warm.products) < int(cold.products)
    assert float(warm.sigma) == pytest.approx(float(cold.sigma), rel=1e-10)
    none = pair_of(g, (jnp.zeros(100), jnp.zeros(100)), tolerance=1e-10)
    assert float(none.sigma) == pytest.approx(np.linalg.norm(g, 2), rel=1e-10)


def test_float32_reaches_its_rounding() -> None:
    g = np.random.default_rng(5).standard_normal((100, 130)).astype(np.float32)
    pair = pair_of(jnp.asarray(g), tolerance=1e-12)
    assert pair.u.dtype == jnp.float32
    assert float(pair.sigma) == pytest.approx(np.linalg.norm(g.astype(float), 2), rel=2e-6)


def test_products_are_bounded() -> None:
    g = jnp.asarray(matrix(100, 100, SPECTRA["slow decay"]))
    assert int(pair_of(g, tolerance=1e-14, max_products=20).products) <= 25


@pytest.mark.full
def test_vmap_of_the_vertex_and_of_its_tolerance() -> None:
    g = jnp.asarray(np.random.default_rng(6).standard_normal((4, 30, 20)))
    s = jax.jit(jax.vmap(lambda g, r, t: NuclearBall(r, t).lmo(g)))(
        g, jnp.arange(1.0, 5.0), jnp.full(4, 1e-10)
    )
    values = -(np.asarray(g) * np.asarray(s)).sum((1, 2)) / np.arange(1, 5)
    np.testing.assert_allclose(values, np.linalg.norm(g, 2, axis=(1, 2)), rtol=1e-9)
