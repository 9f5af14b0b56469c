"""Whether all numbers of an array are finite, in a form that XLA neither gets wrong nor computes slowly on a CPU.

XLA drops NaN from a maximum of floats that it vectorises on a CPU (JAX 0.10.2; https://github.com/openxla/xla/issues/21461),
a sum cannot be reordered, and `isfinite(x).all()` is not vectorised.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array


def all_finite(x: Array) -> Array:
    """Whether all entries of an array of floating-point or complex numbers are finite, shape ().

    By the bits without the sign, as integers, whose maximum is exact and vectorised: those of infinity and NaN are the
    largest.
    """
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        return all_finite(jnp.stack([x.real, x.imag]))
    integer = jnp.dtype(f"int{jnp.finfo(x.dtype).bits}")
    bits = lax.bitcast_convert_type(x, integer) & jnp.iinfo(integer).max
    infinity = lax.bitcast_convert_type(jnp.array(jnp.inf, x.dtype), integer)
    return jnp.max(bits) < infinity
