"""One client's own examples with a loss written in JAX: the compiled engine's oracle, for this client alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import cache
from types import MappingProxyType
from typing import Any, Literal
from weakref import proxy

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from fedsolve.core.buffers import Buffers, WithBuffers
from fedsolve.core.errors import InvalidInput, check_same, shown
from fedsolve.core.trees import dtype_of, named_leaves
from fedsolve.core.types import Batch, Params, Scalar
from fedsolve.data.federated import FederatedData
from fedsolve.deploy.message import PartMetrics, Sums
from fedsolve.deploy.oracles.node_oracle import LocalProblem
from fedsolve.deploy.signature import float_type, settings
from fedsolve.engine.checks.methods import check_buffers
from fedsolve.engine.checks.preflight import check_loss, check_metrics
from fedsolve.engine.compute.clients import (
    ClientOracle,
    LocalWork,
    Loss,
    PackedClients,
    client_oracle,
    frozen_on_device,
    local_work,
    on_device,
)
from fedsolve.engine.compute.sharding import of_client, works_by_size
from fedsolve.engine.evaluation.evaluate import means_of, sums_of
from fedsolve.engine.evaluation.example_metrics import EvalClients, Metrics, OnWholeSets
from fedsolve.tasks.leaves import refuse_state, with_frozen
from fedsolve.tasks.losses.weights import check_coupled, coupled
from fedsolve.tasks.sum_metrics import SumMetric, on_model
from fedsolve.tasks.task import Task
from fedsolve.tasks.task_checks import check_metrics as check_named
from fedsolve.tasks.task_checks import check_targets

NONE: Mapping[str, Any] = MappingProxyType({})


class JaxOracle(LocalProblem):
    """Oracle of a JAX loss and a client's examples, with the minibatches of the compiled engine in the same order.

    The shuffles follow from the round's key, the client's number, the epoch and the number of examples.

    Args:
        loss: (params, batch) -> mean over the batch, shape (), or each example's own, shape (n,), differentiable by
            JAX; what else it asks for by name it is given (docs/networks.md), with the engine's keys.
        params: a model of the right shapes and types, float32 or float64; its values do not matter.
        examples: the client's examples, a pytree of arrays of shape (examples, ...).
        batch_size: examples of a minibatch, 1 .. examples; None sees all of them in each step.
        epochs: passes over the examples in a round, >= 1; or
        local_steps: local steps of a round, >= 1; exactly one of the two.
        metrics: further ones, name -> (params, batch) -> scalar, as `fs.Task` has them: what the client can measure a
            model by beside `loss`. One that is no mean over examples is computed on all of them in one piece; one of
            `fs.metrics` takes the outputs of `predict`.
        predict: the model's function, (params, inputs) -> outputs; None for that of a loss of `fs.tasks`.
        validation: examples that the client holds out, of the fields of `examples`; None for none.
        microbatches: parts in which a local step works through its examples, as `fs.run` has them.
        matmul_dtype: "bfloat16" for products of local training as `fs.run` has them under that name.
        couples_examples: whether the loss of an example depends on the others of its batch, as `Task.from_arrays` has
            it: the examples are then a multiple of `batch_size`.

    Raises:
        InvalidInput: no example, fields of different lengths, numbers that are not finite, a number of steps
            that is not a positive integer, a loss that mixes examples or draws with a key of its own, a label that
            the loss has no class for, metrics that are no functions, validation examples with other fields.

    >>> problem = JaxOracle(lambda w, x: jnp.mean((x - w) ** 2), jnp.zeros(()), np.arange(4.0), batch_size=2, epochs=3)
    >>> problem.begin(jax.random.key(0), 7, jnp.float32).steps
    6
    """

    def __init__(
        self,
        loss: Loss,
        params: Params,
        examples: Batch,
        *,
        batch_size: int | None,
        epochs: int | None = None,
        local_steps: int | None = None,
        metrics: Mapping[str, Callable[..., Any] | SumMetric] | None = None,
        predict: Callable[..., Any] | None = None,
        validation: Batch | None = None,
        microbatches: int = 1,
        matmul_dtype: Literal["bfloat16"] | None = None,
        couples_examples: bool = False,
    ) -> None:
        model = predict or getattr(loss, "model", None)
        named: Any = on_model({} if metrics is None else metrics, model, "JaxOracle(predict=f)")
        check_named(named, {})
        data = FederatedData.from_clients([examples], ["this client"])
        given: Any = {"batch_size": batch_size, "epochs": epochs, "local_steps": local_steps}
        loss = coupled(couples_examples, loss, batch_size, data.counts)
        work, steps = local_work(data.counts, loss, **given, microbatches=microbatches)
        check_coupled(loss, work.batch_size, data.counts)
        work = _with_products(work, matmul_dtype)
        held = None if validation is None else held_out(validation, data)
        check_targets(loss, lambda key: params, (), data, None, validation=held)
        self._set(params, (), data.examples, work, int(data.counts[0]), int(steps[0]))
        self._measures(named, held)

    @classmethod
    def of_task(
        cls,
        task: Task,
        client: int,
        *,
        params: Params | None = None,
        batch_size: int | None = None,
        epochs: int | None = None,
        local_steps: int | None = None,
        microbatches: int | None = None,
        matmul_dtype: Literal["bfloat16"] | None = None,
    ) -> JaxOracle:
        """The oracle of a client of a task: its training and validation examples and the task's metrics.

        Local work is the task's unless told otherwise, shaped by the whole federation as in `fs.run`, so that numbers
        agree with the compiled engine to the last bit; only this client's examples are put on the device.

        Args:
            task: the task of the whole federation.
            client: its number, 0 .. clients - 1.
            params: the initial model, the server's: leaves that a client keeps to itself (`fs.Personal`, `fs.Ditto`)
                are in no message and begin as they are here; None for those that `task.init` gives for
                `jax.random.key(0)`.
            batch_size: examples of a local step, at least 1; None for the task's.
            epochs: passes over its examples in a round, at least 1; None for the task's.
            local_steps: steps in a round, at least 1, in place of `epochs`.
            microbatches: parts in which a local step works through its examples, at least 1; None for the task's.
            matmul_dtype: as `fs.run` takes it.

        Returns:
            An oracle for `fs.flower.client_app`.

        Raises:
            InvalidInput: no such client, or a number of steps that is not a positive integer.
        """
        counts = task.data.counts
        if not 0 <= client < len(counts):
            raise InvalidInput(
                f"client = {client} must be in 0 .. {len(counts) - 1}, the clients of {task.name}"
            )
        if epochs is None and local_steps is None:
            epochs, local_steps = task.epochs, task.local_steps
        batch_size = task.batch_size if batch_size is None else batch_size
        given: Any = {"batch_size": batch_size, "epochs": epochs, "local_steps": local_steps}
        parts = task.microbatches if microbatches is None else microbatches
        work, steps = local_work(counts, task.loss, **given, microbatches=parts)
        check_coupled(task.loss, work.batch_size, counts)
        work = of_client(works_by_size(work, counts, steps), int(counts[client]))
        work = _with_products(work, matmul_dtype)
        start = task.init(jax.random.key(0)) if params is None else params
        params = jax.tree.map(np.asarray, start)
        new = cls.__new__(cls)
        if task.buffers is not None:
            dtype = np.result_type(*jax.tree.leaves(params))
            first = jax.tree.map(lambda x: np.asarray(x, dtype), Buffers.of(task.buffers))
            model = WithBuffers(with_frozen(params, task.frozen), first)
            check_buffers(task, work, model, task.data.examples)
            new.beside = first
        leaves = jax.tree_util.tree_leaves_with_path(task.frozen)
        new.constants = {jax.tree_util.keystr(path) or "frozen": np.asarray(x) for path, x in leaves}
        new._set(params, task.frozen, task.data.client(client), work, int(counts[client]), int(steps[client]))
        new._measures(task.metrics, client_validation(task, client), task.whole)
        return new

    def _set(
        self, params: Params, frozen: Params, examples: Batch, work: LocalWork, count: int, steps: int
    ) -> None:
        refuse_state(params)
        float_type(params)  # refuses what is no array, and numbers of 16 bits
        self.params, self.num_examples = params, count
        self._examples, self._frozen, self._work, self._steps = examples, frozen, work, steps
        self.constants = {**self.constants, **settings(work.loss, "loss")}
        check_loss("the loss", work.loss, self._start(), examples)
        self._packed: dict[Any, PackedClients] = {}

    def _start(self) -> Any:
        model = with_frozen(self.params, self._frozen)
        return model if self.beside is None else WithBuffers(model, self.beside)

    def _measures(
        self,
        metrics: Mapping[str, Callable[..., Any]],
        validation: Batch | None,
        whole: Mapping[str, Any] = NONE,
    ) -> None:
        own = proxy(self)  # without a cycle, its examples leave memory with the problem
        self._local_metrics = LocalMetrics(
            self._work.loss, metrics, whole, lambda: own._start(), self._examples
        )
        self.metrics, self._validation = self._local_metrics.names, validation

    @property
    def buffers(self) -> dict[str, np.ndarray]:
        """The task's buffers by path; integers stay integers."""
        if self.beside is None:
            return {}
        pairs = zip(*named_leaves(self.beside.values), self.beside.integers, strict=True)
        return {name: np.asarray(np.round(x) if kind else x, kind or None) for name, x, kind in pairs}

    def load_buffers(self, buffers: Mapping[str, np.ndarray]) -> None:
        """Load the server's buffers; `InvalidInput` for a name or a shape that is not the task's."""
        known = self.buffers
        check_same("buffer", buffers, known)
        if self.beside is not None:
            leaves, structure = jax.tree.flatten(self.beside)
            values = [np.asarray(buffers[name], x.dtype) for name, x in zip(known, leaves, strict=True)]
            self.beside = structure.unflatten(values)

    def begin(self, key: Array, client: Scalar, dtype: Any, noise: Array | None = None) -> ClientOracle:
        return replace(self._oracle(self._work, self._steps, key, client, dtype), noise=noise)

    def begin_steps(self, key: Array, client: Scalar, dtype: Any, steps: int) -> ClientOracle:
        """The oracle of a number of local steps (see `LocalProblem.begin_steps`), shuffled as in the engine."""
        counts, size = np.full(1, self.num_examples), self._work.batch_size
        work, _ = local_work(counts, self._work.loss, batch_size=size, epochs=None, local_steps=steps)
        work = replace(work, half=self._work.half, parts=self._work.parts)
        return self._oracle(work, steps, key, client, dtype)

    def measure(self, params: Params, metrics: Collection[str]) -> dict[str, PartMetrics]:
        """Evaluate a model (see `LocalProblem.measure`) with the engine's programs.

        What is no mean over examples is computed on all of the client's, in one piece. `InvalidInput` for a metric that
        fails, or gives no real number.
        """
        dtype = jnp.dtype(dtype_of(params))
        model = params if self.beside is None else WithBuffers(params, self.beside)
        sets = {"train": self._on_device(dtype)}
        if self._validation is not None:
            sets["validation"] = packed(self._validation, self._frozen, dtype)
        return self._local_metrics.measure(metrics, sets, model)

    def _oracle(self, work: LocalWork, steps: int, key: Array, client: Scalar, dtype: Any) -> ClientOracle:
        if self._work.half and jnp.dtype(dtype) == jnp.float64:
            raise InvalidInput(
                "this client has matmul_dtype = 'bfloat16', and the federation runs in float64: leave it out, or run "
                "in float32"
            )
        mine = self._on_device(jnp.dtype(dtype))
        with jax.ensure_compile_time_eval():
            mine = replace(mine, steps=jnp.asarray(np.full(1, steps, np.int32)))
        return _compiled_oracle()(work, mine, key, jnp.asarray(client, jnp.int32))

    def _on_device(self, dtype: Any) -> PackedClients:
        # The examples in the round's type, put there once.
        if dtype not in self._packed:
            with jax.ensure_compile_time_eval():  # arrays, not tracers, even inside a compiled function
                self._packed = {dtype: packed(self._examples, self._frozen, dtype)}
        return self._packed[dtype]


