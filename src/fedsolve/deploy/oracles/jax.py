"""One client's own examples with a loss written in JAX: the compiled engine's oracle, for this client alone."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, Literal
from weakref import proxy

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from fedsolve.core.buffers import Buffers, WithBuffers
from fedsolve.core.checks import check_same
from fedsolve.core.errors import InvalidInput, shown
from fedsolve.core.trees import dtype_of, named_leaves
from fedsolve.core.types import Batch, Params, Scalar
from fedsolve.data.federated import FederatedData
from fedsolve.deploy.messages.message import PartMetrics
from fedsolve.deploy.messages.signature import float_type
from fedsolve.deploy.oracles.jax_metrics import NONE, LocalMetrics, client_validation, held_out, packed
from fedsolve.deploy.oracles.node_oracle import LocalProblem
from fedsolve.deploy.oracles.settings import settings
from fedsolve.engine.checks.preflight import check_loss
from fedsolve.engine.checks.shape_checks import check_buffers
from fedsolve.engine.compute.client_oracle import ClientOracle, client_oracle
from fedsolve.engine.compute.clients import LocalWork, Loss, PackedClients, local_work
from fedsolve.engine.compute.groups import of_client, works_by_size
from fedsolve.tasks.leaves import refuse_state, with_frozen
from fedsolve.tasks.metrics.sum_metric import SumMetric, on_model
from fedsolve.tasks.task import Task
from fedsolve.tasks.task_checks import check_metrics as check_named
from fedsolve.tasks.task_checks import check_targets


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
        matmul_dtype: "bfloat16" for products of local training as `fs.run` has them under that name.

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
        matmul_dtype: Literal["bfloat16"] | None = None,
    ) -> None:
        model = predict or getattr(loss, "model", None)
        named: Any = on_model({} if metrics is None else metrics, model, "JaxOracle(predict=f)")
        check_named(named, {})
        data = FederatedData.from_clients([examples], ["this client"])
        work, steps = local_work(
            data.counts, loss, batch_size=batch_size, epochs=epochs, local_steps=local_steps
        )
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
        work, steps = local_work(
            counts, task.loss, batch_size=batch_size, epochs=epochs, local_steps=local_steps
        )
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
        """The model that loss and metrics are tried on."""
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
        """Load the server's buffers.

        Raises:
            InvalidInput: a name or a shape that is not the task's.
        """
        known = self.buffers
        check_same("buffer", {n: b.shape for n, b in buffers.items()}, {n: b.shape for n, b in known.items()})
        if self.beside is not None:
            leaves, structure = jax.tree.flatten(self.beside)
            values = [np.asarray(buffers[name], x.dtype) for name, x in zip(known, leaves, strict=True)]
            self.beside = structure.unflatten(values)

    def begin(self, key: Array, client: Scalar, dtype: Any, noise: Array | None = None) -> ClientOracle:
        """The oracle of one round (see `LocalProblem.begin`)."""
        return replace(self._oracle(self._work, self._steps, key, client, dtype), noise=noise)

    def begin_steps(self, key: Array, client: Scalar, dtype: Any, steps: int) -> ClientOracle:
        """The oracle of a number of local steps (see `LocalProblem.begin_steps`), shuffled as in the engine."""
        counts, size = np.full(1, self.num_examples), self._work.batch_size
        work, _ = local_work(counts, self._work.loss, batch_size=size, epochs=None, local_steps=steps)
        return self._oracle(replace(work, half=self._work.half), steps, key, client, dtype)

    def measure(self, params: Params, metrics: Collection[str]) -> dict[str, PartMetrics]:
        """Evaluate a model (see `LocalProblem.measure`) with the engine's programs.

        What is no mean over examples is computed on all of the client's, in one piece.

        Raises:
            InvalidInput: a metric that fails, or gives no real number.
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
        """The examples in the round's type, put there once."""
        if dtype not in self._packed:
            with jax.ensure_compile_time_eval():  # arrays, not tracers, even inside a compiled function
                self._packed = {dtype: packed(self._examples, self._frozen, dtype)}
        return self._packed[dtype]


def task_of(oracles: Sequence[LocalProblem]) -> Task:
    """The task of a whole federation, whose clients' oracles are given in the order of their numbers.

    Raises:
        InvalidInput: an oracle of another framework, with buffers, or with local work that differs from the others'.
    """
    mine = [oracle for oracle in oracles if isinstance(oracle, JaxOracle) and oracle.beside is None]
    if len(mine) < len(oracles):
        raise InvalidInput("only clients with a JaxOracle and a model without buffers make a task")
    first, sizes = mine[0], {oracle._work.batch_size for oracle in mine}
    rows = np.array([oracle.num_examples for oracle in mine])
    # a client with fewer examples than a batch has all of them in it
    size, steps = max(sizes), np.array([oracle._steps for oracle in mine])
    passes = set((steps // -(-rows // size)).tolist())
    task = Task(
        "replay",
        lambda key: first.params,
        first._work.loss,
        FederatedData.from_clients([oracle._examples for oracle in mine]),
        batch_size=size,
        epochs=min(passes) if len(passes) == 1 else None,
        local_steps=None if len(passes) == 1 else int(steps[0]),
    )
    _, wanted = local_work(
        rows, first._work.loss, batch_size=size, epochs=task.epochs, local_steps=task.local_steps
    )
    if not np.array_equal(wanted, steps):
        raise InvalidInput(
            "clients have different local work: give all the same batch_size, and epochs or local_steps"
        )
    return task


def _with_products(work: LocalWork, matmul_dtype: str | None) -> LocalWork:
    if matmul_dtype not in (None, "bfloat16"):
        raise InvalidInput(f"matmul_dtype = {shown(matmul_dtype)} must be 'bfloat16' or None")
    return replace(work, half=matmul_dtype is not None)


@cache
def _compiled_oracle() -> Any:
    """`client_oracle` as one program: its many small steps, one by one, would take longer than local work."""

    def make(work: LocalWork, packed: PackedClients, key: Array, client: Scalar) -> ClientOracle:
        return client_oracle(work, packed, key, client, packed.steps[0], slot=0)

    return jax.jit(make, static_argnums=0)  # no compiler options: it may be part of another program
