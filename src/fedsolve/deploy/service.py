"""A deployment, round after round: ask a cohort, judge its replies, update, evaluate, keep."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedsolve.deploy import records
from fedsolve.deploy.coordinator import Accepted, Coordinator
from fedsolve.deploy.judging import reading
from fedsolve.deploy.keeper import Keeper
from fedsolve.deploy.policy import Policy, Unavailable
from fedsolve.deploy.post import exchange
from fedsolve.deploy.roster import Roster
from fedsolve.engine.record import Recorder
from fedsolve.errors import InvalidInput
from fedsolve.types import Params

Evaluate = Callable[[Params, dict[str, np.ndarray]], Mapping[str, float]]
"""(model, what is averaged beside it) -> metrics, with the names that simulations use, such as test_accuracy."""


@dataclass
class Asked:
    """What came of one round's messages so far."""

    accepted: dict[int, Accepted] = field(default_factory=dict)
    rejected: list[tuple[int, str]] = field(default_factory=list)
    bytes_down: int = 0
    bytes_up: int = 0


class Service:
    """Runs a coordinator's rounds on Flower's grid.

    Args:
        grid: Flower's grid.
        coordinator: the method and what it holds.
        policy: deadlines, and what happens when too few replies count.
        keeper: where the state is kept after every round.
        recorder: the record so far.
        rounds: rounds in all.
        evaluate: metrics of the model on the server, None for the clients' losses alone.
        eval_every: rounds between evaluations.
        report: told of every round as plain data.
        log: told in one line what happens.
    """

    def __init__(
        self,
        grid: Grid,
        coordinator: Coordinator,
        policy: Policy,
        keeper: Keeper,
        recorder: Recorder,
        *,
        rounds: int,
        evaluate: Evaluate | None,
        eval_every: int,
        report: Callable[[dict[str, Any]], None],
        log: Callable[[str], None],
    ) -> None:
        self._grid, self._coordinator, self._policy = grid, coordinator, policy
        self._keeper, self._recorder, self._rounds = keeper, recorder, rounds
        self._evaluate, self._every, self._report, self._log = evaluate, eval_every, report, log
        self.measures_loss = False
        """Whether the server's evaluation gives the training loss itself."""
        self._roster = Roster(grid, coordinator.population, coordinator.form, log)

    def run(self) -> None:
        """All rounds that are left.

        Raises:
            Unavailable: too few clients at the start, or too few good replies after the last repetition.
        """
        self._begun = time.perf_counter() - self._recorder.seconds
        if self._coordinator.held.round < self._rounds:
            quorum = self._policy.quorum or self._coordinator.population
            self._roster.gather(quorum, self._policy.connect_seconds)
        if not self._recorder.evaluated and self._evaluate is not None:
            self._look()
        while self._coordinator.held.round < self._rounds:
            self._round()

    def _round(self) -> None:
        begun, number = time.perf_counter(), self._coordinator.held.round + 1
        cohort = self._coordinator.draw()
        asked = Asked()
        needed = self._policy.needed(len(cohort))
        for again in range(self._policy.repeats + 1):
            self._ask([i for i in cohort if i not in asked.accepted], asked)
            if len(asked.accepted) >= needed:
                break
            shortage = (
                f"round {number}: {len(asked.accepted)} of {len(cohort)} replies count, {needed} are needed"
            )
            if self._policy.shortfall == "skip":
                self._log(f"{shortage}: the round is skipped")
                asked.accepted.clear()
                break
            if again == self._policy.repeats:
                why = "; ".join(
                    f"client {client}: {reason}" for client, reason in asked.rejected[-len(cohort) :]
                )
                raise Unavailable(
                    f"{shortage}, after {again + 1} attempts ({why}): mend the clients and resume"
                )
            self._log(f"{shortage}: those missing are asked again")
        entry = self._coordinator.finish(asked.accepted, len(cohort))
        sent = {"bytes_up": asked.bytes_up, "bytes_down": asked.bytes_down, "rejected": len(asked.rejected)}
        self._recorder.entry({"round": number, **entry, **sent})
        if number % self._every == 0 or number == self._rounds:
            self._look(entry.get("client_loss", float("nan")))
        self._recorder.seconds = time.perf_counter() - self._begun
        self._keeper.save(self._coordinator, self._recorder)
        self._report(
            {
                "round": number,
                "rounds": self._rounds,
                "replies": len(asked.accepted),
                **sent,
                "loss": entry.get("client_loss"),
                "seconds": time.perf_counter() - begun,
                "metrics": self._recorder.latest if self._recorder.evaluated else {},
                "reasons": [f"client {client}: {reason}" for client, reason in asked.rejected],
            }
        )

    def _ask(self, clients: list[int], asked: Asked) -> None:
        """Ask clients for this round, and judge what comes back."""
        here = self._roster.wait(clients, self._policy.connect_seconds)
        messages: dict[int, Message] = {}
        number, names = self._coordinator.held.round + 1, {}
        for client in clients:
            if client not in here:
                self._reject(asked, client, f"not connected within {self._policy.connect_seconds:g} s")
                continue
            record = records.order_to_record(self._coordinator.order(client))
            asked.bytes_down += records.size(record)
            node = here[client]
            names[node] = client
            messages[node] = Message(
                record, node, "train", group_id=str(number), ttl=self._policy.round_seconds + 60
            )
        if not messages:
            return
        for node, answer in exchange(self._grid, messages, self._policy.round_seconds):
            client = names[node]
            if isinstance(answer, str):
                self._reject(asked, client, answer)
                continue
            asked.bytes_up += records.size(answer)
            try:
                asked.accepted[client] = read_and_judge(self._coordinator, client, answer)
            except InvalidInput as error:
                self._reject(asked, client, str(error))

    def _reject(self, asked: Asked, client: int, reason: str) -> None:
        asked.rejected.append((client, reason))
        self._log(f"round {self._coordinator.held.round + 1}: client {client} does not count: {reason}")

    def _look(self, loss: float = float("nan")) -> None:
        """Evaluate the model; without an evaluation of its own the clients' loss is what is known."""
        found = (
            {}
            if self._evaluate is None
            else dict(self._evaluate(self._coordinator.model, self._coordinator.held.buffers))
        )
        self.measures_loss = "train_loss" in found
        seconds = time.perf_counter() - self._begun
        self._recorder.evaluation(self._coordinator.held.round, seconds, {"train_loss": loss, **found})


def read_and_judge(coordinator: Coordinator, client: int, answer: RecordDict) -> Accepted:
    """What a client answered to this round's order, checked.

    Raises:
        InvalidInput: why it does not count, whatever it is made of.
    """
    with reading("the reply"):
        reply = records.record_to_reply(answer, coordinator.longest, coordinator.held.buffers)
        return coordinator.judge(client, reply)
