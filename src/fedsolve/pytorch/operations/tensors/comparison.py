"""Comparisons, logic, and choices by them."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array

from fedsolve.pytorch.operations.tensors.promotion import Operand, is_floating, promoted
from fedsolve.pytorch.translation.registry import operation


def _register(names: tuple[str, ...], function: Callable[..., Array], promote: bool = True) -> None:
    def apply(x: Array, other: Operand) -> Array:
        return function(*promoted(x, other)) if promote else function(x, jnp.asarray(other))

    operation(*names)(apply)


for _name, _function in {
    "eq": jnp.equal,
    "ne": jnp.not_equal,
    "lt": jnp.less,
    "le": jnp.less_equal,
    "gt": jnp.greater,
    "ge": jnp.greater_equal,
    "bitwise_and": jnp.bitwise_and,
    "bitwise_or": jnp.bitwise_or,
    "bitwise_xor": jnp.bitwise_xor,
}.items():
    _register((f"aten.{_name}.Tensor", f"aten.{_name}.Scalar"), _function)
for _name, _function in {"and": jnp.logical_and, "or": jnp.logical_or, "xor": jnp.logical_xor}.items():
    _register((f"aten.logical_{_name}.default",), _function, promote=False)


@operation("aten.logical_not.default")
def logical_not(x: Array) -> Array:
    """Whether an entry is 0."""
    return jnp.logical_not(x)


@operation("aten.bitwise_not.default")
def bitwise_not(x: Array) -> Array:
    """Every bit the other one."""
    return jnp.bitwise_not(x)


@operation("aten.isnan.default")
def isnan(x: Array) -> Array:
    """Whether an entry is NaN."""
    return jnp.isnan(x)


@operation("aten.isinf.default")
def isinf(x: Array) -> Array:
    """Whether an entry is infinite."""
    return jnp.isinf(x) if is_floating(x) else jnp.zeros(x.shape, bool)


@operation("aten.where.self")
def where(condition: Array, x: Operand, other: Operand) -> Array:
    """x where a condition holds, else `other`."""
    return jnp.where(condition, *promoted(x, other))
