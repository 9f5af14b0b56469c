"""Clients whose loss is not a number from the start: left out of all metrics, and said.

One client with data that overflow would make every metric NaN, of every setting of a sweep. Whether a client's
loss is finite is looked at once, at the initial model, and for fewer than half of the clients: what becomes NaN
later, or for most, is the method's or the problem's, and stays to be seen.
"""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np

from fedsolve.core.buffers import with_buffers
from fedsolve.data.federated import FederatedData
from fedsolve.engine.compute.round import RunState
from fedsolve.engine.evaluation.blocks import EvalClients
from fedsolve.engine.evaluation.evaluate import means_of
from fedsolve.engine.evaluation.example_metrics import Metrics
from fedsolve.engine.preparation.meanwhile import compiled_meanwhile
from fedsolve.engine.prepared_run import PreparedRun

_NAMED = 5  # clients named in the note


def first_evaluation(prepared: PreparedRun, state: RunState) -> tuple[PreparedRun, dict[str, float]]:
    """All metrics of the initial model, and the run without the clients that have none."""
    with compiled_meanwhile(prepared):
        means = prepared.means(state)
    if np.isfinite(means["train_loss"]):
        return prepared, prepared.evaluate(state, means)
    finite = without_nonfinite_clients(prepared)
    return finite, finite.evaluate(state, means if finite is prepared else None)


def without_nonfinite_clients(prepared: PreparedRun) -> PreparedRun:
    """The run evaluated on the clients whose loss at the initial model is finite; itself if that changes nothing."""
    if prepared.stream is not None:  # a look at every client of a population
        return prepared
    lost, task = _nonfinite_clients(prepared), prepared.task
    if not lost.any():
        return prepared
    ids = np.flatnonzero(~lost)
    rows = [int(task.data.offsets[i]) + np.arange(int(task.data.counts[i])) for i in ids]
    data = FederatedData.from_partition(task.data.examples, rows, tuple(task.data.names[i] for i in ids))
    if task.eval_examples is not None:
        chosen = data.draw(task.eval_examples)
        data, ids = data.of(chosen), ids[chosen]
    training = EvalClients.of_data(data, ids, task.loss, prepared.dtype, prepared.packed.frozen)
    owners, validation = prepared.owners, prepared.validation
    if owners is not None and len(rows := np.flatnonzero(~lost[owners])):
        validation, owners = jax.tree.map(lambda a: a[rows], validation), owners[rows]
    prepared = replace(prepared, validation=validation, owners=owners, training=training)
    if prepared.divided is not None:
        prepared = prepared.divided_among(prepared.divided.mesh, task.loss, prepared.first_model)
    return replace(prepared, remarks=(*prepared.remarks, _remark(task.data, lost)))


def _nonfinite_clients(prepared: PreparedRun) -> np.ndarray:
    """The clients whose loss at the initial model is not finite, shape (clients,); none if they are half or more."""
    clients = EvalClients.of(prepared.packed, np.arange(prepared.task.data.num_clients))
    model = with_buffers(prepared.params, prepared.task.buffers)
    _, losses, parts = means_of(Metrics(prepared.task.loss, ()), clients, model)
    lost = (~np.isfinite(losses) & (parts > 0))[:, 0]
    return lost if 2 * lost.sum() < len(lost) else np.zeros_like(lost)


def _remark(data: FederatedData, lost: np.ndarray) -> str:
    names = [data.names[i] for i in np.flatnonzero(lost)]
    shown = ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
    examples = int(data.counts[lost].sum())
    return (
        f"{len(names)} of {len(data.names)} clients ({shown}; {examples} examples) left out of all metrics: their loss "
        "is not finite at the initial model"
    )
