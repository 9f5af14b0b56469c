"""Functions of one entry, and of two: arithmetic, comparisons, logic, and choices by them."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy import special
from jaxtyping import Array

from fedsolve.core.errors import InvalidInput
from fedsolve.pytorch.operations.operands import Operand, is_floating, promoted, promoted_floating
from fedsolve.pytorch.translation.registry import operation, operations

operations(
    __name__,
    {
        "acos": jnp.arccos,
        "acosh": jnp.arccosh,
        "asin": jnp.arcsin,
        "asinh": jnp.arcsinh,
        "atan": jnp.arctan,
        "atanh": jnp.arctanh,
        "cos": jnp.cos,
        "cosh": jnp.cosh,
        "erf": jax.lax.erf,
        "erfc": jax.lax.erfc,
        "exp": jnp.exp,
        "exp2": jnp.exp2,
        "expm1": jnp.expm1,
        "lgamma": special.gammaln,
        "log": jnp.log,
        "log10": jnp.log10,
        "log1p": jnp.log1p,
        "log2": jnp.log2,
        "reciprocal": jnp.reciprocal,
        "rsqrt": jax.lax.rsqrt,
        "sigmoid": jax.nn.sigmoid,
        "sin": jnp.sin,
        "sinc": jnp.sinc,
        "sinh": jnp.sinh,
        "sqrt": jnp.sqrt,
        "tan": jnp.tan,
        "tanh": jnp.tanh,
    },
    prepare=promoted_floating,
)
operations(
    __name__,
    {
        "bitwise_not": jnp.bitwise_not,
        "detach": lax.stop_gradient,
        "isnan": jnp.isnan,
        "logical_and": jnp.logical_and,
        "logical_not": jnp.logical_not,
        "logical_or": jnp.logical_or,
        "logical_xor": jnp.logical_xor,
        "neg": lambda x: -x,
    },
)
operations(
    __name__,
    {
        "bitwise_and": jnp.bitwise_and,
        "bitwise_or": jnp.bitwise_or,
        "bitwise_xor": jnp.bitwise_xor,
        "eq": jnp.equal,
        "fmod": jnp.fmod,  # the sign of the dividend; of `remainder` that of the divisor
        "ge": jnp.greater_equal,
        "gt": jnp.greater,
        "le": jnp.less_equal,
        "lt": jnp.less,
        "mul": lambda x, other: x * other,
        "ne": jnp.not_equal,
        "remainder": jnp.remainder,
    },
    "Tensor Scalar",
    promoted,
)
operations(__name__, {"remainder": jnp.remainder}, "Scalar_Tensor", promoted)
# NaN where either is, equal ones share the gradient
operations(__name__, {"maximum": jnp.maximum, "minimum": jnp.minimum}, prepare=promoted)
# floating also for integers
operations(__name__, {"div": lambda x, other: x / other}, "Tensor Scalar", promoted_floating)


def _rounding(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """Of integers nothing is rounded."""
    return lambda x: function(x) if is_floating(x) else x


# `round` takes halves to the even integer
operations(__name__, {n: _rounding(getattr(jnp, n)) for n in ("ceil", "floor", "round", "trunc")})


@operation("aten.abs.default")
def absolute(x: Array) -> Array:
    """|x|; the gradient at 0 is 0."""
    return jnp.where(x == 0, x.real * 0, jnp.abs(x))


@operation("aten.sign.default")
def sign(x: Array) -> Array:
    """-1, 0 or 1; NaN is 0, as PyTorch has it."""
    return (
        jnp.where(jnp.isnan(x), 0, jnp.sign(x)) if is_floating(x) else jnp.sign(x.astype(int)).astype(x.dtype)
    )


@operation("aten.isinf.default")
def isinf(x: Array) -> Array:
    """Whether an entry is infinite."""
    return jnp.isinf(x) if is_floating(x) else jnp.zeros(x.shape, bool)


@operation("aten.alias.default", "aten.clone.default", "aten.lift_fresh_copy.default")
def alias(x: Array, *, memory_format: object = None) -> Array:
    """x itself."""
    return x


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


@operation("aten.div.Tensor_mode", "aten.div.Scalar_mode")
def div_mode(x: Array, other: Operand, *, rounding_mode: str | None = None) -> Array:
    """x / other rounded towards zero (`trunc`), down (`floor`) or not (None); integers stay integers if rounded."""
    if rounding_mode is None:
        x, other = promoted_floating(x, other)
        return x / other
    x, other = promoted(x, other)
    if rounding_mode == "floor":
        return jnp.floor_divide(x, other)
    return jnp.trunc(x / other) if is_floating(x) else lax.div(*jnp.broadcast_arrays(x, other))


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


@operation("aten.where.self")
def where(condition: Array, x: Operand, other: Operand) -> Array:
    """x where a condition holds, else `other`."""
    return jnp.where(condition, *promoted(x, other))


def _times(x: Array, alpha: float) -> Array:
    if isinstance(alpha, float) and not is_floating(x):
        raise InvalidInput(f"alpha of integers must be an integer, got {alpha}: make the tensors floating")
    return x * jnp.asarray(alpha, x.dtype)
