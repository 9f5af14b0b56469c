"""What a run's model is evaluated on: examples and clients that metrics are of, put on the device, and the metrics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array

from fedsolve.core.errors import InvalidInput
from fedsolve.core.metric_direction import badness
from fedsolve.core.types import Batch, Params, Scalar
from fedsolve.core.xla.compiler import all_equations, compiled
from fedsolve.core.xla.direct import DIRECT
from fedsolve.engine.checks.preflight import check_task
from fedsolve.engine.compute.casting import cast
from fedsolve.engine.compute.clients import Loss, PackedClients, on_device, per_example, shapes_of_two
from fedsolve.engine.compute.sharding import own_devices
from fedsolve.engine.evaluation.averaged_iterates import Iterates
from fedsolve.engine.evaluation.example_metrics import Blocks, EvalClients, Metrics, OnWholeSets, on_all
from fedsolve.engine.placement import DeviceData
from fedsolve.engine.resolve import ResolvedRun
from fedsolve.geometry.diagnostics import Diagnostic
from fedsolve.tasks.losses.weights import nothing_counts

# Evaluating on several devices: each has a part of the examples, and computes their values by itself.
#
# That is faster where a model has convolutions or loops, whose operations XLA computes on one core of a CPU.

_EXAMPLES = "examples"  # the mesh's axis
_OF_ONE_CORE = (DIRECT, "conv_general_dilated", "scan", "while")
"""Operations that XLA computes on one core of a CPU; products use all by themselves."""


@dataclass(frozen=True)
class ShardedExamples:
    """Examples that are evaluated, and leaves of the model that do not train, on several devices in a row."""

    # Each set has one device's rows behind those of the one before; the last rows may be padding.

    mesh: Mesh
    frozen: Params
    sets: dict[str, Batch]

    @classmethod
    def of(cls, mesh: Mesh, frozen: Params, sets: dict[str, Batch]) -> ShardedExamples:
        """The examples of some sets, by name, on this process's devices of a run's mesh."""
        own = Mesh(np.array(own_devices(mesh)), (_EXAMPLES,))
        sharding = NamedSharding(own, P(_EXAMPLES))

        def divided(x: Array) -> Array:
            rows = np.minimum(np.arange(len(x) + -len(x) % own.size), len(x) - 1)
            return jax.device_put(x if len(rows) == len(x) else x[rows], sharding)

        on_each = jax.device_put(frozen, NamedSharding(own, P()))
        return cls(own, on_each, jax.tree.map(divided, sets))

    def values(
        self, metrics: Metrics, names: Iterable[str], last: Params, previous: Params
    ) -> dict[str, dict[str, Array]]:
        """Every metric of both iterates on the examples of some sets, (2, examples and padding, ...), on one device."""
        both = jax.device_put((last, previous), NamedSharding(self.mesh, P()))
        found = _values(metrics, self.mesh, self.frozen, *both, {name: self.sets[name] for name in names})
        return jax.device_put(found, self.mesh.devices.flat[0])


def is_faster_sharded(loss: Loss, model: Params, examples: Batch) -> bool:
    """Whether a model is evaluated faster in parts, by its operations (measured: benchmarks/FINDINGS.md)."""
    # loss: of the model, as a task has it
    program = jax.make_jaxpr(lambda model, rows: per_example(loss, model, rows))
    equations = all_equations(program(model, shapes_of_two(examples)))
    return any(e.primitive.name in _OF_ONE_CORE for e in equations)


@partial(compiled, static_argnums=(0, 1))
def _values(
    metrics: Metrics, mesh: Mesh, frozen: Params, last: Params, previous: Params, sets: dict[str, Batch]
) -> dict[str, dict[str, Array]]:
    def own_rows(frozen: Params, both: Iterates, sets: dict[str, Batch]) -> Any:
        def of(rows: Batch) -> Any:
            return both.values(lambda p: on_all(metrics, frozen, p, rows))

        return {name: of(rows) for name, rows in sets.items()}

    each = jax.shard_map(
        own_rows, mesh=mesh, in_specs=(P(), P(), P(_EXAMPLES)), out_specs=P(None, _EXAMPLES), check_vma=False
    )
    return each(frozen, Iterates(last, previous), sets)


_SAMPLED = "training metrics are of {} clients drawn at random ({} examples)"
_MIXING = "{} is no mean over examples ({}): it is computed on whole sets, and clients have none of their own"
_NEEDS_ALL = {True: "metrics of whole sets", False: "diagnostics"}


@dataclass(frozen=True, kw_only=True)
class EvalSets:
    """What the model of a run is evaluated on, and by which metrics."""

    # Training metrics are of the `training` clients, in blocks where they are not on the device. `owners` are the
    # clients of the validation examples, by number, None if none of them trains; `whole` are metrics of whole sets,
    # `metrics` means over examples. `divided` has the examples on several devices, None where one evaluates all.

    training: EvalClients | Blocks
    test: Any
    validation: Any
    owners: np.ndarray | None
    unseen: EvalClients | None
    metrics: Metrics
    whole: OnWholeSets
    diagnostics: tuple[Diagnostic, ...]
    divided: ShardedExamples | None = None

    @property
    def held_out(self) -> dict[str, Batch]:
        return self.sets | ({} if self.unseen is None else {"unseen": self.unseen.packed.examples})

    @property
    def sets(self) -> dict[str, Batch]:
        """Those that are of no unseen clients."""
        sets = {"validation": self.validation, "test": self.test}
        return {name: examples for name, examples in sets.items() if examples is not None}

    def sharded_over(self, mesh: Mesh, loss: Loss, model: Params) -> Self:
        """The same, with the examples divided among this process's devices of a mesh, where that is faster."""
        if len(own_devices(mesh)) == 1 or not isinstance(self.training, EvalClients):
            return self
        packed = self.training.packed
        if hasattr(loss, "rows_together") or not is_faster_sharded(loss, model, packed.examples):
            return self
        divided = ShardedExamples.of(mesh, packed.frozen, {"train": packed.examples} | self.held_out)
        return replace(self, divided=divided)


