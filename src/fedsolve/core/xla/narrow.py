"""Arrays of 16 and 8 bits that a program widens where it uses them, so that no wide copy stays in memory.

XLA computes a conversion once for all its uses: before the loop over local steps, and for forward and backward pass
together. All frozen layers would be in memory in 32 bits, too. So a function is traced once more, after it has been
differentiated, and each operation converts its narrow operand from bits that depend on its other operand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_batching import custom_vmap
from jax.extend.core import JaxprEqn
from jaxtyping import Array

from fedsolve.core.types import module, static
from fedsolve.core.xla.compiler import bind, evaluate


@module
class Narrow:
    """An array as it is stored: int8 `values * scale`, or without a scale the bits of numbers of the type `half`."""

    values: Any
    scale: Any = None  # with as many axes, all but the first of length 1
    half: str = static(default="")

    @classmethod
    def of_half(cls, array: Any) -> Narrow:
        return cls(lax.bitcast_convert_type(jnp.asarray(array), jnp.uint16), None, str(array.dtype))

    def widened(self, dtype: Any) -> Any:
        if self.scale is None:
            return lax.bitcast_convert_type(self.values, self.half).astype(dtype)
        return self.values.astype(dtype) * self.scale.astype(dtype)


def is_narrow(leaf: Any) -> bool:
    return isinstance(leaf, Narrow)


def with_late_widening(function: Callable[..., Any], dtype: Any) -> Callable[..., Any]:
    """`function` of a pytree and further arguments, which gets each `Narrow` in the pytree as an array of a type."""

    def late(tree: Any, *arguments: Any) -> Any:
        leaves, structure = jax.tree.flatten(tree, is_leaf=is_narrow)
        if not any(map(is_narrow, leaves)):
            return function(tree, *arguments)
        wide = [jax.eval_shape(lambda x=x: x.widened(dtype)) if is_narrow(x) else x for x in leaves]
        given, form = jax.tree.flatten(arguments)
        closed, shape = jax.make_jaxpr(
            lambda wide, given: function(structure.unflatten(wide), *form.unflatten(given)), return_shape=True
        )(wide, given)
        own = [_Late(x, dtype) if is_narrow(x) else x for x in leaves]
        return jax.tree.unflatten(jax.tree.structure(shape), evaluate(closed, [*own, *given], _widen_late))

    return late


class _Late(NamedTuple):
    """An array that is not widened yet: it is to be of a type, and transposed."""

    stored: Narrow
    dtype: Any
    wide: Any = None  # the type between, if another
    axes: tuple[int, ...] | None = None

    def now(self, other: Array | None) -> Array:
        stored = self.stored
        if other is not None:
            zero = _zero(lax.index_in_dim(other.reshape(-1), 0, keepdims=False)).astype(stored.values.dtype)
            stored = Narrow(stored.values ^ zero, stored.scale, stored.half)
        array = stored.widened(self.wide or self.dtype).astype(self.dtype)
        return array if self.axes is None else array.transpose(self.axes)


@custom_vmap
def _zero(number: Array) -> Array:
    # 0, which no compiler of loops knows
    floating = jnp.issubdtype(number.dtype, jnp.floating)
    bits = lax.bitcast_convert_type(number, f"uint{8 * number.dtype.itemsize}") if floating else number
    return (bits & 1) & ((bits + 1) & 1)


@_zero.def_vmap
def _(size: int, batched: list[bool], numbers: Array) -> tuple[Array, bool]:
    return _zero(numbers[0] if batched[0] else numbers), False


def _widen_late(equation: JaxprEqn, values: list[Any]) -> list[Any] | None:
    if not any(isinstance(v, _Late) for v in values):
        return None
    name, first, params = equation.primitive.name, values[0], equation.params
    if name in ("jit", "pjit"):
        return evaluate(params["jaxpr"], values, _widen_late)
    if name in ("scan", "checkpoint", "remat2"):
        return _keep_inside(equation, values)
    if name == "transpose" and first.axes is None:
        return [first._replace(axes=params["permutation"])]
    if name == "convert_element_type":
        return [first._replace(dtype=params["new_dtype"], wide=first.wide or first.dtype)]
    if name == "gather" and isinstance(first, _Late) and first.axes is None:
        places = params["dimension_numbers"]
        if places.collapsed_slice_dims == places.start_index_map == (0,):
            return [_rows(equation, first, values[1])]
    return bind(equation, _in_use(values))


def _in_use(values: list[Any]) -> list[Any]:
    others = [v for v in values if not isinstance(v, _Late) and getattr(v, "size", 0)]
    numbers = [v for v in others if any(jnp.issubdtype(v.dtype, kind) for kind in (np.floating, np.integer))]
    return [v.now(numbers[0] if numbers else None) if isinstance(v, _Late) else v for v in values]


def _rows(equation: JaxprEqn, late: _Late, places: Array) -> Array:
    # the rows of a narrow array, as of an embedding, widened; NaN outside of it where the operation has it so
    def of(part: Array, fill: Any) -> Array:
        params = {**equation.params, "slice_sizes": (1, *part.shape[1:]), "fill_value": fill}
        return bind(equation.replace(params=params), [part, places])[0]

    values, scale, half = late.stored.values, late.stored.scale, late.stored.half
    if scale is not None:
        return late._replace(stored=Narrow(of(values, 0), of(scale, np.nan))).now(None)
    nan = int(np.array(np.nan, half).view(np.uint16))
    return late._replace(stored=Narrow(of(values, nan), None, half)).now(None)


def _keep_inside(equation: JaxprEqn, values: list[Any]) -> list[Any]:
    # a loop, or a part that is computed again, takes narrow arrays and widens them inside
    params, loop = equation.params, equation.primitive.name == "scan"
    consts, carried = (params["num_consts"], params["num_carry"]) if loop else (len(values), 0)
    values = [*values[:consts], *_in_use(values[consts : consts + carried]), *values[consts + carried :]]
    arrays, form = jax.tree.flatten([v.stored if isinstance(v, _Late) else v for v in values])
    arrays = [x if hasattr(x, "shape") else jnp.asarray(x) for x in arrays]  # a literal

    def inside(*given: Any) -> list[Any]:
        parts = zip(values, form.unflatten(given), strict=True)
        own = [v._replace(stored=x) if isinstance(v, _Late) else x for v, x in parts]
        return _in_use(evaluate(params["jaxpr"], own, _widen_late))

    before = len(jax.tree.leaves([v.stored if isinstance(v, _Late) else v for v in values[:consts]]))
    first = before + carried  # of those of which a loop takes one part after another
    each = [x.shape[1:] if i >= first else x.shape for i, x in enumerate(arrays)]
    new = jax.make_jaxpr(inside)(*map(jax.ShapeDtypeStruct, each, [x.dtype for x in arrays]))
    changed = {"jaxpr": new, "num_consts": before} if loop else {"jaxpr": new.jaxpr}
    changed |= {"linear": (False,) * len(arrays)} if "linear" in params else {}
    return bind(equation.replace(params={**params, **changed}), arrays)
