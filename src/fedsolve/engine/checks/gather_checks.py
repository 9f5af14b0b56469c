"""Whether a loss reads entries that are not there, tried on the examples with the largest and the smallest integers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from fedsolve.core import trees
from fedsolve.core.errors import InvalidInput
from fedsolve.core.trees import dtype_of
from fedsolve.core.types import Batch, Params
from fedsolve.core.xla.compiler import all_equations
from fedsolve.engine.checks.constants import of_call
from fedsolve.engine.checks.gathers import Reader
from fedsolve.engine.checks.loss_contract import compile_options, steps_of
from fedsolve.engine.compute.clients import on_device

ROWS = 32  # examples that are looked at: a loss is traced with so many
_OF_LARGE = 8  # of which a large model is evaluated on so many
_LARGE = 2**20
_LOOK = 2**17  # examples among which those are looked for, of fields that have several numbers each
_BY_INDEX = {"gather", "dynamic_slice"}  # operations that read by an index
_CHANGES = (0.0, 1.0, -1.0, 30.0, -30.0)  # several, as a loss may be flat on one side


def check_gathers(name: str, loss: Callable[..., Any], model: Params, sets: Mapping[str, Batch]) -> None:
    """A loss must not depend on entries beyond the end of an axis that it looks up by labels or tokens.

    Args:
        name: what the error calls it.
        loss: as `fedsolve.tasks.loss_arguments` has it.
        model: the initial one, as the loss takes it.
        sets: examples by name, as NumPy arrays; None where there are none.

    Raises:
        InvalidInput: it does, with the indices, the length of the axis and what would work.
    """
    put = partial(on_device, dtype=dtype_of(model))
    for where, examples in sets.items():
        if examples is None:
            continue
        alike = jax.tree.map(lambda a: np.broadcast_to(np.zeros((), a.dtype), (ROWS, *a.shape[1:])), examples)
        program = of_call.trace(loss, model, jax.eval_shape(put, alike)).jaxpr
        if not any(e.primitive.name in _BY_INDEX for e in all_equations(program)):
            continue
        sizes, in_loops = _gathers(program, len(jax.tree.leaves(model)))
        if not sizes and not in_loops:
            continue
        rows = _telling(examples)
        reads = jax.device_get(_of_reads()(loss, model, put(_of(examples, rows))))
        ends = [(*read, size) for read, size in zip(reads, sizes, strict=True)]
        beyond = [(low, high, size) for low, high, size in ends if low < 0 or high >= size]
        few = put(_of(examples, rows if trees.size(model) <= _LARGE else rows[:_OF_LARGE]))
        if (beyond or in_loops) and _matters(loss, model, few):
            raise InvalidInput(f"{name} {_words(beyond)} {where}: {_REMEDY}")


_REMEDY = (
    "JAX gives another entry in place of one that is not there, or NaN; number labels and tokens from 0, and where an "
    "example is to count for nothing, mask its value (jnp.where) or clip its index (jnp.clip)"
)


def _words(beyond: list[tuple[int, int, int]]) -> str:
    if not beyond:
        return "looks up entries beyond the end of an axis in a loop, by integers of"
    low, high, size = beyond[0]
    return f"looks up entries {low} to {high} of an axis of {size} by integers of"


def _gathers(program: Any, leaves: int) -> tuple[list[int], bool]:
    """The lengths of the axes that a program reads by integers of its examples, and whether loops of it read others."""
    reader = Reader(0.0)
    jax.eval_shape(lambda *a: reader.run(program, a[:leaves], a[leaves:]), *program.in_avals)
    return [read.size for read in reader.reads], reader.in_loops


@cache
def _of_reads() -> Any:
    """The least and the largest index of each gather of a loss; what else it computes is left out when compiled."""

    def reads(loss: Callable[..., Any], model: Params, rows: Batch) -> list[tuple[Array, Array]]:
        reader = Reader(0.0)
        reader.run(of_call.trace(loss, model, rows).jaxpr, jax.tree.leaves(model), jax.tree.leaves(rows))
        return [(read.low, read.high) for read in reader.reads]

    return jax.jit(reads, static_argnums=0, compiler_options=compile_options())


def _matters(loss: Callable[..., Any], model: Params, rows: Batch) -> bool:
    """Whether a loss changes with what is read beyond the end, at models around the initial one and at itself."""
    steps = steps_of(jax.tree.map(np.asarray, model))
    values = np.asarray(_of_changes()(loss, model, steps, rows), np.float64)
    return not np.array_equal(values, np.broadcast_to(values[:, :1], values.shape), equal_nan=True)


@cache
def _of_changes() -> Any:
    """A loss at two models, with each of `_CHANGES`."""

    def values(loss: Callable[..., Any], model: Params, steps: Params, rows: Batch) -> Array:
        program = of_call.trace(loss, model, rows).jaxpr

        def changed(sign: Array) -> Array:
            at = jax.tree.map(lambda p, d: p + sign.astype(p.dtype) * d, model, steps)

            def value(change: Array) -> Array:
                return Reader(change).run(program, jax.tree.leaves(at), jax.tree.leaves(rows))[0]

            return lax.map(value, jnp.asarray(_CHANGES))

        return lax.map(changed, jnp.asarray([1.0, 0.0]))

    return jax.jit(values, static_argnums=0, compiler_options=compile_options())


def _telling(examples: Batch) -> np.ndarray:
    """The rows with the largest and the smallest integers of each field, and with every label as far as there is room.

    A row may be told by another field to count for nothing: of each extreme the first and the last row are there.
    """
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


def _of(examples: Batch, rows: np.ndarray) -> Batch:
    return jax.tree.map(lambda a: np.asarray(a)[rows], examples)
