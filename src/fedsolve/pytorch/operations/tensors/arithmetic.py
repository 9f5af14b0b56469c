"""Sums, products, quotients, powers and what else takes two operands."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from fedsolve.core.errors import InvalidInput
from fedsolve.pytorch.operations.tensors.promotion import Operand, is_floating, promoted, promoted_floating
from fedsolve.pytorch.translation.registry import operation


@operation("aten.add.Tensor", "aten.add.Scalar")
def add(x: Array, other: Operand, alpha: float = 1) -> Array:
    """x + alpha other."""
    x, other = promoted(x, other)
    if x.dtype == bool:
        return x | (other & bool(alpha))
    return x + (other if alpha == 1 else _times(other, alpha))


@operation("aten.sub.Tensor", "aten.sub.Scalar")
def sub(x: Array, other: Operand, alpha: float = 1) -> Array:
    """x - alpha other."""
    x, other = promoted(x, other)
    return x - (other if alpha == 1 else _times(other, alpha))


@operation("aten.mul.Tensor", "aten.mul.Scalar")
def mul(x: Array, other: Operand) -> Array:
    """x other."""
    x, other = promoted(x, other)
    return x * other


@operation("aten.div.Tensor", "aten.div.Scalar")
def div(x: Array, other: Operand) -> Array:
    """x / other, floating also for integers."""
    x, other = promoted_floating(x, other)
    return x / other


@operation("aten.div.Tensor_mode", "aten.div.Scalar_mode")
def div_mode(x: Array, other: Operand, *, rounding_mode: str | None = None) -> Array:
    """x / other rounded towards zero (`trunc`), down (`floor`) or not (None); integers stay integers if rounded."""
    if rounding_mode is None:
        return div(x, other)
    x, other = promoted(x, other)
    if rounding_mode == "floor":
        return jnp.floor_divide(x, other)
    return jnp.trunc(x / other) if is_floating(x) else lax.div(*jnp.broadcast_arrays(x, other))


@operation("aten.remainder.Tensor", "aten.remainder.Scalar", "aten.remainder.Scalar_Tensor")
def remainder(x: Operand, other: Operand) -> Array:
    """x - other floor(x / other): the sign of the divisor."""
    return jnp.remainder(*promoted(x, other))


@operation("aten.fmod.Tensor", "aten.fmod.Scalar")
def fmod(x: Array, other: Operand) -> Array:
    """x - other trunc(x / other): the sign of the dividend."""
    return jnp.fmod(*promoted(x, other))


@operation("aten.pow.Tensor_Tensor", "aten.pow.Tensor_Scalar", "aten.pow.Scalar")
def power(x: Operand, exponent: Operand) -> Array:
    """x to a power; integer powers are products, with their exact gradients at 0 and below."""
    plain = isinstance(exponent, int | float) and float(exponent).is_integer()
    base, exponents = promoted(x, exponent)
    if plain and abs(exponent) < 1024:  # pyright: ignore[reportArgumentType]
        return lax.integer_pow(base, int(exponent))  # pyright: ignore[reportArgumentType]
    if exponent == 0.5 if isinstance(exponent, float) else False:
        return jnp.sqrt(base)
    if not is_floating(base):
        return jnp.power(base, exponents)
    zero = exponents == 0  # where PyTorch's gradient is 0 and not 0 times infinity
    return jnp.where(zero, 1, jnp.power(base, jnp.where(zero, 1, exponents)))


@operation("aten.maximum.default")
def maximum(x: Array, other: Array) -> Array:
    """The greater; NaN where either is, equal ones share the gradient."""
    return jnp.maximum(*promoted(x, other))


@operation("aten.minimum.default")
def minimum(x: Array, other: Array) -> Array:
    """The lesser; NaN where either is, equal ones share the gradient."""
    return jnp.minimum(*promoted(x, other))


@operation("aten.atan2.default")
def atan2(x: Array, other: Array) -> Array:
    """The angle of the point (other, x); at (0, 0) the gradient is 0."""
    x, other = promoted_floating(x, other)
    origin = (x == 0) & (other == 0)
    angle = jnp.arctan2(x, jnp.where(origin, 1, other))
    return jnp.where(origin, lax.stop_gradient(jnp.arctan2(x, other)), angle)


@operation("aten.clamp.default", "aten.clamp.Tensor")
def clamp(x: Array, min: Operand | None = None, max: Operand | None = None) -> Array:
    """x between bounds; where it is a bound, the gradient is x's."""
    bounds = [b for b in (min, max) if b is not None]
    x, *rest = promoted(x, *bounds)
    if min is not None:
        low = rest.pop(0)
        x = jnp.where((x >= low) | jnp.isnan(x), x, low)
    if max is not None:
        x = jnp.where((x <= rest[0]) | jnp.isnan(x), x, rest[0])
    return x


def _times(x: Array, alpha: float) -> Array:
    if isinstance(alpha, float) and not is_floating(x):
        raise InvalidInput(f"alpha of integers must be an integer, got {alpha}: make the tensors floating")
    return x * jnp.asarray(alpha, x.dtype)
