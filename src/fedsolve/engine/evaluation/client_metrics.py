"""The metrics of each client at some round: on its own examples, on those held out of them, after fine-tuning."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import numpy as np

from fedsolve.core.errors import InvalidInput, check_integer, shown
from fedsolve.engine.compute.cast import cast
from fedsolve.engine.compute.clients import Window, local_work
from fedsolve.engine.compute.round import RunState
from fedsolve.engine.evaluation.blocks import Block, Blocks, EvalClients
from fedsolve.engine.evaluation.evaluate import Models, each_client
from fedsolve.engine.evaluation.example_metrics import TunedModels
from fedsolve.engine.prepared_run import PreparedRun
from fedsolve.results.clients import ClientMetrics


def client_metrics(
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
        InvalidInput: there are no such clients or examples, unseen clients that are asked for more, a number of steps
            below 0, what is no solver.
    """
    if unseen and (validation or steps):
        raise InvalidInput(
            "unseen clients have no examples to train on or hold out: evaluate them without fine-tuning"
        )
    tuned = check_integer("steps", steps) > 0
    task = prepared.task
    models: Models = partial(prepared.own_models, state)
    if unseen:
        if prepared.unseen is None or task.unseen is None:
            raise InvalidInput(f"task {task.name} has no unseen clients: give Task(unseen=...)")
        blocks, names, models = [Block(prepared.unseen)], task.unseen.names, lambda block: None
    else:
        clients = prepared.validation_clients if validation else prepared.training
        if clients is None:
            raise InvalidInput(
                f"task {task.name} has no validation examples of its clients' own: hold some out, task.hold_out(0.2)"
            )
        blocks, names = _blocks(prepared, clients, tuned), task.data.names
        if tuned:
            models = _tuned_models(prepared, state, steps, solver)
    model = prepared.algorithm.export(state.server)
    ids, counts, values = each_client(prepared.metrics, blocks, model, models)
    return ClientMetrics(tuple(names[i] for i in ids), counts, values)


def _blocks(prepared: PreparedRun, clients: EvalClients | Blocks, tuned: bool) -> Iterable[Block]:
    """The clients in blocks, with the examples that they train on where they are to be `tuned`."""
    stream = prepared.stream
    if isinstance(clients, Blocks):
        return clients.after_training(stream.population) if tuned and stream is not None else clients
    if stream is None:
        return [Block(clients, prepared.packed, clients.ids)]
    # a sample of a population, which lies on the device: it trains on the examples that it is measured on
    window = Window.of_no_round(clients.ids, prepared.task.data.num_clients)
    return [Block(clients, replace(clients.packed, window=window), np.arange(len(clients.ids)))]


def _tuned_models(prepared: PreparedRun, state: RunState, steps: int, solver: Any) -> Models:
    """The models of clients after so many local steps."""
    if not callable(getattr(solver, "solve", None)):
        raise InvalidInput(
            f"solver = {shown(solver)} must be one such as fs.client.SGD(0.1), for {steps} steps"
        )
    task, work = prepared.task, prepared.program.work
    given: Any = {"batch_size": work.batch_size, "epochs": None, "local_steps": steps}
    local = replace(local_work(task.data.counts, task.loss, **given)[0], half=work.half)
    key, solver = jax.random.fold_in(prepared.key, state.round), cast(solver, prepared.dtype)

    def models(block: Block) -> TunedModels:
        own, rows = prepared.own_models(state, block), block.clients.rows
        states = None if own is None else own.states
        return TunedModels(prepared.algorithm, states, rows, solver, block.train, block.slots, key, local)

    return models