def choose_eval_sets(resolved: ResolvedRun, placed: DeviceData) -> tuple[EvalSets, tuple[str, ...]]:
    """What the model is evaluated on, and what is to be said of it."""
    task, packed, population = resolved.task, placed.clients, placed.population
    dtype, frozen = jnp.dtype(resolved.options.dtype), placed.clients.frozen
    test = None if task.test is None else on_device(task.test, dtype, "row {} of the test set".format)
    mixing, notes = check_task(task, placed.params, packed, test)
    remarks = [*notes, *(_MIXING.format(name, seen) for name, seen in mixing.items())]
    whole = OnWholeSets(task.whole, {k: task.metrics[k] for k in mixing})
    diagnostics = cast((*task.diagnostics, *placed.algorithm.diagnostics()), dtype)
    if task.eval_examples is not None and task.eval_examples < task.data.num_examples:
        # whole clients, drawn once: all evaluations of a run are of the same ones
        ids = task.data.draw(task.eval_examples or 1)
        sample = task.data.of(ids)
        remarks.append(_SAMPLED.format(sample.num_clients, sample.num_examples))
        training = EvalClients.of_data(sample, ids, task.loss, dtype, frozen)
    elif population is None:
        training = EvalClients.of(packed, np.arange(task.data.num_clients))
    # these cannot be added up over the blocks in which streamed clients come
    elif whole or diagnostics:
        raise InvalidInput(
            f"task {task.name} is evaluated by {_NEEDS_ALL[bool(whole)]}, which need all examples on the device, and "
            "its clients are streamed: give the task eval_examples, or residency = 'device'"
        )
    else:
        personal = placed.algorithm.traits.personal
        training = Blocks.of(population, state_bytes=placed.state_bytes if personal else 0)
    unseen = task.unseen
    sets = EvalSets(
        training=training,
        test=test,
        validation=None
        if task.validation is None
        else on_device(task.validation, dtype, "row {} of the validation set".format),
        owners=task.validation_clients,
        unseen=None
        if unseen is None
        else EvalClients.of_data(unseen, np.arange(unseen.num_clients), task.loss, dtype, frozen),
        metrics=Metrics(task.loss, tuple((k, f) for k, f in task.metrics.items() if k not in mixing)),
        whole=whole,
        diagnostics=diagnostics,
    )
    return sets, tuple(remarks)


# What the examples' own values make together: means of all, each client's own, and how the clients' are spread.

_AT_ONCE = 2**20
"""Examples that are counted together: sums of more ones are rounded in float32."""
_SUMS_AT_ONCE = 2**24
"""Sums of clients that are held at a time."""


def pooled(function: Any, values: Array, counts: Array | None) -> Array:
    """The mean over examples, or over their parts where these are counted; NaN if there is no part."""
    # function: the loss or metric; one with `of_sums` makes the value of the sums
    # values: the examples' own, shape (examples,), or what each adds, (examples, k)
    # counts: how many parts each example has, shape (examples,); None where they count alike
    # returns shape (); of a function with `columns` (columns,)
    if hasattr(function, "totals"):
        return function.of_sums(sums_of_all(function, values))
    if hasattr(function, "of_sums"):
        return function.of_sums(jnp.sum(values, axis=0))
    if counts is None:
        return jnp.mean(values)
    counts = counts.astype(values.dtype)
    return jnp.sum(jnp.where(counts > 0, values * counts, 0)) / jnp.sum(counts)