def _with_products(work: LocalWork, matmul_dtype: str | None) -> LocalWork:
    if matmul_dtype not in (None, "bfloat16"):
        raise InvalidInput(f"matmul_dtype = {shown(matmul_dtype)} must be 'bfloat16' or None")
    return replace(work, half=matmul_dtype is not None)


@cache
def _compiled_oracle() -> Any:
    # `client_oracle` as one program: its many small steps, one by one, would take longer than local work.
    def make(work: LocalWork, packed: PackedClients, key: Array, client: Scalar) -> ClientOracle:
        return client_oracle(work, packed, key, client, packed.steps[0], slot=0)

    return jax.jit(make, static_argnums=0)  # no compiler options: it may be part of another program


_NO_COUNT = float("nan")


class LocalMetrics:
    """What a client measures a model by, with the engine's programs: means over examples or not, by name."""

    def __init__(
        self,
        loss: Loss,
        metrics: Mapping[str, Callable[..., Any]],
        whole: Mapping[str, Any],
        model: Callable[[], Params],
        examples: Batch,
    ) -> None:
        self.names = ("loss", *metrics, *whole)
        self._loss, self._metrics, self._whole = loss, metrics, whole
        self._model, self._examples = model, examples
        self._no_mean: dict[str, bool] = {}

    def measure(
        self, names: Collection[str], sets: Mapping[str, PackedClients], model: Params
    ) -> dict[str, PartMetrics]:
        """Metrics of a model on one client's sets of examples, by part; with its buffers where the loss has some."""
        means, whole = self._split(names)
        summed: dict[str, Any] = {
            name: means.pop(name) for name in list(means) if hasattr(means[name], "totals")
        }
        metrics, of_sums = (Metrics(self._loss, tuple(x.items())) for x in (means, summed))
        columns = {name: k for k, name in enumerate(metrics.all) if name in names}
        measured = {}
        for part, examples in sets.items():
            count, means, counts = means_of(metrics, EvalClients.of(examples, np.zeros(1, int)), model)
            values = {name: float(means[0, k]) for name, k in columns.items()}
            sizes = {name: _count(metrics.all[name], float(counts[0, k])) for name, k in columns.items()}
            if whole:
                arrays = examples.model(jax.tree.map(jnp.asarray, model))
                for column, value in whole(arrays, {part: examples.examples}, True).items():
                    name = column.removeprefix(f"{part}_")
                    values[name], sizes[name] = value, _NO_COUNT if math.isfinite(value) else 0.0
            totals = sums_of(of_sums, examples, jax.tree.map(jnp.asarray, model)) if summed else {}
            sums = {n: Sums(summed[n].metric, np.asarray(x, np.float64)) for n, x in totals.items()}
            measured[part] = PartMetrics(int(count[0]), values, sizes, sums)
        return measured

    def _split(self, names: Collection[str]) -> tuple[dict[str, Callable[..., Any]], OnWholeSets]:
        # Which follow from the examples' own values, and which are computed on whole sets; found once each.
        chosen = {name: f for name, f in self._metrics.items() if name in names}
        new = {name: f for name, f in chosen.items() if name not in self._no_mean}
        seen = check_metrics(new, self._model(), self._examples) if new else {}
        self._no_mean |= {name: name in seen for name in new}
        whole = {name: f for name, f in self._whole.items() if name in names}
        mixing = {name: f for name, f in chosen.items() if self._no_mean[name]}
        return {name: f for name, f in chosen.items() if name not in mixing}, OnWholeSets(whole, mixing)


