"""A run made ready: what its rounds and evaluations need, and what it is known by."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedsolve.algorithm import ASSUMED, Algorithm
from fedsolve.buffers import with_buffers
from fedsolve.data.federated import FederatedData
from fedsolve.data.stored import StoredData
from fedsolve.diagnostics.base import Diagnostic
from fedsolve.engine.blocks import Blocks
from fedsolve.engine.clients import PackedClients
from fedsolve.engine.evaluate import Metrics, as_part, evaluate, middle
from fedsolve.engine.evaluate_blocks import evaluate_blocks
from fedsolve.engine.fingerprint import arrays_digest, code_digest, function_name
from fedsolve.engine.identity import versions
from fedsolve.engine.objective import compute_diagnostics
from fedsolve.engine.own_models import Own, Owned, ordered_by_owner
from fedsolve.engine.preflight import check_round
from fedsolve.engine.program import Program
from fedsolve.engine.reacting import changes, reacted, reacts
from fedsolve.engine.record import Recorder
from fedsolve.engine.round import RunState, advance, client_state_bytes, one_round
from fedsolve.engine.stream import Stream
from fedsolve.engine.timed import Timed
from fedsolve.engine.traffic import Traffic
from fedsolve.engine.whole import OnWholeSets
from fedsolve.sampling import Sampling
from fedsolve.systems.timeline import Timeline
from fedsolve.tasks.task import Task
from fedsolve.types import Batch, Params, reports


@dataclass(frozen=True)
class PreparedRun:
    """A run made ready: arguments checked, data on the device, the program chosen.

    Attributes:
        algorithm, sampling: with all numbers in the run's type.
        task: the problem.
        label: the method's name in tables.
        rounds: of the whole run.
        eval_every: rounds between evaluations.
        program: what is static in a compiled round.
        packed: all clients' examples; of a few where clients are streamed.
        shared: the same on every device that trains, here and in other processes.
        stream: reads those that come next; None if all are on the device.
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
        params: the initial model.
        state: what the first round begins with.
        key: of all rounds.
        traffic: bytes of a broadcast and of a message.
        timed: what the clock of its fleet makes of it; None without one.
        identity: what a checkpoint must share with the run that continues it.
        remarks: what is to be said of the run whatever happens.
    """

    algorithm: Algorithm
    sampling: Sampling
    task: Task
    label: str
    rounds: int
    eval_every: int
    program: Program
    packed: PackedClients
    shared: PackedClients
    stream: Stream | None
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
    params: Params
    state: RunState
    key: Any
    traffic: Traffic
    timed: Timed | None
    identity: dict[str, Any]
    remarks: tuple[str, ...]

    @property
    def dtype(self) -> Any:
        """The run's floating-point type."""
        return jnp.dtype(self.identity["dtype"])

    @property
    def settings(self) -> dict[str, Any]:
        """What the record says the run was: its identity, its length and how often it was evaluated."""
        return {**self.identity, "rounds": self.rounds, "eval_every": self.eval_every}

    @property
    def first_model(self) -> Any:
        """The initial model as the loss takes it, with frozen leaves and buffers."""
        return self.packed.model(with_buffers(self.params, self.task.buffers))

    def digests(self) -> dict[str, Any]:
        """What else decides a bit of the results: a checkpoint shares it, too, with the run that continues it."""
        task = self.task
        return {
            "versions": f"python {sys.version_info.major}.{sys.version_info.minor}, {versions()}",
            "sizes": arrays_digest(task.data.counts),
            "data": task.data.digest
            if isinstance(task.data, StoredData)
            else arrays_digest(task.data.examples),
            "test": arrays_digest(task.test),
            **({} if task.validation is None else {"held_out": arrays_digest(task.validation)}),
            **({} if task.unseen is None else {"unseen": arrays_digest(task.unseen.examples)}),
            "start": arrays_digest(self.first_model),
            "loss": function_name(task.loss),
            "metrics": ", ".join(f"{name} {function_name(f)}" for name, f in task.metrics.items()),
            "diagnostics": code_digest(self.diagnostics),
            "eval_examples": task.eval_examples,
            "code": code_digest(self.algorithm, self.sampling if self.timed is None else self.timed.asks),
        }

    def most_rounds(self, done: int) -> int:
        """Rounds of one call at most, after so many."""
        most = self.program.capacity
        return most if self.stream is None else min(most, self.stream.rounds_from(done))

    def advance(self, state: RunState, rounds: int) -> tuple[RunState, dict[str, np.ndarray]]:
        """So many rounds from a state on, at most `most_rounds`, in one compiled call, and their logs."""
        packed = self.shared
        if self.stream is not None:
            packed, state = self.stream.enter(state)
        inputs = (self.program, self.algorithm, self.sampling, packed, self.key)
        try:
            state, logs = advance(*inputs, state, jnp.int32(rounds))
        except TypeError:
            check_round(partial(one_round, *inputs), state)  # says it plainly if a shape or type changes
            raise
        return state, {name: np.asarray(log)[:rounds] for name, log in jax.device_get(logs).items()}

    def reacted(self, recorder: Recorder) -> PreparedRun:
        """The run with the rates of the next rounds, where they react to the evaluations; itself where none does."""
        if not reacts(self.algorithm):
            return self
        return replace(self, algorithm=reacted(self.algorithm, recorder.evaluations.arrays(), self.versions))

    @property
    def versions(self) -> int:
        """Broadcasts with which clients at work may have begun."""
        return 1 if self.timed is None else max(1, self.timed.depth)

    def means(self, state: RunState) -> dict[str, float]:
        """Loss and metrics that are means over examples, of the state's model, or of clients' own."""
        model, sets = self.algorithm.export(state.server), self.sets
        owned = (self.owned or self.owned_blocks) if self.algorithm.personal else None
        if owned is not None:
            del sets["validation"]
        found = self._means_of(self.blocks or self.evaluated, sets, model, state)
        if owned is not None:
            found |= as_part("validation", self._means_of(owned, {}, model, state))
        if self.unseen is not None:
            unseen = evaluate(self.metrics, self.unseen, {}, model, state.previous)
            found |= as_part("unseen", unseen)
        return found

    def _means_of(self, who: Owned | Blocks, sets: dict[str, Batch], model: Params, state: RunState) -> Any:
        if isinstance(who, Blocks):
            given = (self.eval_clients, sets, model, state.previous)
            return evaluate_blocks(self.metrics, who, *given, lambda block: self.own(state, block.owned))
        return evaluate(self.metrics, who.packed, sets, model, state.previous, self.own(state, who))

    @cached_property
    def evaluated(self) -> Owned:
        """The clients that the training metrics are of, where they are on the device."""
        ids = np.arange(self.task.data.num_clients) if self.eval_ids is None else self.eval_ids
        return Owned.of(self.eval_clients, ids)

    @cached_property
    def owned(self) -> Owned | None:
        """The validation examples by owner; None if they have none, or clients are streamed."""
        if self.owners is None or self.validation is None or self.stream is not None:
            return None
        return Owned.by_owner(self.validation, self.owners, self.packed.frozen)

    @cached_property
    def owned_blocks(self) -> Blocks | None:
        """The same where clients are streamed; None where they are not."""
        if self.owners is None or self.validation is None or self.stream is None:
            return None
        everyone, state = self.stream.population, 0
        examples, ids, counts = ordered_by_owner(self.task.validation, self.owners)
        if self.algorithm.personal:
            state = client_state_bytes(self.algorithm, self.params, everyone.data.num_clients)
        judged = replace(everyone, data=FederatedData(examples, counts), steps=np.ones_like(counts))
        return Blocks.of(judged, ids, state)

    def own(self, state: RunState, owned: Owned) -> Own | None:
        """The models of examples' owners; None where all have the server's."""
        if not self.algorithm.personal:
            return None
        return Own(self.algorithm, self.states(state, owned), owned.rows)

    def states(self, state: RunState, owned: Owned) -> Any:
        """The owners' own states, stacked."""
        if self.stream is not None:
            return self.stream.look(state, owned.ids, owned.packed.counts.shape[0])
        return jax.tree.map(lambda x: x[owned.ids], state.clients)

    @property
    def held_out(self) -> dict[str, Batch]:
        """The examples by name that no client trains on."""
        return self.sets | ({} if self.unseen is None else {"unseen": self.unseen.examples})

    @property
    def sets(self) -> dict[str, Batch]:
        """Those that are of no unseen clients."""
        sets = {"validation": self.validation, "test": self.test}
        return {name: examples for name, examples in sets.items() if examples is not None}

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
        uniform = self.algorithm.weighting == "uniform"
        values |= compute_diagnostics(self.diagnostics, self.task.loss, uniform, self.eval_clients, model)
        return values | self.clock(int(state.round))

    def clock(self, done: int) -> dict[str, float]:
        """The simulated seconds and joules after so many rounds, by the columns' names; nothing without a fleet."""
        return {} if self.timeline is None else self.timeline.at(done)

    @property
    def timeline(self) -> Timeline | None:
        """Its updates on the clock of its fleet; None without one."""
        return None if self.timed is None else self.timed.timeline

    def warnings(self, recorder: Recorder) -> tuple[str, ...]:
        """What the server's reports and the dropped updates give reason to say."""
        lines = [*self.remarks]
        if self.algorithm.secret_cohorts:
            lines.append(
                f"{ASSUMED}: here they follow from the seed, in a deployment from a key that stays on the server"
            )
        lines += [w for name, (_, w) in reports(self.state.server).items() if w and recorder.any(name)]
        if dropped := recorder.total("dropped"):
            lines.append(f"{dropped} updates were not finite and left out")
        lines += changes(self.algorithm, recorder.evaluations.arrays())
        return tuple(lines)
