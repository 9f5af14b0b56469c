"""Gathers beyond the end of an axis: JAX reads another entry in place of one that is not there, without a word.

A loss that looks up `logits[i, y]` trains on another class where y has none; so does a table of tokens. A loss is
therefore traced, and evaluated with what such a gather gives changed: where its value changes too, it is of entries
that are not there. Where it does not, the loss masks them, which is as it should be.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core
from jaxtyping import Array

from fedsolve.core import trees
from fedsolve.core.errors import InvalidInput
from fedsolve.core.trees import dtype_of
from fedsolve.core.types import Batch, Params
from fedsolve.core.xla.compiler import all_equations
from fedsolve.core.xla.convolutions import bind
from fedsolve.engine.checks.losses import compile_options, of_call, steps_of
from fedsolve.engine.compute.clients import on_device

_CALLS = ("jaxpr", "call_jaxpr", "fun_jaxpr")  # where an operation has the program that it calls
_LOOPS = ("scan", "while", "cond")


@dataclass(frozen=True, eq=False)
class _Value:
    """An intermediate result.

    Attributes:
        array: what it is.
        given: whether it follows from the examples, and not from the model and constants alone.
        below, moved: the value of which it is `x < 0`, or `x + n`: so JAX counts negative indices from the end.
    """

    array: Any
    given: bool = False
    below: _Value | None = None
    moved: _Value | None = None


@dataclass(frozen=True)
class Read:
    """What one gather of a program reads.

    Attributes:
        low, high: its least and its largest index, as the loss has it: negative ones are not counted from the end.
        size: how many entries there are.
    """

    low: Any
    high: Any
    size: int


@dataclass
class Reader:
    """Evaluates a traced loss, its gathers by indices that follow from the examples changed where these are outside.

    Attributes:
        change: what is added to entries that are not there.
        reads: of the gathers outside loops, in the order of the program.
        in_loops: whether there are others.
    """

    change: Any
    reads: list[Read] = field(default_factory=list)
    in_loops: bool = False
    _depth: int = 0

    def run(self, program: core.ClosedJaxpr, model: Sequence[Any], examples: Sequence[Any]) -> list[Any]:
        """The results of a program of a model's leaves and those of some examples."""
        inputs = [*(_Value(a) for a in model), *(_Value(a, given=True) for a in examples)]
        return [v.array for v in self._called(program, inputs)]

    def _called(self, program: Any, given: Sequence[_Value]) -> list[_Value]:
        jaxpr = getattr(program, "jaxpr", program)
        known: dict[Any, _Value] = dict(zip(jaxpr.invars, given, strict=True))
        known |= {v: _Value(c) for v, c in zip(jaxpr.constvars, getattr(program, "consts", ()), strict=True)}

        def read(v: Any) -> _Value:
            return _Value(np.asarray(v.val)) if isinstance(v, core.Literal) else known[v]

        for equation in jaxpr.eqns:
            results = self._results(equation, [read(v) for v in equation.invars])
            known.update(zip(equation.outvars, results, strict=True))
        return [read(v) for v in jaxpr.outvars]

    def _results(self, equation: core.JaxprEqn, inputs: list[_Value]) -> list[_Value]:
        name, arrays = equation.primitive.name, [v.array for v in inputs]
        given = any(v.given for v in inputs)
        if name == "select_n" and (index := _counted_from_the_end(inputs)) is not None:
            return [index]
        if name == "gather" and inputs[1].given and not _on_purpose(equation.params):
            return [_Value(self._gathered(equation, arrays[0], arrays[1]), True)]
        if name == "dynamic_slice" and any(v.given for v in inputs[1:]):
            return [_Value(self._sliced(equation, arrays), True)]
        if name in ("scan", "cond") and given:
            return [_Value(a, True) for a in self._looped(equation, inputs)]
        inside = next((equation.params[key] for key in _CALLS if key in equation.params), None)
        if name not in _LOOPS and isinstance(inside, core.ClosedJaxpr | core.Jaxpr) and _fits(inside, inputs):
            return self._called(inside, inputs)
        results = [_Value(a, given) for a in bind(equation, arrays)]
        if name == "lt" and _is_zero(arrays[1]):
            return [_Value(results[0].array, given, below=inputs[0])]
        return [_Value(results[0].array, given, moved=inputs[0])] if name == "add" else results

    def _gathered(self, equation: core.JaxprEqn, operand: Any, indices: Any) -> Array:
        p = equation.params
        axes, offset = p["dimension_numbers"].start_index_map, p["dimension_numbers"].offset_dims
        last = [operand.shape[a] - p["slice_sizes"][a] for a in axes]
        for k, most in enumerate(last):
            self._note(indices[..., k], most)
        outside = jnp.any((indices < 0) | (indices > np.array(last)), axis=-1)
        entries = lax.gather(
            operand, indices, p["dimension_numbers"], p["slice_sizes"], mode=lax.GatherScatterMode.CLIP
        )
        batch_dims = [d for d in range(entries.ndim) if d not in offset]
        return self._changed(entries, lax.broadcast_in_dim(outside, entries.shape, batch_dims))

    def _sliced(self, equation: core.JaxprEqn, arrays: list[Any]) -> Array:
        """One entry of an axis, as `x[i]` of one index is; a longer slice may lean on the end on purpose."""
        entries = bind(equation, arrays)[0]
        outside = jnp.zeros((), bool)
        for start, size, length in zip(
            arrays[1:], equation.params["slice_sizes"], arrays[0].shape, strict=True
        ):
            if size == 1 and length > 1:
                self._note(start, length - 1)
                outside |= (start < 0) | (start >= length)
        return self._changed(entries, outside)

    def _changed(self, entries: Array, outside: Array) -> Array:
        if entries.dtype == bool:
            return jnp.where(outside & (self.change > 0), ~entries, entries)
        if not jnp.issubdtype(entries.dtype, np.number):  # a random key
            return entries
        more: Any = jnp.asarray(self.change)
        # not one number for all: a normalisation would take it away
        if jnp.issubdtype(entries.dtype, jnp.inexact):
            more = more * jnp.cos(jnp.arange(entries.size)).reshape(entries.shape)
        return jnp.where(outside, entries + more.astype(entries.dtype), entries)

    def _note(self, index: Any, most: int) -> None:
        if self._depth:
            self.in_loops = True
        elif index.size:
            self.reads.append(Read(jnp.min(index), jnp.max(index), most + 1))

    def _looped(self, equation: core.JaxprEqn, inputs: list[_Value]) -> list[Any]:
        """A loop or a branch, its body changed likewise."""
        p, arrays = equation.params, [v.array for v in inputs]
        self._depth += 1
        try:
            if equation.primitive.name == "cond":
                branches = [self._body(branch, [v.given for v in inputs[1:]]) for branch in p["branches"]]
                return list(lax.switch(arrays[0], branches, *arrays[1:]))
            consts, carried = _counts(equation)
            end = consts + carried
            # what is carried follows from the examples after a step
            body = self._body(p["jaxpr"], [v.given or consts <= i < end for i, v in enumerate(inputs)])

            def step(carry: Any, x: Any) -> tuple[Any, Any]:
                results = body(*arrays[:consts], *carry, *x)
                return results[:carried], results[carried:]

            carry, rest = lax.scan(step, arrays[consts:end], arrays[end:], p["length"], p["reverse"])
            return [*carry, *rest]
        finally:
            self._depth -= 1

    def _body(self, program: Any, given: Sequence[bool]) -> Callable[..., list[Any]]:
        def body(*arrays: Any) -> list[Any]:
            values = [_Value(a, g) for a, g in zip(arrays, given, strict=True)]
            return [v.array for v in self._called(program, values)]

        return body


