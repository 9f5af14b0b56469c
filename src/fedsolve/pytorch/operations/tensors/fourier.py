"""Fourier transforms, and complex numbers on their way from and to real ones."""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from fedsolve.pytorch.translation.registry import operation

_POWERS = (0.0, -0.5, -1.0)
"""Of the number of entries, by which a transform is multiplied: ATen's codes 0, 1 and 2."""


@operation("aten._fft_c2c.default")
def c2c(x: Array, dim: Sequence[int], normalization: int, forward: bool) -> Array:
    """The transform, or its inverse, along some axes."""
    one = jnp.fft.fft if forward else jnp.fft.ifft
    size = 1
    for axis in dim:
        x, size = one(x, axis=axis, norm="backward" if forward else "forward"), size * x.shape[axis]
    return x * size ** _POWERS[normalization]


@operation("aten._fft_r2c.default")
def r2c(x: Array, dim: Sequence[int], normalization: int, onesided: bool) -> Array:
    """The transform of a real x, of the last axis in `dim` only the frequencies that are not conjugates of others."""
    *others, last = dim
    y = jnp.fft.rfft(x, axis=last) if onesided else jnp.fft.fft(x, axis=last)
    return c2c(y * x.shape[last] ** _POWERS[normalization], others, normalization, True)


@operation("aten._fft_c2r.default")
def c2r(x: Array, dim: Sequence[int], normalization: int, last_dim_size: int) -> Array:
    """The inverse of the one-sided transform, with `last_dim_size` entries along the last axis in `dim`."""
    *others, last = dim
    x = c2c(x, others, normalization, False)
    return jnp.fft.irfft(x, last_dim_size, last, "forward") * last_dim_size ** _POWERS[normalization]


@operation("aten.view_as_real.default")
def view_as_real(x: Array) -> Array:
    """Real and imaginary parts along a new last axis."""
    return jnp.stack([x.real, x.imag], -1)


@operation("aten.view_as_complex.default")
def view_as_complex(x: Array) -> Array:
    """Complex numbers of the pairs along the last axis."""
    return lax.complex(x[..., 0], x[..., 1])


@operation("aten.complex.default")
def complex_of(real: Array, imag: Array) -> Array:
    """Complex numbers of their parts."""
    return lax.complex(*jnp.broadcast_arrays(real, imag))


@operation("aten.polar.default")
def polar(size: Array, angle: Array) -> Array:
    """Complex numbers of their size and angle."""
    return lax.complex(size * jnp.cos(angle), size * jnp.sin(angle))


@operation("aten.angle.default")
def angle(x: Array) -> Array:
    """The angle of complex numbers, in radians."""
    return jnp.angle(x)


@operation("aten._conj.default", "aten.conj_physical.default")
def conj(x: Array) -> Array:
    """The conjugate numbers."""
    return jnp.conj(x)