def packed(examples: Batch, frozen: Params, dtype: Any) -> PackedClients:
    """One client's examples on the device; how many steps it takes is put in where it takes any."""
    count = len(jax.tree.leaves(examples)[0])
    offset, counts, steps = (jnp.asarray(np.full(1, n, np.int32)) for n in (0, count, 0))
    return PackedClients(on_device(examples, dtype), offset, counts, steps, frozen_on_device(frozen, dtype))


def _count(function: Any, count: float) -> float:
    if not hasattr(function, "of_sums"):
        return round(count)
    # a mean of values of several clients is no value of all, unless the function says what they count for
    return _NO_COUNT if count and getattr(function, "size", None) is None else count


def held_out(validation: Batch, training: FederatedData) -> Batch:
    """Validation examples as arrays, of the fields of the training examples and with their order of columns."""
    given, examples = FederatedData.from_clients([validation], ["the validation examples"]), training.examples
    arrays = given.in_order(training.columns, "validation").examples
    shapes = [jax.tree.map(lambda a: (a.shape[1:], a.dtype.kind), x) for x in (arrays, examples)]
    if shapes[0] != shapes[1]:
        raise InvalidInput(
            f"the validation examples have fields {shown(shapes[0])}, the training examples {shown(shapes[1])} "
            "(shape of one, kind): give both the same"
        )
    return arrays


def client_validation(task: Task, client: int) -> Batch | None:
    if task.validation is None or task.validation_clients is None:
        return None
    rows = np.flatnonzero(task.validation_clients == client)
    return jax.tree.map(lambda a: np.asarray(a)[rows], task.validation) if len(rows) else None
