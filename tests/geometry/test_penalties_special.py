"""What only some penalties promise: conjugates that are balls, long sequences, tolerances, shapes they refuse."""

from __future__ import annotations

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedsolve.core.errors import InvalidInput
from fedsolve.geometry.penalties import L1, ElasticNet, GroupL1, LInf, NuclearNorm
from fedsolve.geometry.variation import TotalVariation, TotalVariation2D


@pytest.fixture(autouse=True)
def _double():
    with jax.enable_x64(True):
        yield


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