def sums_of_all(function: Any, each: Array) -> Array:
    """The sums of a metric of `fedsolve.tasks.metrics` over all examples, shape (width,)."""
    part = jnp.arange(len(each)) // _AT_ONCE
    return jnp.sum(function.totals(each, part, -(-len(each) // _AT_ONCE)), axis=0)


def client_values(
    metrics: Metrics, values: Mapping[str, Array], counts: Mapping[str, Array], packed: PackedClients
) -> tuple[Array, Array]:
    """The clients' own values of every metric, and over how much each is a mean: (clients, columns) both."""
    # values: of every example, as for `pooled`; counts: as `Metrics.counts` gives them
    functions = metrics.all
    plain = [name for name, f in functions.items() if not hasattr(f, "of_sums")]
    columns: dict[str, tuple[Array, Array]] = {}
    if plain:
        each = jnp.stack([values[name] for name in plain], axis=1)
        one = jnp.ones(len(each), each.dtype)
        parts = jnp.stack([counts.get(name, one).astype(each.dtype) for name in plain], axis=1)
        sizes = _totals_by_client(parts, packed)
        means = _totals_by_client(jnp.where(parts > 0, each * parts, 0), packed) / sizes
        columns |= {name: (means[:, i], sizes[:, i]) for i, name in enumerate(plain)}
    for name in functions.keys() - plain:
        found = _of_sums(functions[name], values[name], packed)
        own, totals = (metrics.by_column(name, x.T) for x in found)
        columns |= {column: (own[column], totals[column]) for column in own}
    means, sizes = zip(*(columns[name] for name in metrics.columns), strict=True)
    return jnp.stack(means, axis=1), jnp.stack(sizes, axis=1)


def _totals_by_client(values: Array, packed: PackedClients) -> Array:
    # the sums of each client's examples, (clients, k), of values (examples, k)
    owner = _owners(packed, len(values))
    return jax.ops.segment_sum(values, owner, packed.counts.shape[0], indices_are_sorted=True)


def _owners(packed: PackedClients, rows: int) -> Array:
    # the place of each row's client, shape (rows,)
    return jnp.repeat(jnp.arange(packed.counts.shape[0]), packed.counts, total_repeat_length=rows)


def _of_sums(function: Any, each: Array, packed: PackedClients) -> tuple[Array, Array]:
    # the clients' values from their sums, and over how much each is a mean: 0 where nothing counts
    # both are of shape (clients,), of a function with `columns` (clients, columns)
    if hasattr(function, "totals"):
        values, nothing = _of_totals(function, each, packed)
        return values, jnp.where(nothing, 0, packed.counts.astype(values.dtype)[:, None])
    totals = _totals_by_client(each, packed)
    values = jax.vmap(function.of_sums)(totals)
    size = getattr(function, "size", None)
    sizes = packed.counts.astype(values.dtype) if size is None else jax.vmap(size)(totals)
    return values, jnp.where(nothing_counts(values, totals), 0, sizes)


def _of_totals(function: Any, each: Array, packed: PackedClients) -> tuple[Array, Array]:
    # the columns of each client by a metric of `fedsolve.tasks.metrics`, and where nothing counts: (clients,
    # columns)
    # so many clients at a time that their sums take little memory
    owner, clients = _owners(packed, len(each)), packed.counts.shape[0]
    size = min(clients, max(1, _SUMS_AT_ONCE // function.width))

    def some(start: Scalar) -> tuple[Array, Array]:
        totals = function.totals(each, owner - start, size)  # other clients' examples are dropped
        values = jax.vmap(function.of_sums)(totals)
        return values, nothing_counts(values, totals[:, None])

    if size == clients:
        return some(0)
    blocks = lax.map(some, jnp.arange(0, clients, size))
    values, nothing = (x.reshape(-1, x.shape[-1])[:clients] for x in blocks)
    return values, nothing


def client_percentiles(names: Iterable[str], means: np.ndarray, known: np.ndarray) -> dict[str, float]:
    """Mean, 10th and 90th percentile and worst of the clients' means of every metric."""
    # means: of shape (clients, metrics)
    # known: which of them are means of anything, of that shape; all are NaN where none is
    columns: dict[str, float] = {}
    for name, column, here in zip(names, means.T, known.T, strict=True):
        column = column[here] if here.any() else np.full(1, np.nan)
        with np.errstate(invalid="ignore"):  # infinite losses
            p10, p90 = np.percentile(column, [10, 90])
        worse = badness(name, column)
        worst = np.where(np.isnan(worse), np.nan, column)[worse.argmax()]  # argmax finds a NaN first
        columns |= {
            f"client_{name}_mean": float(column.mean()),
            f"client_{name}_p10": float(p10),
            f"client_{name}_p90": float(p90),
            f"client_{name}_worst": float(worst),
        }
    return columns


def as_part(part: str, columns: dict[str, float]) -> dict[str, float]:
    """Columns `train_NAME` and `client_NAME` of other clients, or of other examples of theirs, as `PART_NAME`."""
    # `PART_NAME` (and `_averaged`) is the mean over all their examples, `PART_NAME_mean`, `_p10`, `_p90` and
    # `_worst` describe their own means
    return {f"{part}_{name.partition('_')[2]}": value for name, value in columns.items()}
