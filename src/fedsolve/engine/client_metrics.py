"""The metrics of each client at some round: on its own examples, on those held out of them, after fine-tuning."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedsolve.checks import check_integer
from fedsolve.engine.cast import cast
from fedsolve.engine.clients import local_work
from fedsolve.engine.evaluate import each_client
from fedsolve.engine.own_models import Own, Owned, Tuned
from fedsolve.engine.prepared_run import PreparedRun
from fedsolve.engine.round import RunState
from fedsolve.errors import InvalidInput
from fedsolve.results.clients import ClientMetrics


def by_client(
    prepared: PreparedRun,
    state: RunState,
    *,
    unseen: bool = False,
    validation: bool = False,
    steps: int = 0,
    solver: Any = None,
) -> ClientMetrics:
    """Metrics that are means over examples, of each client's own, under its model at a state.

    Args:
        prepared: the run.
        state: where it stands.
        unseen: of the clients that never train.
        validation: of those with validation examples, on these.
        steps: local steps that each takes before, on its training examples; 0 for none.
        solver: the local solver that takes them.

    Raises:
        InvalidInput: there are no such clients or examples, clients that are streamed and would all have to be here,
            fine-tuning of what has no training examples or keeps buffers, a number out of its range.
    """
    if unseen and (validation or steps):
        raise InvalidInput(
            "unseen clients have no examples to train on or hold out: measure them as they are"
        )
    if unseen:
        return _of_unseen(prepared, state)
    names = prepared.task.data.names
    owned = _held_out(prepared) if validation else _training(prepared)
    own = _tuned(prepared, state, owned, steps, solver) if steps else prepared.own(state, owned)
    sets = {} if validation else prepared.sets
    found = each_client(
        prepared.metrics, owned.packed, sets, prepared.algorithm.export(state.server), state.previous, own
    )
    return ClientMetrics(tuple(names[i] for i in owned.ids), np.asarray(owned.packed.counts), found)


def _of_unseen(prepared: PreparedRun, state: RunState) -> ClientMetrics:
    task = prepared.task
    if prepared.unseen is None or task.unseen is None:
        raise InvalidInput(f"task {task.name} has no unseen clients: give Task(unseen=...)")
    model = prepared.algorithm.export(state.server)
    found = each_client(prepared.metrics, prepared.unseen, {}, model, state.previous)
    return ClientMetrics(tuple(task.unseen.names), np.asarray(prepared.unseen.counts), found)


def _training(prepared: PreparedRun) -> Owned:
    if prepared.blocks is not None:
        name = prepared.task.name
        raise InvalidInput(
            f"the clients of task {name} are streamed: give the task eval_examples, and those are measured"
        )
    return prepared.evaluated


def _held_out(prepared: PreparedRun) -> Owned:
    if prepared.owned is None:
        raise InvalidInput(
            f"task {prepared.task.name} has no validation examples of its clients' own: hold some out, "
            "task.hold_out(0.2)"
        )
    return prepared.owned


def _tuned(prepared: PreparedRun, state: RunState, owned: Owned, steps: int, solver: Any) -> Own:
    """The models of some clients after so many local steps."""
    task, work = prepared.task, prepared.program.work
    check_integer("steps", steps, 1)
    if prepared.stream is not None:
        raise InvalidInput(
            f"the clients of task {task.name} are streamed: fine-tuning needs their examples on the device, "
            "residency = 'device'"
        )
    if task.buffers is not None:
        raise InvalidInput(f"task {task.name} keeps buffers: fine-tuning takes models of parameters alone")
    local, _ = local_work(
        task.data.counts, task.loss, batch_size=work.batch_size, epochs=None, local_steps=steps
    )
    return Tuned(
        prepared.algorithm,
        jax.tree.map(lambda x: x[owned.ids], state.clients),
        owned.rows,
        cast(solver, prepared.dtype),
        prepared.packed,
        jnp.asarray(owned.ids, jnp.int32),
        jax.random.fold_in(prepared.key, state.round),
        replace(local, half=work.half),
    )