def _counts(scan: core.JaxprEqn) -> tuple[int, int]:
    """How many inputs of a scan are constants, and how many are carried.

    By their axes: what is stacked has one more outside the body than within. (The parameters that say so differ
    between JAX 0.10 and 0.11.)
    """
    body = scan.params["jaxpr"].jaxpr

    def stacks(outside: Sequence[Any], within: Sequence[Any]) -> int:
        return sum(o.aval.ndim > i.aval.ndim for o, i in zip(outside, within, strict=True))

    sliced, stacked = stacks(scan.invars, body.invars), stacks(scan.outvars, body.outvars)
    carried = len(body.outvars) - stacked
    return len(body.invars) - sliced - carried, carried


def _counted_from_the_end(inputs: Sequence[_Value]) -> _Value | None:
    """The index of which a negative one is counted from the end: `where(x < 0, x + n, x)`; None of anything else."""
    if len(inputs) != 3:
        return None
    below, index, moved = inputs
    return index if index.given and below.below is index and moved.moved is index else None


def _on_purpose(params: dict[str, Any]) -> bool:
    """Whether a gather says what it gives for an entry that is not there: the nearest one, or a number."""
    if params["mode"] == lax.GatherScatterMode.FILL_OR_DROP:
        return params["fill_value"] is not None and not np.isnan(params["fill_value"])
    # what vmap makes of x[i] is a clipped gather too, of sorted and unique indices
    return params["mode"] == lax.GatherScatterMode.CLIP and not params["unique_indices"]


def _fits(program: Any, inputs: Sequence[_Value]) -> bool:
    jaxpr = getattr(program, "jaxpr", program)
    return len(jaxpr.invars) == len(inputs) and (jaxpr is not program or not jaxpr.constvars)


def _is_zero(array: Any) -> bool:
    return isinstance(array, np.ndarray | np.generic) and not np.any(array)


# Whether a loss reads entries that are not there, tried on the examples with the largest and the smallest integers.


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
