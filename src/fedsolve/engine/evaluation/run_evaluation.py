"""The evaluation of a run: every metric of the models that it comes to."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, partial

import jax

from fedsolve.core.algorithm import Algorithm
from fedsolve.core.fleets import Timeline
from fedsolve.core.types import Batch, Params
from fedsolve.engine.compute.round import RunState, client_state_bytes
from fedsolve.engine.evaluation.blocks import Block, Blocks, EvalClients
from fedsolve.engine.evaluation.eval_sets import EvalSets
from fedsolve.engine.evaluation.evaluate import Models, evaluate
from fedsolve.engine.evaluation.example_metrics import OwnModels
from fedsolve.engine.evaluation.iterates import middle
from fedsolve.engine.evaluation.objective import compute_diagnostics
from fedsolve.engine.simulated_time import Timed
from fedsolve.engine.streaming.stream import Stream
from fedsolve.tasks.task import Task


@dataclass(frozen=True, kw_only=True)
class RunEvaluation(EvalSets):
    """Evaluates the models of a run.

    Attributes, beside what they are evaluated on:
        algorithm: the method, with all numbers in the run's type.
        task: the problem.
        params: the initial model.
        stream: reads the clients that come next; None if all are on the device.
        timed: what the clock of the run's fleet makes of it; None without one.
    """

    algorithm: Algorithm
    task: Task
    params: Params
    stream: Stream | None
    timed: Timed | None

    def evaluate(self, state: RunState, means: dict[str, float] | None = None) -> dict[str, float]:
        """All metrics of the state's model; `means` are those that are known already."""
        values = self.means(state) if means is None else means
        if isinstance(self.training, EvalClients):  # in blocks: means alone
            values |= self._on_all_examples(self.training, state)
        return values | self.clock(int(state.round))

    def means(self, state: RunState) -> dict[str, float]:
        """Loss and metrics that are means over examples, of the state's model, or of clients' own."""
        own = partial(self.own_models, state)
        clients, sets = self.parts
        values = self._means_of("train", clients.pop("train"), sets, state, own)
        for part, others in clients.items():
            values |= self._means_of(part, others, {}, state, own)
        if self.unseen is not None:
            values |= self._means_of("unseen", self.unseen, {}, state, lambda block: None)
        return values

    @property
    def parts(self) -> tuple[dict[str, EvalClients | Blocks], dict[str, Batch]]:
        """Clients by part, evaluated with models of their own where they have such; and sets, with the server's."""
        clients, sets = {"train": self.training}, self.sets
        if self.has_own_models and self.validation_clients is not None:
            clients["validation"] = self.validation_clients
            del sets["validation"]
        return clients, sets

    def _means_of(
        self,
        part: str,
        clients: EvalClients | Blocks,
        sets: dict[str, Batch],
        state: RunState,
        models: Models,
    ) -> dict[str, float]:
        model = self.algorithm.export(state.server)
        return evaluate(self.metrics, clients, sets, model, state.previous, models, part, self.divided)

    def _on_all_examples(self, clients: EvalClients, state: RunState) -> dict[str, float]:
        """Metrics of whole sets, of both iterates, and diagnostics."""
        values, model = {}, self.algorithm.export(state.server)
        if self.whole:
            sets = {"train": clients.packed.examples} | self.held_out
            first, averaged = int(state.round) == 0, middle(model, state.previous)
            values |= self.whole(clients.packed.model(model), sets, first)
            of_averaged = self.whole(clients.packed.model(averaged), sets, first)
            values |= {f"{name}_averaged": value for name, value in of_averaged.items()}
        uniform = self.algorithm.traits.weighting == "uniform"
        return values | compute_diagnostics(self.diagnostics, self.task.loss, uniform, clients.packed, model)

    @cached_property
    def has_own_models(self) -> bool:
        """Whether clients have models of their own, which are evaluated in place of the server's."""
        return self.algorithm.traits.personal

    @cached_property
    def validation_clients(self) -> EvalClients | Blocks | None:
        """The validation examples by owner; None if no client that trains has any."""
        if self.owners is None or self.validation is None:
            return None
        if self.stream is None:
            return EvalClients.by_owner(self.validation, self.owners, self.training.frozen)
        population, state_bytes = self.stream.population, 0
        if self.has_own_models:
            state_bytes = client_state_bytes(self.algorithm, self.params, population.data.num_clients)
        return Blocks.by_owner(population, self.task.validation, self.owners, state_bytes)

    def own_models(self, state: RunState, block: Block) -> OwnModels | None:
        """The models of a block's clients; None where all have the server's."""
        if not self.has_own_models:
            return None
        clients = block.clients
        if self.stream is None:
            states = jax.tree.map(lambda x: x[clients.ids], state.clients)
        else:
            states = self.stream.read_states(state, clients.ids, clients.packed.counts.shape[0])
        return OwnModels(self.algorithm, states, clients.rows)

    def clock(self, done: int) -> dict[str, float]:
        """The simulated seconds and joules after so many rounds, by the columns' names; nothing without a fleet."""
        return {} if self.timeline is None else self.timeline.at(done)

    @property
    def timeline(self) -> Timeline | None:
        """Its updates on the clock of its fleet; None without one."""
        return None if self.timed is None else replace(self.timed.timeline, names=self.task.data.names)
