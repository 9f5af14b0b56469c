"""Functions of one entry, and of two: arithmetic, comparisons, logic, and choices by them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy import special
from jaxtyping import Array

from fedsolve.core.errors import InvalidInput
from fedsolve.pytorch.operations.operands import (
    Operand,
    Weights,
    along_dim,
    axes_of,
    counted,
    filled,
    floating,
    highest,
    index_dtype,
    is_floating,
    lowest,
    number_of,
    promoted,
    promoted_floating,
    summed_dtype,
)
from fedsolve.pytorch.operations.shapes import dropout
from fedsolve.pytorch.translation.arrays import jax_dtype
from fedsolve.pytorch.translation.registry import operation, operations

operations(
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
    {
        "alias": lambda x: x,
        "bitwise_not": jnp.bitwise_not,
        "clone": lambda x, *, memory_format=None: x,
        "detach": lax.stop_gradient,
        "isinf": lambda x: jnp.isinf(x) if is_floating(x) else jnp.zeros(x.shape, bool),
        "isnan": jnp.isnan,
        "lift_fresh_copy": lambda x: x,
        "logical_and": jnp.logical_and,
        "logical_not": jnp.logical_not,
        "logical_or": jnp.logical_or,
        "logical_xor": jnp.logical_xor,
        "neg": lambda x: -x,
        # NaN is 0, as in PyTorch
        "sign": lambda x: (
            jnp.where(jnp.isnan(x), 0, jnp.sign(x))
            if is_floating(x)
            else jnp.sign(x.astype(int)).astype(x.dtype)
        ),
        "where.self": lambda condition, x, other: jnp.where(condition, *promoted(x, other)),
    }
)
operations(
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
operations({"remainder": jnp.remainder}, "Scalar_Tensor", promoted)
# NaN where either is, equal ones share the gradient
operations({"maximum": jnp.maximum, "minimum": jnp.minimum}, prepare=promoted)
# floating also for integers
operations({"div": lambda x, other: x / other}, "Tensor Scalar", promoted_floating)


def _rounding(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    # integers stay as they are
    return lambda x: function(x) if is_floating(x) else x


# `round` takes halves to the even integer
operations({n: _rounding(getattr(jnp, n)) for n in ("ceil", "floor", "round", "trunc")})


@operation("aten.abs.default")
def absolute(x: Array) -> Array:
    # the gradient at 0 is 0
    return jnp.where(x == 0, x.real * 0, jnp.abs(x))


@operation("aten.add.Tensor", "aten.add.Scalar")
def add(x: Array, other: Operand, alpha: float = 1) -> Array:
    x, other = promoted(x, other)
    if x.dtype == bool:
        return x | (other & bool(alpha))
    return x + (other if alpha == 1 else _times(other, alpha))


@operation("aten.sub.Tensor", "aten.sub.Scalar")
def sub(x: Array, other: Operand, alpha: float = 1) -> Array:
    x, other = promoted(x, other)
    return x - (other if alpha == 1 else _times(other, alpha))


@operation("aten.div.Tensor_mode", "aten.div.Scalar_mode")
def div_mode(x: Array, other: Operand, *, rounding_mode: str | None = None) -> Array:
    # integers stay integers if rounded
    if rounding_mode is None:
        x, other = promoted_floating(x, other)
        return x / other
    x, other = promoted(x, other)
    if rounding_mode == "floor":
        return jnp.floor_divide(x, other)
    return jnp.trunc(x / other) if is_floating(x) else lax.div(*jnp.broadcast_arrays(x, other))


@operation("aten.pow.Tensor_Tensor", "aten.pow.Tensor_Scalar", "aten.pow.Scalar")
def power(x: Operand, exponent: Operand) -> Array:
    # integer powers are products, with their exact gradients at 0 and below
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
    # at (0, 0) the gradient is 0
    x, other = promoted_floating(x, other)
    origin = (x == 0) & (other == 0)
    angle = jnp.arctan2(x, jnp.where(origin, 1, other))
    return jnp.where(origin, lax.stop_gradient(jnp.arctan2(x, other)), angle)


@operation("aten.clamp.default", "aten.clamp.Tensor")
def clamp(x: Array, min: Operand | None = None, max: Operand | None = None) -> Array:
    # at a bound the gradient is x's
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


# Activations of networks, attention, and losses of margins.

operations(
    {
        "elu": lambda x, alpha=1, scale=1, input_scale=1: jnp.where(
            x > 0, x * scale, jnp.expm1(jnp.where(x > 0, 0, x) * input_scale) * (alpha * scale)
        ),
        "gelu": lambda x, *, approximate="none": (
            jax.nn.gelu(x, approximate=True)
            if approximate == "tanh"
            else x * (0.5 * jax.lax.erf(x * (0.5**0.5)) + 0.5)
        ),
        # at x = -3 the gradient is 0, at 3 it is 1
        "hardswish": lambda x: jnp.where(
            x <= -3, jnp.zeros((), x.dtype), jnp.where(x >= 3, x, x * (x + 3) / 6)
        ),
        "leaky_relu": lambda x, negative_slope=0.01: jnp.where(x > 0, x, x * negative_slope),
    }
)


@operation("aten.relu.default")
def relu(x: Array) -> Array:
    # the gradient at 0 is 0
    return jnp.where(x <= 0, jnp.zeros((), x.dtype), x)


@operation("aten.hardtanh.default")
def hardtanh(x: Array, min_val: float = -1, max_val: float = 1) -> Array:
    # at a bound the gradient is 0
    low, high = jnp.asarray(min_val, x.dtype), jnp.asarray(max_val, x.dtype)
    return jnp.where(x <= low, low, jnp.where(x >= high, high, x))


@operation("aten.hardsigmoid.default")
def hardsigmoid(x: Array) -> Array:
    # at x = -3 and 3 the gradient is 0
    low, high = jnp.zeros((), x.dtype), jnp.ones((), x.dtype)
    # bounds of x itself: a compiler may fuse x / 6 + 1/2, which is then not 0 at -3
    return jnp.where(x <= -3, low, jnp.where(x >= 3, high, x / 6 + 0.5))


@operation("aten._softmax.default", mixing=along_dim)
def softmax(x: Array, dim: int, half_to_float: bool = False, *, weights: Weights = None) -> Array:
    x = floating(x.astype(jnp.float32) if half_to_float else x)
    x = filled(x, weights, axes_of(dim, x.ndim), -jnp.inf)
    return jax.nn.softmax(x, dim) if x.ndim else jnp.ones_like(x)


def safe_softmax(x: Array, dim: int) -> Array:
    # 0 along axes that are minus infinity throughout
    empty = jnp.all(x == -jnp.inf, axis=dim, keepdims=True)
    return jnp.where(empty, 0, jax.nn.softmax(jnp.where(empty, 0, x), dim))


@operation("aten._log_softmax.default", mixing=along_dim)
def log_softmax(x: Array, dim: int, half_to_float: bool = False, *, weights: Weights = None) -> Array:
    x = floating(x.astype(jnp.float32) if half_to_float else x)
    if not x.ndim:
        return jnp.zeros_like(x)
    axes = axes_of(dim, x.ndim)
    # what does not count is finite, as its gradient must be
    return filled(jax.nn.log_softmax(filled(x, weights, axes, -jnp.inf), dim), weights, axes, 0)


@operation("aten.scaled_dot_product_attention.default", random=True)
def scaled_dot_product_attention(
    query: Array,
    keys: Array,
    value: Array,
    attn_mask: Array | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
    key: Array | None = None,
) -> Array:
    # (..., length, features). A mask is True where a key counts, or is added to the products; a query without
    # any key gives 0. With `enable_gqa` several query heads share one of keys.
    if enable_gqa:
        shared = query.shape[-3] // keys.shape[-3]
        keys, value = jnp.repeat(keys, shared, -3), jnp.repeat(value, shared, -3)
    factor = float(query.shape[-1]) ** -0.5 if scale is None else scale
    scores = jnp.matmul(query * factor, jnp.swapaxes(keys, -1, -2))
    if is_causal:
        attn_mask = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    if attn_mask is None:
        weights = softmax(scores, -1)
    else:
        scores = jnp.where(attn_mask, scores, -jnp.inf) if attn_mask.dtype == bool else scores + attn_mask
        weights = safe_softmax(scores, -1)
    return jnp.matmul(dropout(weights, dropout_p, True, key=key), value)


_MEAN, _SUM = 1, 2


@operation("aten.multilabel_margin_loss.default")
def multilabel_margin_loss(x: Array, target: Array, reduction: int = _MEAN) -> Array:
    # target (rows, classes): each row names the example's own classes, up to the first negative entry
    rows, named = jnp.atleast_2d(x), jnp.atleast_2d(target)
    classes = rows.shape[1]
    counts = jnp.cumprod(named >= 0, axis=1).astype(bool)  # up to the first negative entry
    own = counts[:, :, None] & (named[:, :, None] == jnp.arange(classes))
    among = jnp.any(own, axis=1)
    at = jnp.take_along_axis(rows, jnp.where(counts, named, 0), axis=1)
    margins = 1 - at[:, :, None] + rows[:, None, :]
    missed = jnp.where(counts[:, :, None] & ~among[:, None, :] & (margins > 0), margins, 0)
    return _reduced(jnp.sum(missed, axis=(1, 2)) / classes, x, reduction)


@operation("aten.multi_margin_loss.default")
def multi_margin_loss(
    x: Array,
    target: Array,
    p: float = 1,
    margin: float = 1,
    weight: Array | None = None,
    reduction: int = _MEAN,
) -> Array:
    # max(0, margin - x[own] + x[other])^p over the classes other than an example's own, over their number
    rows, own = jnp.atleast_2d(x), jnp.atleast_1d(target)
    classes = rows.shape[1]
    margins = margin - jnp.take_along_axis(rows, own[:, None], axis=1) + rows
    missed = jnp.where((own[:, None] != jnp.arange(classes)) & (margins > 0), margins, 0) ** int(p)
    scaled = missed if weight is None else missed * weight[own][:, None]
    return _reduced(jnp.sum(scaled, axis=1) / classes, x, reduction)


def _reduced(each: Array, x: Array, reduction: int) -> Array:
    value = jnp.mean(each) if reduction == _MEAN else jnp.sum(each) if reduction == _SUM else each
    return value.reshape(()) if x.ndim == 1 else value


# Sums, means, extremes and norms along axes.


def _fold(names: Sequence[str], function: Callable[..., Array], neutral: int) -> None:
    # what does not count is `neutral`

    @operation(*names, mixing=along_dim)
    def fold(
        x: Array, dim: Any = None, keepdim: bool = False, *, dtype: Any = None, weights: Weights = None
    ) -> Array:
        axes = axes_of(dim, x.ndim)
        x = filled(x.astype(summed_dtype(x, dtype)), weights, axes, neutral)
        return function(x, axes, keepdims=keepdim)


def _cumulate(name: str, function: Callable[..., Array], neutral: int) -> None:
    # what does not count is `neutral`

    @operation(name, mixing=along_dim)
    def cumulate(x: Array, dim: int, *, dtype: Any = None, weights: Weights = None) -> Array:
        x = filled(x.astype(summed_dtype(x, dtype)), weights, axes_of(dim, x.ndim), neutral)
        return function(x, dim) if x.ndim else x


_fold(["aten.sum.dim_IntList"], jnp.sum, 0)
_fold(["aten.prod.default", "aten.prod.dim_int"], jnp.prod, 1)
_cumulate("aten.cumsum.default", jnp.cumsum, 0)
_cumulate("aten.cumprod.default", jnp.cumprod, 1)


@operation("aten.mean.default", "aten.mean.dim", mixing=along_dim)
def mean(
    x: Array,
    dim: Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: Any = None,
    weights: Weights = None,
) -> Array:
    x = x if dtype is None else x.astype(jax_dtype(dtype))
    axes = axes_of(dim, x.ndim)
    if counted(weights, axes, x.ndim) is None:
        return jnp.mean(x, axes, keepdims=keepdim)
    sums = jnp.sum(filled(x, weights, axes, 0), axes, keepdims=keepdim)
    return sums / jnp.maximum(number_of(x, weights, axes), 1).astype(x.dtype)


def _var(x: Array, dim: Any, correction: float | None, keepdim: bool, weights: Weights) -> Array:
    # over max(n - correction, 0); the correction is 1 where none is given
    axes = axes_of(dim, x.ndim)
    around = jnp.square(filled(x - mean(x, dim, True, weights=weights), weights, axes, 0))
    count, less = number_of(x, weights, axes), 1 if correction is None else correction
    free = max(count - less, 0) if isinstance(count, int) else jnp.maximum(count - less, 0).astype(x.dtype)
    return jnp.sum(around, axes, keepdims=keepdim) / free


def _spread(name: str, unbiased_overloads: Sequence[str], rooted: bool, with_mean: bool) -> None:
    # the variance, or its root (whose gradient at 0 is 0), alone or before the mean

    @operation(f"aten.{name}.correction", mixing=along_dim)
    def by_correction(
        x: Array,
        dim: Any = None,
        *,
        correction: float | None = None,
        keepdim: bool = False,
        weights: Weights = None,
    ) -> Any:
        value = _var(x, dim, correction, keepdim, weights)
        value = _safe_root(value) if rooted else value
        return (value, mean(x, dim, keepdim, weights=weights)) if with_mean else value

    @operation(*(f"aten.{name}.{overload}" for overload in unbiased_overloads), mixing=along_dim)
    def by_unbiased(
        x: Array, dim: Any = None, unbiased: bool = True, keepdim: bool = False, *, weights: Weights = None
    ) -> Any:
        if isinstance(dim, bool):  # the overload of all axes has no `dim`
            dim, unbiased = None, dim
        return by_correction(x, dim, correction=int(unbiased), keepdim=keepdim, weights=weights)


_spread("var", ["dim"], rooted=False, with_mean=False)
_spread("var_mean", [], rooted=False, with_mean=True)
_spread("std", ["default", "dim"], rooted=True, with_mean=False)
_spread("std_mean", ["default", "dim"], rooted=True, with_mean=True)


def _extreme(
    name: str, value: Callable[..., Array], place: Callable[..., Array], bound: Callable[[Array], Any]
) -> None:
    # what does not count is the `bound`

    @operation(f"aten.{name}.default", f"aten.a{name}.default", mixing=along_dim)
    def extreme(x: Array, dim: Any = (), keepdim: bool = False, *, weights: Weights = None) -> Array:
        axes = axes_of(dim, x.ndim)  # equal entries share the gradient
        return value(filled(x, weights, axes, bound(x)), axes, keepdims=keepdim)

    @operation(f"aten.arg{name}.default", mixing=along_dim)
    def where(x: Array, dim: int | None = None, keepdim: bool = False, *, weights: Weights = None) -> Array:
        # the first of equal ones; a NaN is the greatest, and the least
        x = filled(x, weights, axes_of(dim, x.ndim), bound(x))
        if x.ndim == 0:
            return jnp.zeros((), index_dtype())
        found = place(x, axis=dim, keepdims=keepdim and dim is not None).astype(index_dtype())
        return found.reshape((1,) * x.ndim) if keepdim and dim is None else found

    @operation(f"aten.{name}.dim", mixing=along_dim)
    def with_place(
        x: Array, dim: int, keepdim: bool = False, *, weights: Weights = None
    ) -> tuple[Array, Array]:
        # the entry at the place alone gets the gradient
        at = where(x, dim, True, weights=weights)
        if x.ndim == 0:
            return x, at
        found = jnp.take_along_axis(x, at, dim)
        return (found, at) if keepdim else (jnp.squeeze(found, dim), jnp.squeeze(at, dim))


_extreme("max", jnp.max, jnp.argmax, lowest)
_extreme("min", jnp.min, jnp.argmin, highest)


@operation("aten.any.default", "aten.any.dim", "aten.any.dims", mixing=along_dim)
def any_of(x: Array, dim: Any = None, keepdim: bool = False, *, weights: Weights = None) -> Array:
    axes = axes_of(dim, x.ndim)
    return jnp.any(filled(x, weights, axes, 0), axes, keepdims=keepdim)


@operation("aten.linalg_vector_norm.default", mixing=along_dim)
def vector_norm(
    x: Array,
    ord: float = 2,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: Any = None,
    weights: Weights = None,
) -> Array:
    # the gradient of a norm that is 0 is 0
    x = x if dtype is None else x.astype(jax_dtype(dtype))
    axes = axes_of(dim, x.ndim)
    x = filled(x, weights, axes, jnp.inf if ord < 0 else 0)
    size = absolute(x)
    if ord == float("inf"):
        return jnp.max(size, axes, keepdims=keepdim)
    if ord == -float("inf"):
        return jnp.min(size, axes, keepdims=keepdim)
    if ord == 0:
        return jnp.sum(x != 0, axes, keepdims=keepdim).astype(x.dtype)
    if ord == 1:
        return jnp.sum(size, axes, keepdims=keepdim)
    if ord == 2:
        return _safe_root(jnp.sum(jnp.square(x), axes, keepdims=keepdim))
    powers = jnp.where(size > 0, jnp.where(size > 0, size, 1) ** ord, 0 if ord > 0 else jnp.inf)
    sums = jnp.sum(powers, axes, keepdims=keepdim)
    plain = (sums > 0) & jnp.isfinite(sums)
    return jnp.where(plain, jnp.where(plain, sums, 1) ** (1 / ord), 0 if ord > 0 else sums * 0)


def _safe_root(x: Array) -> Array:
    # the gradient at 0 is 0
    zero = x == 0
    return jnp.where(zero, 0, jnp.sqrt(jnp.where(zero, 1, x))) if is_floating(x) else jnp.sqrt(x)
