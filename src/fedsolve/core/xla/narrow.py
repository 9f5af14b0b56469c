"""Arrays of 16 and 8 bits that a program widens where it uses them, so that no wide copy stays in memory.

XLA computes a conversion once for all its uses: before the loop over local steps, and in a gradient for forward and
backward pass together. All frozen layers would then be in memory in 32 bits beside their narrow form. So a function is
traced once more, after it has been differentiated, and each operation that takes a narrow array converts it by itself,
from bits that depend on the operation's other operand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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

_CALLS = ("jit", "pjit")
_WITH_PROGRAM = ("scan", "checkpoint", "remat2")


@module
class Narrow:
    """An array as it is stored: `values * scale`, or where there is no scale the bits of numbers of the type `half`."""

    values: Any  # int8, or uint16
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
    """`function` of a pytree and further arguments, each `Narrow` in the pytree an array of a type for it."""

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
    late = [v for v in values if isinstance(v, _Late)]
    if not late:
        return None
    name, first, params = equation.primitive.name, values[0], equation.params
    if name in _CALLS:
        return evaluate(params["jaxpr"], values, _widen_late)
    if name in _WITH_PROGRAM:
        return _keep_inside(equation, values)
    if name == "transpose" and first.axes is None:
        return [first._replace(axes=params["permutation"])]
    if name == "convert_element_type":
        return [first._replace(dtype=params["new_dtype"], wide=first.wide or first.dtype)]
    if (
        name == "stack"
        and len(late) == len(values)
        and params["axis"] == 0
        and len({v[1:] for v in late}) == 1
    ):
        parts = zip(*(jax.tree.leaves(v.stored) for v in late), strict=True)
        stored = jax.tree.structure(first.stored).unflatten([jnp.stack(same) for same in parts])
        return [first._replace(stored=stored)] if first.axes is None else None
    if name == "gather" and _takes_rows(params) and first is late[0] and first.axes is None:
        return [_rows(equation, first, values[1])]
    return bind(equation, _in_use(values))


def _in_use(values: list[Any]) -> list[Any]:
    others = [v for v in values if not isinstance(v, _Late) and getattr(v, "size", 0)]
    numbers = [v for v in others if any(jnp.issubdtype(v.dtype, kind) for kind in (np.floating, np.integer))]
    return [v.now(numbers[0] if numbers else None) if isinstance(v, _Late) else v for v in values]


def _takes_rows(params: Mapping[str, Any]) -> bool:
    # as an embedding does
    numbers = params["dimension_numbers"]
    return (
        numbers.collapsed_slice_dims == numbers.start_index_map == (0,) and not numbers.operand_batching_dims
    )


def _rows(equation: JaxprEqn, late: _Late, places: Array) -> Array:
    # the rows of a narrow array, widened; a place outside of it is NaN where the operation has it so

    def of(part: Array, fill: Any) -> Array:
        sizes = (1, *part.shape[1:])
        return bind(
            equation.replace(params={**equation.params, "slice_sizes": sizes, "fill_value": fill}),
            [part, places],
        )[0]

    stored = late.stored
    if stored.scale is not None:
        return late._replace(stored=Narrow(of(stored.values, 0), of(stored.scale, np.nan))).now(None)
    bits = int(np.array(np.nan, stored.half).view(np.uint16))
    return late._replace(stored=Narrow(of(stored.values, bits), None, stored.half)).now(None)


def _keep_inside(equation: JaxprEqn, values: list[Any]) -> list[Any]:
    # a loop, or a part that is computed again, takes narrow arrays and widens them inside
    params, loop = equation.params, equation.primitive.name == "scan"
    consts, carried = (params["num_consts"], params["num_carry"]) if loop else (len(values), 0)
    if any(isinstance(v, _Late) for v in values[consts : consts + carried]):
        values = [*values[:consts], *_in_use(values[consts : consts + carried]), *values[consts + carried :]]
    arrays, form = jax.tree.flatten([v.stored if isinstance(v, _Late) else v for v in values])
    arrays = [x if hasattr(x, "shape") else jnp.asarray(x) for x in arrays]  # a literal
    program = params["jaxpr"]

    def inside(*given: Any) -> list[Any]:
        parts = zip(values, form.unflatten(given), strict=True)
        own = [v._replace(stored=x) if isinstance(v, _Late) else x for v, x in parts]
        return _in_use(evaluate(program, own, _widen_late))

    lengths = [len(jax.tree.leaves(v.stored)) if isinstance(v, _Late) else 1 for v in values]
    first = sum(lengths[:consts]) + carried  # of those of which the loop takes one part after another
    each = [x.shape[1:] if i >= first else x.shape for i, x in enumerate(arrays)]
    new = jax.make_jaxpr(inside)(*map(jax.ShapeDtypeStruct, each, [x.dtype for x in arrays]))
    changed = {"jaxpr": new, "num_consts": sum(lengths[:consts])} if loop else {"jaxpr": new.jaxpr}
    changed |= {"linear": (False,) * len(arrays)} if "linear" in params else {}
    return bind(equation.replace(params={**params, **changed}), arrays)
