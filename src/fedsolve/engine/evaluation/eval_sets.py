"""What a run's model is judged by: the examples and clients that metrics are of, put on the device, and the metrics."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedsolve.core.algorithm import Algorithm
from fedsolve.core.buffers import with_buffers
from fedsolve.core.errors import InvalidInput
from fedsolve.core.types import Batch, Params
from fedsolve.data.federated import FederatedData
from fedsolve.engine.checks.preflight import check_task
from fedsolve.engine.compute.cast import cast
from fedsolve.engine.compute.clients import PackedClients, on_device, pack
from fedsolve.engine.evaluation.blocks import Blocks
from fedsolve.engine.evaluation.dataset_metrics import OnWholeSets
from fedsolve.engine.evaluation.evaluate import Metrics
from fedsolve.engine.streaming.population import Population
from fedsolve.geometry.diagnostics.diagnostic import Diagnostic
from fedsolve.tasks.task import Task

_SAMPLED = "training metrics are of {} clients drawn at random ({} examples)"
_MIXING = "{} is no mean over examples ({}): it is computed on whole sets, and clients have none of their own"
_NEEDS_ALL = {True: "metrics of whole sets", False: "diagnostics"}


@dataclass(frozen=True, kw_only=True)
class Judged:
    """What the model of a run is judged by.

    Attributes:
        eval_clients: those that the training metrics are of.
        eval_ids: their numbers; None for all.
        blocks: all clients, block after block, where the metrics are of these instead.
        test: the test examples; None if there are none.
        validation: the validation examples; None if there are none.
        owners: the client of each of them, by number; None if none of them trains.
        unseen: the clients that only judge the model; None if there are none.
        metrics: loss and metrics that are means over examples.
        whole: metrics that are computed on whole sets.
        diagnostics: further metrics, of the model, the objective and its gradient.
    """

    eval_clients: PackedClients
    eval_ids: np.ndarray | None
    blocks: Blocks | None
    test: Any
    validation: Any
    owners: np.ndarray | None
    unseen: PackedClients | None
    metrics: Metrics
    whole: OnWholeSets
    diagnostics: tuple[Diagnostic, ...]

    @property
    def held_out(self) -> dict[str, Batch]:
        """The examples by name that no client trains on."""
        return self.sets | ({} if self.unseen is None else {"unseen": self.unseen.examples})

    @property
    def sets(self) -> dict[str, Batch]:
        """Those that are of no unseen clients."""
        sets = {"validation": self.validation, "test": self.test}
        return {name: examples for name, examples in sets.items() if examples is not None}


def judging(
    algorithm: Algorithm,
    task: Task,
    params: Params,
    packed: PackedClients,
    everyone: Population | None,
    dtype: Any,
    state_bytes: int,
) -> tuple[Judged, tuple[str, ...]]:
    """What the model is judged by, and what is to be said of it.

    Args:
        algorithm: the method, which may have diagnostics of its own.
        task: with loss, metrics and held-out examples.
        params: the initial model, with which they are tried.
        packed: the clients on the device.
        everyone: all clients, where only some lie on the device.
        dtype: the run's.
        state_bytes: of a client's own state.

    Raises:
        InvalidInput: a loss or metric that cannot be used, or one that needs all examples where they are streamed.
    """
    test = None if task.test is None else on_device(task.test, dtype)
    mixing = check_task(task, with_buffers(params, task.buffers), packed, test)
    remarks = [_MIXING.format(name, seen) for name, seen in mixing.items()]
    sampled = task.eval_examples is not None and task.eval_examples < task.data.num_examples
    eval_clients, eval_ids = packed, None
    if sampled:
        eval_ids = task.data.draw(task.eval_examples or 1)
        sample = task.data.of(eval_ids)
        remarks.append(_SAMPLED.format(sample.num_clients, sample.num_examples))
        eval_clients = _to_judge(sample, task, dtype, packed.frozen)
    whole = OnWholeSets(task.whole, {k: task.metrics[k] for k in mixing})
    diagnostics = cast((*task.diagnostics, *algorithm.diagnostics()), dtype)
    blocks = None
    if everyone is not None and not sampled:
        blocks = Blocks.of(everyone, state_bytes=state_bytes if algorithm.personal else 0)
    if blocks is not None and (whole or diagnostics):
        raise InvalidInput(
            f"task {task.name} is judged by {_NEEDS_ALL[bool(whole)]}, which need all examples on the device, and its "
            "clients are streamed: give the task eval_examples, or residency = 'device'"
        )
    found = Judged(
        eval_clients=eval_clients,
        eval_ids=eval_ids,
        blocks=blocks,
        test=test,
        validation=None if task.validation is None else on_device(task.validation, dtype),
        owners=task.validation_clients,
        unseen=None if task.unseen is None else _to_judge(task.unseen, task, dtype, packed.frozen),
        metrics=Metrics(task.loss, tuple((k, f) for k, f in task.metrics.items() if k not in mixing)),
        whole=whole,
        diagnostics=diagnostics,
    )
    return found, tuple(remarks)


def _to_judge(data: FederatedData, task: Task, dtype: Any, frozen: Params) -> PackedClients:
    """Clients on the device that a model is judged by."""
    seen = pack(data, task.loss, dtype, batch_size=None, epochs=1, local_steps=None)[0]
    return replace(seen, frozen=frozen)
