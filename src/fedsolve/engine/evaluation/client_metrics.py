"""The metrics of each client, the models of single clients, and clients whose loss is no number."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from fedsolve.core.algorithm import Algorithm, name_of
from fedsolve.core.buffers import WithBuffers, bare, with_buffers
from fedsolve.core.errors import InvalidInput, check_integer, shown
from fedsolve.core.types import Params
from fedsolve.engine.compute.casting import cast
from fedsolve.engine.compute.clients import Window, local_work
from fedsolve.engine.compute.round import RunState
from fedsolve.engine.evaluation.evaluate import Models, each_client, means_of
from fedsolve.engine.evaluation.example_metrics import Block, Blocks, EvalClients, Metrics, TunedModels
from fedsolve.engine.prepare import PreparedRun
from fedsolve.results.clients import ClientMetrics

if TYPE_CHECKING:
    from fedsolve.engine.evaluation.evaluate import RunEvaluation


def client_metrics(
    prepared: PreparedRun,
    state: RunState,
    *,
    unseen: bool = False,
    validation: bool = False,
    steps: int = 0,
    solver: Any = None,
) -> ClientMetrics:
    """Metrics that are means over examples, of each client's own, under its model at a state."""
    # state: where it stands
    # steps: local steps that each takes before, on its training examples; 0 for none
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
    # the clients in blocks, with the examples that they train on where they are to be `tuned`
    stream = prepared.stream
    if isinstance(clients, Blocks):
        if not tuned or stream is None:
            return clients
        return Blocks.of(clients.evaluated, clients.ids, clients.state_bytes, stream.population)
    if stream is None:
        return [Block(clients, prepared.packed, clients.ids)]
    # a sample of a population, which lies on the device: it trains on the examples that it is measured on
    window = Window.of_no_round(clients.ids, prepared.task.data.num_clients)
    return [Block(clients, replace(clients.packed, window=window), np.arange(len(clients.ids)))]


def _tuned_models(prepared: PreparedRun, state: RunState, steps: int, solver: Any) -> Models:
    # the models of clients after so many local steps
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


# The models of single clients after a run of a method that keeps one for each.


@dataclass(frozen=True, eq=False)
class ClientModels:
    """The models of a finished run's clients, each put together when it is asked for."""

    # `states` are NumPy arrays, first axis (clients,), None where they are not kept; `assemble` makes the model as
    # the user gave it of trained parameters.

    algorithm: Algorithm
    exported: Any
    states: Any
    count: int
    assemble: Callable[[Params], Params]

    @classmethod
    def of(cls, run: RunEvaluation, state: RunState) -> ClientModels | None:
        """Those of a run; None of a method whose clients all have the server's model."""
        if not run.algorithm.traits.personal:
            return None
        kept = run.stream is None and jax.process_count() == 1
        states = jax.device_get(state.clients) if kept else None
        clients, task = run.task.data.num_clients, run.task
        return cls(run.algorithm, run.algorithm.export(state.server), states, clients, task.assemble)

    def __call__(self, client: int) -> tuple[Params, Any]:
        # a client's model, assembled, and its buffers, None if it keeps nothing beside its parameters
        if check_integer("client", client, 0) >= self.count:
            raise InvalidInput(f"client = {client} of {self.count} clients: give 0 to {self.count - 1}")
        if self.states is None:
            raise InvalidInput(
                f"the models of {name_of(self.algorithm)}'s clients were streamed and are not in memory: give the run "
                "data in memory, or use task.predict(result.params, x), the server's model"
            )
        own = jax.tree.map(lambda x: np.asarray(x)[client], self.states)
        model = self.algorithm.own_model(self.exported, own)
        buffers = model.buffers.given() if isinstance(model, WithBuffers) else None
        return self.assemble(bare(model)), buffers


# Clients whose loss is not a number from the start: left out of all metrics, and said.
#
# One client with data that overflow would make every metric NaN, of every setting of a sweep. Whether a client's loss
# is finite is looked at once, at the initial model, and for fewer than half of the clients: what becomes NaN later, or
# for most, is the method's or the problem's, and stays to be seen.

_NAMED = 5  # clients named in the note


def first_evaluation(prepared: PreparedRun, state: RunState) -> tuple[PreparedRun, dict[str, float]]:
    """All metrics of the initial model, and the run without the clients that have none."""
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
    data = task.data.of(ids)
    if task.eval_examples is not None:
        chosen = data.draw(task.eval_examples)
        data, ids = data.of(chosen), ids[chosen]
    training = EvalClients.of_data(data, ids, task.loss, prepared.dtype, prepared.packed.frozen)
    owners, validation = prepared.owners, prepared.validation
    if owners is not None and len(rows := np.flatnonzero(~lost[owners])):
        validation, owners = jax.tree.map(lambda a: a[rows], validation), owners[rows]
    prepared = replace(prepared, validation=validation, owners=owners, training=training)
    if prepared.divided is not None:
        prepared = prepared.sharded_over(prepared.divided.mesh, task.loss, prepared.first_model)
    return replace(prepared, remarks=(*prepared.remarks, _remark(task.data.names, task.data.counts, lost)))


def _nonfinite_clients(prepared: PreparedRun) -> np.ndarray:
    # the clients whose loss at the initial model is not finite, shape (clients,); none if they are half or more
    clients = EvalClients.of(prepared.packed, np.arange(prepared.task.data.num_clients))
    model = with_buffers(prepared.params, prepared.task.buffers)
    _, losses, parts = means_of(Metrics(prepared.task.loss, ()), clients, model)
    lost = (~np.isfinite(losses) & (parts > 0))[:, 0]
    return lost if 2 * lost.sum() < len(lost) else np.zeros_like(lost)


def _remark(names: Sequence[str], counts: np.ndarray, lost: np.ndarray) -> str:
    out = [names[i] for i in np.flatnonzero(lost).tolist()]
    shown = ", ".join(out[:_NAMED]) + (f" and {len(out) - _NAMED} more" if len(out) > _NAMED else "")
    return (
        f"{len(out)} of {len(names)} clients ({shown}; {int(counts[lost].sum())} examples) left out of all metrics: "
        "their loss is not finite at the initial model"
    )
