"""Clients whose loss is not a number from the start: left out of all metrics, and said.

One client with data that overflow would make every metric NaN, of every setting of a sweep. Whether a client's
loss is finite is looked at once, at the initial model, and for fewer than half of the clients: what becomes NaN
later, or for most, is the method's or the problem's, and stays to be seen.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import jax
import numpy as np
from jaxtyping import Array

from fedsolve.core.types import Params
from fedsolve.core.xla.compiler import compiler_options
from fedsolve.data.federated import FederatedData
from fedsolve.engine.compute.clients import Loss, PackedClients, pack
from fedsolve.engine.compute.round import RunState
from fedsolve.engine.evaluation.example_metrics import Metrics, on_all
from fedsolve.engine.evaluation.pooling import by_clients
from fedsolve.engine.prepared_run import PreparedRun

_NAMED = 5  # clients named in the note


def first_evaluation(prepared: PreparedRun, state: RunState) -> tuple[PreparedRun, dict[str, float]]:
    """All metrics of the initial model, and the run without the clients that have none."""
    means = prepared.means(state)
    if not np.isfinite(means["train_loss"]):
        kept = without_nonfinite_clients(prepared)
        if kept is not prepared:
            return kept, kept.evaluate(state)
    return prepared, prepared.evaluate(state, means)


def without_nonfinite_clients(prepared: PreparedRun) -> PreparedRun:
    """The run evaluated on the clients whose loss at the initial model is finite; itself if that changes nothing."""
    if prepared.stream is not None:  # a look at every client of a population
        return prepared
    lost, task = nonfinite_clients(prepared), prepared.task
    if not lost.any():
        return prepared
    kept = np.flatnonzero(~lost)
    rows = [int(task.data.offsets[i]) + np.arange(int(task.data.counts[i])) for i in kept]
    data = FederatedData.from_partition(task.data.examples, rows, tuple(task.data.names[i] for i in kept))
    evaluated, ids = data, kept
    if task.eval_examples is not None:
        chosen = data.draw(task.eval_examples)
        evaluated, ids = data.of(chosen), kept[chosen]
    packed = pack(evaluated, task.loss, prepared.dtype, batch_size=None, epochs=1, local_steps=None)[0]
    packed = replace(packed, frozen=prepared.packed.frozen)
    owners, validation = prepared.owners, prepared.validation
    if owners is not None and len(rows := np.flatnonzero(~lost[owners])):
        validation, owners = jax.tree.map(lambda a: a[rows], validation), owners[rows]
    prepared = replace(prepared, validation=validation, owners=owners, eval_ids=ids)
    return replace(prepared, eval_clients=packed, remarks=(*prepared.remarks, _remark(task.data, lost)))


def nonfinite_clients(prepared: PreparedRun) -> np.ndarray:
    """The clients whose loss at the initial model is not finite, shape (clients,); none if they are half or more."""
    losses, parts = jax.device_get(_compiled()(prepared.task.loss, prepared.packed, prepared.first_model))
    lost = ~np.isfinite(losses) & (parts > 0)
    return lost if 2 * lost.sum() < len(lost) else np.zeros_like(lost)


@cache
def _compiled() -> Any:
    def losses(loss: Loss, packed: PackedClients, params: Params) -> tuple[Array, Array]:
        each = on_all(Metrics(loss, ()), params, packed.examples)
        means, parts = by_clients({"loss": loss}, each, {}, packed)
        return means[:, 0], parts[:, 0]

    return jax.jit(losses, static_argnums=0, compiler_options=compiler_options())


def _remark(data: FederatedData, lost: np.ndarray) -> str:
    names = [data.names[i] for i in np.flatnonzero(lost)]
    shown = ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
    examples = int(data.counts[lost].sum())
    return (
        f"{len(names)} of {len(data.names)} clients ({shown}; {examples} examples) left out of all metrics: their loss "
        "is not finite at the initial model"
    )
