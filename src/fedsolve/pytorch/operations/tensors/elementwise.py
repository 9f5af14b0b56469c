"""Functions of one entry."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.scipy import special
from jaxtyping import Array

from fedsolve.pytorch.operations.tensors.promotion import floating, is_floating
from fedsolve.pytorch.translation.registry import operation


def _register(name: str, function: Callable[[Array], Array]) -> None:
    def apply(x: Array) -> Array:
        return function(floating(x))

    operation(f"aten.{name}.default")(apply)


for _name, _function in {
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
}.items():
    _register(_name, _function)


@operation("aten.abs.default")
def absolute(x: Array) -> Array:
    """|x|; the gradient at 0 is 0."""
    return jnp.where(x == 0, x.real * 0, jnp.abs(x))


@operation("aten.neg.default")
def neg(x: Array) -> Array:
    """-x."""
    return -x


@operation("aten.sign.default")
def sign(x: Array) -> Array:
    """-1, 0 or 1; NaN is 0, as PyTorch has it."""
    return (
        jnp.where(jnp.isnan(x), 0, jnp.sign(x)) if is_floating(x) else jnp.sign(x.astype(int)).astype(x.dtype)
    )


@operation("aten.ceil.default")
def ceil(x: Array) -> Array:
    """Rounded up."""
    return jnp.ceil(x) if is_floating(x) else x


@operation("aten.floor.default")
def floor(x: Array) -> Array:
    """Rounded down."""
    return jnp.floor(x) if is_floating(x) else x


@operation("aten.trunc.default")
def trunc(x: Array) -> Array:
    """Rounded towards 0."""
    return jnp.trunc(x) if is_floating(x) else x


@operation("aten.round.default")
def rounded(x: Array) -> Array:
    """Rounded to the nearest integer, halves to the even one."""
    return jnp.round(x) if is_floating(x) else x


@operation("aten.alias.default", "aten.clone.default", "aten.lift_fresh_copy.default")
def alias(x: Array, *, memory_format: object = None) -> Array:
    """x itself."""
    return x


@operation("aten.detach.default")
def detach(x: Array) -> Array:
    """x without its gradient."""
    return jax.lax.stop_gradient(x)
