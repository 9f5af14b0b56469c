"""What a run's model is evaluated on: examples and clients that metrics are of, put on the device, and the metrics."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from fedsolve.core.errors import InvalidInput
from fedsolve.core.types import Batch, Params
from fedsolve.engine.checks.preflight import check_task
from fedsolve.engine.compute.cast import cast
from fedsolve.engine.compute.clients import Loss, on_device
from fedsolve.engine.compute.processes import own_devices
from fedsolve.engine.evaluation.blocks import Blocks, EvalClients
from fedsolve.engine.evaluation.dataset_metrics import OnWholeSets
from fedsolve.engine.evaluation.divided import DividedExamples, is_faster_divided
from fedsolve.engine.evaluation.example_metrics import Metrics
from fedsolve.engine.preparation.placed import Placed
from fedsolve.engine.preparation.requested import Requested
from fedsolve.geometry.diagnostics import Diagnostic

_SAMPLED = "training metrics are of {} clients drawn at random ({} examples)"
_MIXING = "{} is no mean over examples ({}): it is computed on whole sets, and clients have none of their own"
_NEEDS_ALL = {True: "metrics of whole sets", False: "diagnostics"}


@dataclass(frozen=True, kw_only=True)
class EvalSets:
    """What the model of a run is evaluated on, and by which metrics.

    Attributes:
        training: the clients that the training metrics are of, in blocks where they are not on the device.
        test: the test examples; None if there are none.
        validation: the validation examples; None if there are none.
        owners: the client of each of them, by number; None if none of them trains.
        unseen: held-out clients; None if there are none.
        metrics: loss and metrics that are means over examples.
        whole: metrics that are computed on whole sets.
        diagnostics: further metrics, of the model, the objective and its gradient.
        divided: the examples on several devices, by the names of clients and sets; None where one evaluates all.
    """

    training: EvalClients | Blocks
    test: Any
    validation: Any
    owners: np.ndarray | None
    unseen: EvalClients | None
    metrics: Metrics
    whole: OnWholeSets
    diagnostics: tuple[Diagnostic, ...]
    divided: DividedExamples | None = None

    @property
    def held_out(self) -> dict[str, Batch]:
        """The examples by name that no client trains on."""
        return self.sets | ({} if self.unseen is None else {"unseen": self.unseen.packed.examples})

    @property
    def sets(self) -> dict[str, Batch]:
        """Those that are of no unseen clients."""
        sets = {"validation": self.validation, "test": self.test}
        return {name: examples for name, examples in sets.items() if examples is not None}

    def divided_among(self, mesh: Mesh, loss: Loss, model: Params) -> Self:
        """The same, with the examples divided among this process's devices of a mesh, where that is faster.

        Args:
            mesh: of the run.
            loss: of the model.
            model: what the loss takes.
        """
        if len(own_devices(mesh)) == 1 or not isinstance(self.training, EvalClients):
            return self
        packed = self.training.packed
        if not is_faster_divided(loss, model, packed.examples):
            return self
        divided = DividedExamples.of(mesh, packed.frozen, {"train": packed.examples} | self.held_out)
        return replace(self, divided=divided)


def choose_eval_sets(requested: Requested, placed: Placed) -> tuple[EvalSets, tuple[str, ...]]:
    """What the model is evaluated on, and what is to be said of it.

    Args:
        requested: the run, whose task has loss, metrics and held-out examples.
        placed: its method, which may have diagnostics of its own, and its initial model, with which they are tried.

    Raises:
        InvalidInput: a loss or metric that cannot be used, or one that needs all examples where they are streamed.
    """
    task, packed, population = requested.task, placed.clients, placed.population
    dtype, frozen = jnp.dtype(requested.options.dtype), placed.clients.frozen
    test = None if task.test is None else on_device(task.test, dtype, "row {} of the test set".format)
    mixing = check_task(task, placed.params, packed, test)
    remarks = [_MIXING.format(name, seen) for name, seen in mixing.items()]
    whole = OnWholeSets(task.whole, {k: task.metrics[k] for k in mixing})
    diagnostics = cast((*task.diagnostics, *placed.algorithm.diagnostics()), dtype)
    if task.eval_examples is not None and task.eval_examples < task.data.num_examples:
        ids = task.data.draw(task.eval_examples or 1)
        sample = task.data.of(ids)
        remarks.append(_SAMPLED.format(sample.num_clients, sample.num_examples))
        training = EvalClients.of_data(sample, ids, task.loss, dtype, frozen)
    elif population is None:
        training = EvalClients.of(packed, np.arange(task.data.num_clients))
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
