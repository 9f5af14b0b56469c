"""The evaluation of a run: every metric of the models that it comes to."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import numpy as np

from fedsolve.core.algorithm import Algorithm
from fedsolve.core.fleets.timeline import Timeline
from fedsolve.core.types import Batch, Params
from fedsolve.engine.compute.round import RunState, client_state_bytes
from fedsolve.engine.evaluation.blocks import Block, Blocks
from fedsolve.engine.evaluation.eval_sets import EvalSets
from fedsolve.engine.evaluation.evaluate import as_part, evaluate, middle
from fedsolve.engine.evaluation.objective import compute_diagnostics
from fedsolve.engine.evaluation.personal_eval import Own, Owned
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
        model = self.algorithm.export(state.server)
        values = self.means(state) if means is None else means
        if self.whole:  # where clients are in blocks, `prepare` refuses these and diagnostics
            sets = {"train": self.eval_clients.examples} | self.held_out
            first, averaged = int(state.round) == 0, middle(model, state.previous)
            whole = self.eval_clients.model
            values |= self.whole(whole(model), sets, first)
            values |= {f"{k}_averaged": v for k, v in self.whole(whole(averaged), sets, first).items()}
        uniform = self.algorithm.traits.weighting == "uniform"
        values |= compute_diagnostics(self.diagnostics, self.task.loss, uniform, self.eval_clients, model)
        return values | self.clock(int(state.round))

    def means(self, state: RunState) -> dict[str, float]:
        """Loss and metrics that are means over examples, of the state's model, or of clients' own."""
        sets = self.sets
        by_owner = self.validation_clients if self.algorithm.traits.personal else None
        if by_owner is not None:
            del sets["validation"]
        found = self._means_of(self.training_clients, sets, state)
        if by_owner is not None:
            found |= as_part("validation", self._means_of(by_owner, {}, state))
        if self.unseen is not None:
            unseen = Owned.of(self.unseen, np.arange(len(self.unseen.counts)))
            found |= as_part("unseen", self._means_of(unseen, {}, state, own=False))
        return found

    def _means_of(
        self, clients: Owned | Blocks, sets: dict[str, Batch], state: RunState, own: bool = True
    ) -> dict[str, float]:
        """Metrics of some clients; by their own models, where the method has such and `own` says so."""

        def models(block: Block) -> Own | None:
            return self.own(state, block.owned) if own else None

        model = self.algorithm.export(state.server)
        return evaluate(self.metrics, clients, self.eval_clients, sets, model, state.previous, models)

    @cached_property
    def training_clients(self) -> Owned | Blocks:
        """The clients that the training metrics are of."""
        return self.evaluated if self.blocks is None else self.blocks

    @cached_property
    def evaluated(self) -> Owned:
        """The same where they are on the device."""
        ids = np.arange(self.task.data.num_clients) if self.eval_ids is None else self.eval_ids
        return Owned.of(self.eval_clients, ids)

    @cached_property
    def validation_clients(self) -> Owned | Blocks | None:
        """The validation examples by owner; None if no client that trains has any."""
        if self.owners is None or self.validation is None:
            return None
        if self.stream is None:
            return Owned.by_owner(self.validation, self.owners, self.eval_clients.frozen)
        population, state_bytes = self.stream.population, 0
        if self.algorithm.traits.personal:
            state_bytes = client_state_bytes(self.algorithm, self.params, population.data.num_clients)
        return Blocks.by_owner(population, self.task.validation, self.owners, state_bytes)

    def own(self, state: RunState, owned: Owned) -> Own | None:
        """The models of examples' owners; None where all have the server's."""
        if not self.algorithm.traits.personal:
            return None
        return Own(self.algorithm, self.states(state, owned), owned.rows)

    def states(self, state: RunState, owned: Owned) -> Any:
        """The owners' own states, stacked."""
        if self.stream is not None:
            return self.stream.read_states(state, owned.ids, owned.packed.counts.shape[0])
        return jax.tree.map(lambda x: x[owned.ids], state.clients)

    def clock(self, done: int) -> dict[str, float]:
        """The simulated seconds and joules after so many rounds, by the columns' names; nothing without a fleet."""
        return {} if self.timeline is None else self.timeline.at(done)

    @property
    def timeline(self) -> Timeline | None:
        """Its updates on the clock of its fleet; None without one."""
        return None if self.timed is None else self.timed.timeline
