"""Look-ups beyond the end of an axis: JAX reads another entry in place of one that is not there, without a word.

A loss that looks up `logits[i, y]` trains on another class where y has none; so does a table of tokens.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import checkify
from jax.extend import core

from fedsolve.core import trees
from fedsolve.core.errors import InvalidInput
from fedsolve.core.trees import dtype_of
from fedsolve.core.types import Batch, Params
from fedsolve.core.xla.compiler import all_equations, bind, evaluate, rewrite_inside
from fedsolve.engine.checks.losses import built_in, compile_options, of_call, steps_of
from fedsolve.engine.compute.clients import on_device

ROWS = 32  # examples that are looked at: a loss is traced with so many
_ROWS_OF_LARGE_MODEL = 8
_LARGE = 2**20  # parameters of a large model
_LOOK = 2**17  # examples among which extremes are looked for, of fields that have several numbers each
# JAX counts -1 from the end before anything is looked up, so negative integers are lowered beyond any axis; this one is
# as low in int8 and int16, and exact in float32
_BELOW_ALL = -(2**30) + 0x9080
_REMEDY = (
    "JAX gives another entry in place of one that is not there, or NaN; number labels and tokens from 0, and where an "
    "example is to count for nothing, mask its value (jnp.where) or clip its index (jnp.clip)"
)


def check_gathers(
    name: str, loss: Callable[..., Any], model: Params, sets: Mapping[str, Batch]
) -> tuple[str, ...]:
    """A loss must not depend on entries beyond the end of an axis that it looks up by labels or tokens."""
    # it is evaluated on the rows with the smallest and largest integers, by JAX's own checks of indices
    # (`checkify`). Where its value is that of the entry which JAX reads instead, it is refused. Where it
    # differs, the loss may mask such rows, and a note says so, but of fedsolve's own losses, which mask on
    # purpose.
    # loss: as `fedsolve.tasks.loss_arguments` has it; also a metric
    # model: the initial one, as the loss takes it
    # sets: examples by name, as NumPy arrays; None where there are none
    notes = []
    put = partial(on_device, dtype=dtype_of(model))
    for where, examples in sets.items():
        if examples is None:
            continue
        alike = jax.tree.map(lambda a: np.broadcast_to(np.zeros((), a.dtype), (ROWS, *a.shape[1:])), examples)
        program = of_call.trace(loss, model, jax.eval_shape(put, alike)).jaxpr
        if not any(e.primitive.name in ("gather", "dynamic_slice") for e in all_equations(program)):
            continue
        rows = _rows_of_extremes(examples)
        rows = rows if trees.size(model) <= _LARGE else rows[:_ROWS_OF_LARGE_MODEL]
        few = jax.tree.map(lambda a, rows=rows: np.asarray(a)[rows], examples)
        size = _axis_exceeded(loss, model, few, put)
        if size is None:
            continue
        found = _range_beyond(few, size)
        clips = any(_is_on_purpose(e) for e in all_equations(program))
        if not clips and _reads_others(loss, model, few, size, put):
            raise InvalidInput(f"{name} looks up {found} by integers of {where}: {_REMEDY}")
        if not built_in(loss):
            notes.append(
                f"{name} looks up {found} by integers of {where}, and may leave out those that are not there, as by a "
                "mask: where it should not, number labels and tokens from 0"
            )
    return tuple(notes)


def _axis_exceeded(loss: Any, model: Params, rows: Batch, put: Callable[[Batch], Batch]) -> int | None:
    # the length of an axis that the rows' integers exceed, None if they exceed none
    def lowered(a: np.ndarray) -> np.ndarray:
        if not _is_whole(a):
            return a
        lowest = max(np.iinfo(a.dtype).min, _BELOW_ALL) if a.dtype.kind in "iu" else _BELOW_ALL
        return np.where(a < 0, lowest, a).astype(a.dtype)

    index_error = _compiled()[0]
    error = index_error(loss, model, put(jax.tree.map(lowered, rows))).get()
    # what is beyond an end even for zeros does not follow from labels
    if error is None or index_error(loss, model, put(jax.tree.map(np.zeros_like, rows))).get():
        return None
    size = re.search(r"with size (\d+)", error)
    return None if size is None else int(size[1])


def _reads_others(loss: Any, model: Params, rows: Batch, size: int, put: Callable[[Batch], Batch]) -> bool:
    # whether a loss's value is that of the entries which JAX reads instead, or NaN, and not that of any entries
    # at a model around the initial one, since predictions of the initial one are often equal for all classes
    value = _compiled()[1]
    moved = jax.tree.map(lambda p, d: p + d, model, steps_of(jax.tree.map(np.asarray, model)))
    leaves, structure = jax.tree.flatten(rows)
    for i, a in enumerate(leaves):
        if not _is_whole(a):
            continue
        instead = np.clip(np.where(a < 0, a + size, a), 0, size - 1)
        # both ends apart: -100 may be masked where labels beyond the classes are not
        for beyond in (a < 0, a >= size):

            def with_field(
                entries: np.ndarray, i: int = i, a: np.ndarray = a, beyond: np.ndarray = beyond
            ) -> Batch:
                new = np.where(beyond, entries, a).astype(a.dtype)
                return put(structure.unflatten([*leaves[:i], new, *leaves[i + 1 :]]))

            for at in (moved, model) if beyond.any() else ():
                given, same, other = (
                    np.asarray(value(loss, at, with_field(entries)))
                    for entries in (a, instead, (instead + 1) % size)
                )
                is_read = np.array_equal(given, same) or (np.isnan(given).any() and np.isfinite(same).all())
                if is_read and not np.array_equal(same, other, equal_nan=True):
                    return True
    return False


@cache
def _compiled() -> tuple[Any, Any]:
    # (loss, model, rows) -> the first index beyond an end; and (the same) -> the loss's value
    def index_error(loss: Callable[..., Any], model: Params, rows: Batch) -> checkify.Error:
        def program(*leaves: Any) -> list[Any]:
            return evaluate(of_call.trace(loss, model, rows).jaxpr, leaves, _checkable)

        # the loss itself is no result: what no index follows from is not compiled
        return checkify.checkify(program, errors=checkify.index_checks)(*jax.tree.leaves((model, rows)))[0]

    compiled = partial(jax.jit, static_argnums=0, compiler_options=compile_options())
    return compiled(index_error), compiled(lambda loss, *given: of_call(loss, *given))


def _checkable(equation: core.JaxprEqn, values: list[Any]) -> list[Any] | None:
    # JAX 0.10.2 fails in checkify of a checkpoint that looks entries up
    name = equation.primitive.name
    if name == "cond":  # as a repeated block of a translated module
        return bind(rewrite_inside(equation, _checkable), values)
    if name == "gather" or name.startswith("scatter"):
        return None if values[1].shape[-1] else _by_an_index(equation, values)
    if name not in ("remat2", "checkpoint", "jit", "pjit"):
        return None
    return evaluate(equation.params["jaxpr"], values, _checkable)


def _by_an_index(equation: core.JaxprEqn, values: list[Any]) -> list[Any]:
    # checkify fails, too, of a look-up without indices, such as x.at[:].set(y): it gets 0 on a first axis of one entry
    operand, indices, *updates = values
    is_gather = equation.primitive.name == "gather"
    dims = equation.params["dimension_numbers"]
    single, mapped = (
        ("collapsed_slice_dims", "start_index_map")
        if is_gather
        else ("inserted_window_dims", "scatter_dims_to_operand_dims")
    )
    after = {name: tuple(a + 1 for a in getattr(dims, name)) for name in (single, "operand_batching_dims")}
    after[single], after[mapped] = (0, *after[single]), (0,)
    params = equation.params | {"dimension_numbers": dims._replace(**after)}
    if is_gather:
        params["slice_sizes"] = (1, *params["slice_sizes"])
    index = jnp.zeros((*indices.shape[:-1], 1), indices.dtype)
    (result,) = bind(equation.replace(params=params), [operand[None], index, *updates])
    return [result if is_gather else result[0]]


def _is_on_purpose(equation: core.JaxprEqn) -> bool:
    # whether a gather says what it gives for an entry that is not there: the nearest one, or a number
    if equation.primitive.name != "gather":
        return False
    params = equation.params
    if params["mode"] == lax.GatherScatterMode.FILL_OR_DROP:
        return params["fill_value"] is not None and not np.isnan(params["fill_value"])
    # what vmap makes of x[i] is a clipped gather too, of sorted and unique indices
    return params["mode"] == lax.GatherScatterMode.CLIP and not params["unique_indices"]


def _is_whole(a: np.ndarray) -> bool:
    # whether a field may be of labels or tokens
    return a.dtype.kind in "iu" or (a.dtype.kind == "f" and a.ndim == 1 and bool(np.all(a == np.rint(a))))


def _range_beyond(rows: Batch, size: int) -> str:
    # the smallest and the largest integer of a field that exceeds an axis, and its length
    fields = [a for a in jax.tree.leaves(rows) if _is_whole(a)]
    a = next((a for a in fields if a.min() < 0 or a.max() >= size), fields[0])
    return f"entries {int(a.min())} to {int(a.max())} of an axis of {size}"


def _rows_of_extremes(examples: Batch) -> np.ndarray:
    # the rows with the largest and the smallest integers of each field, and with every label as far as there is
    # room
    # a row may be told by another field to count for nothing: of each extreme the first and the last row are
    # there
    leaves = [np.asarray(a) for a in jax.tree.leaves(examples)]
    total = len(leaves[0])
    columns = [a for a in leaves if a.size == total]
    chosen: list[int] = []
    for a in [*columns, *(a[:_LOOK] for a in leaves if a.size != total and a.size and a.dtype.kind in "iu")]:
        flat = a.reshape(len(a), -1)
        for ends, most in ((flat.max(axis=1), np.max), (flat.min(axis=1), np.min)):
            rows = np.flatnonzero(ends == most(ends))
            chosen += [int(rows[0]), int(rows[-1])]
    for column in columns:
        first = np.unique(column[:_LOOK].reshape(-1), return_index=True)[1]
        chosen += first[np.linspace(0, len(first) - 1, min(ROWS, len(first))).astype(int)].tolist()
    return np.resize(list(dict.fromkeys(chosen))[:ROWS] or [0], ROWS)
