"""The root finder behind FedDuA's step: any increasing h with h(0) = 0, steep, flat, overflowing or
bounded.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsolve.geometry.numerics import FOUND, UNBOUNDED, UNRESOLVED, solve_increasing

# h and its inverse in NumPy, written in a way that loses no digits
FUNCTIONS = {
    "linear": (lambda x, a: a * x, lambda y, a: y / a),
    "cubic": (lambda x, a: a * x**3, lambda y, a: np.cbrt(y / a)),
    "root": (lambda x, a: a * x / (1 + jnp.sqrt(1 + a * x)), lambda y, a: y * (2 + y) / a),
    "exponential": (lambda x, a: jnp.expm1(a * x), lambda y, a: np.log1p(y) / a),
    "logarithm": (lambda x, a: jnp.log1p(a * x), lambda y, a: np.expm1(y) / a),
    "both": (lambda x, a: a * jnp.arcsinh(x), lambda y, a: np.sinh(y / a)),
    "mixture": (lambda x, a: a * x + x**7, None),
    "steep late": (lambda x, a: jnp.sinh(a * x) - 0.5 * a * x, None),
}
_SOLVERS: dict = {}


def solve(name, a, target, dtype=jnp.float64):
    h = FUNCTIONS[name][0]
    if (name, dtype) not in _SOLVERS:
        _SOLVERS[name, dtype] = jax.jit(lambda a, y: solve_increasing(lambda x: h(x, a), y))
    return _SOLVERS[name, dtype](jnp.asarray(a, dtype), jnp.asarray(target, dtype))


def solved(h, target):
    """By one program."""
    return jax.jit(lambda y: solve_increasing(h, y))(target)


@pytest.fixture(autouse=True)
def _double():
    with jax.enable_x64(True):
        yield


@pytest.mark.gate("linear", "exponential", "both")
@pytest.mark.parametrize("name", FUNCTIONS)
@settings(max_examples=60, deadline=None)
@given(a=st.floats(-6, 6), y=st.floats(-6, 1))
def test_found_to_rounding(name, a, y):
    """h(eta) = target to 1e-12 of the target, for slopes 1e-6 to 1e6 and targets 1e-6 to 10; so is the
    root.
    """
    with jax.enable_x64(True):
        h, inverse = FUNCTIONS[name]
        a, target = 10.0**a, 10.0**y
        if name == "both":
            a = max(a, target / 100)  # sinh(100) = 1e43 is the largest root tried
        root = solve(name, a, target)
        assert int(root.status) == FOUND
        error = abs(float(h(root.value, a)) - target)
        assert error <= 2e-12 * target
        assert float(root.residual) <= 1e-12
        if inverse is not None:
            assert float(root.value) == pytest.approx(inverse(target, a), rel=1e-9)


def test_the_bracket_may_end_exactly_at_the_root():
    """h(x) = a x: the first guess target / slope is the root up to rounding, on either side of it."""
    for a in np.random.default_rng(0).uniform(1e-3, 1e3, 200):
        root = solve("linear", a, 1.0 / 3.0)
        assert int(root.status) == FOUND
        assert float(root.value) == pytest.approx(1 / (3 * a), rel=1e-12)


def test_overflow_means_too_far():
    """h = exp(50 x) - 1 - 49.999999 x has slope 1e-6 at 0: the first guess 1e6 overflows; the root of 1 is
    .03...
    """
    root = solved(lambda x: jnp.expm1(50 * x) - 49.999999 * x, jnp.asarray(1.0))
    x = float(root.value)
    assert int(root.status) == FOUND
    assert np.expm1(50 * x) - 49.999999 * x == pytest.approx(1.0, rel=1e-11)


def test_not_a_number_means_too_far():
    """h = y^2 / (1 + y), y = exp(2000 x) - 1, is inf/inf at the first guess 1; h = 1 at y = (1 + sqrt 5)/2."""

    def h(x):
        y = jnp.expm1(2000 * x)
        return y**2 / (1 + y)

    root = solved(h, jnp.asarray(1.0))
    assert int(root.status) == FOUND
    assert float(root.value) == pytest.approx(np.log1p((1 + 5**0.5) / 2) / 2000, rel=1e-9)


def test_flat_start():
    """h = x^9 has slope 0 at 0: the search starts at 1 and still finds 10^(1/9) and 1e-3^(1/9)."""
    for y in (10.0, 1e-3):
        root = solved(lambda x: x**9, jnp.asarray(y))
        assert int(root.status) == FOUND
        assert float(root.value) == pytest.approx(y ** (1 / 9), rel=1e-12)


def test_bounded_above():
    """h = 1 - exp(-x) never reaches 2: status 1, a finite step, and the gap 2 - 1 = 1 of 2 as residual."""
    root = solved(lambda x: -jnp.expm1(-x), jnp.asarray(2.0))
    assert int(root.status) == UNBOUNDED
    assert np.isfinite(float(root.value))
    assert float(root.value) > 1
    assert float(root.residual) == pytest.approx(0.5, rel=1e-6)


def test_bounded_above_in_float32():
    """The same in float32, where 200 doublings would overflow."""
    root = solved(lambda x: -jnp.expm1(-x), jnp.asarray(2.0, jnp.float32))
    assert int(root.status) == UNBOUNDED
    assert np.isfinite(float(root.value))


def test_rounding_limits():
    """h = floor(1024 x) / 1024 jumps over .3, from 307/1024 to 308/1024 at x = 308/1024: status 2 and the
    miss.

    The nearer side is 307/1024 = .29980, .00065 of the target away; the bracket ends around the jump.
    """
    root = solved(lambda x: jnp.floor(1024 * x) / 1024, jnp.asarray(0.3))
    assert int(root.status) == UNRESOLVED
    assert float(root.residual) == pytest.approx((0.3 - 307 / 1024) / 0.3, rel=1e-9)
    assert 307 / 1024 <= float(root.value) < 308 / 1024


def test_nothing_to_solve():
    """Target 0: the root is 0, found."""
    root = solved(lambda x: 3 * x, jnp.asarray(0.0))
    assert (float(root.value), float(root.residual), int(root.status)) == (0, 0, FOUND)


def test_float32_is_solved_to_its_own_rounding():
    """Tolerance 4 x 1.2e-7."""
    root = solve("cubic", 2.0, 5.0, jnp.float32)
    assert root.value.dtype == jnp.float32
    assert int(root.status) == FOUND
    assert float(root.value) == pytest.approx(2.5 ** (1 / 3), rel=1e-6)


def test_an_infinite_slope_at_zero():
    """h = sqrt(eta) has an infinite slope at 0, where Newton's first guess is 0: the root of 3 is still 9."""
    with jax.enable_x64(True):
        root = solved(jnp.sqrt, jnp.asarray(3.0))
    assert int(root.status) == 0
    assert float(root.value) == pytest.approx(9.0, rel=1e-11)
