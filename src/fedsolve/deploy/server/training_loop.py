"""A deployment, round after round: ask a cohort, validate its replies, update, evaluate, save."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from flwr.serverapp import Grid

from fedsolve.core.errors import Diverged, Unavailable
from fedsolve.deploy.checkpoint import DeploymentCheckpoint
from fedsolve.deploy.nodes.client_registry import ClientRegistry, NodeBindings
from fedsolve.deploy.nodes.exchange import Replies
from fedsolve.deploy.server.client_evaluation import ClientEvaluation
from fedsolve.deploy.server.collect import ReplyCollector
from fedsolve.deploy.server.coordinator import Coordinator
from fedsolve.deploy.server.evaluation import Evaluation
from fedsolve.deploy.server.evaluation_result import EvaluationResult, first_means
from fedsolve.deploy.server.outliers import LARGEST, WHOSE, sharpest_rise, why_most_rose
from fedsolve.deploy.server.server_state import Accepted
from fedsolve.deploy.server.settings import Settings
from fedsolve.engine.records.record import Recorder


@dataclass(frozen=True)
class Reports:
    """Who is told what happens in a run.

    Attributes:
        round: told of every round as plain data.
        client_metrics: told what clients measured, each time that they are asked.
        log: told in one line.
    """

    round: Callable[[dict[str, Any]], None]
    client_metrics: Callable[[EvaluationResult], None]
    log: Callable[[str], None]


class TrainingLoop:
    """Runs a coordinator's rounds on Flower's grid.

    Args:
        grid: Flower's grid.
        coordinator: the method and its state.
        settings: rounds, deadlines, what evaluates, and what happens when too few replies count.
        checkpoint: where the state is saved after every round.
        recorder: the record so far.
        bindings: which node each client number belongs to.
        result: gives the `fedsolve.Result` so far.
        reports: who is told what happens.

    Attributes:
        evaluation: what evaluates.
        ended: why a callback ended the run, "" if none did.
    """

    def __init__(
        self,
        grid: Grid,
        coordinator: Coordinator,
        settings: Settings,
        checkpoint: DeploymentCheckpoint,
        recorder: Recorder,
        bindings: NodeBindings,
        result: Callable[[], Any],
        reports: Reports,
    ) -> None:
        self._grid, self._coordinator, self._settings = grid, coordinator, settings
        self._checkpoint, self._recorder = checkpoint, recorder
        self._reports, self._log = reports, reports.log
        self._void_rounds = 0  # in a row: after each the model would not have been finite
        self.ended = ""
        self._registry = ClientRegistry(
            grid, coordinator.population, coordinator.signature, bindings, settings.takeover, self._log
        )
        self._collector = ReplyCollector(grid, coordinator, settings, self._registry, self._log)
        clients = ClientEvaluation(
            grid,
            coordinator,
            settings,
            self._registry,
            lambda: first_means(recorder.evaluations.columns),
            reports.client_metrics,
            self._log,
        )
        self.evaluation = Evaluation(
            coordinator, recorder, settings, clients if settings.client_metrics else None, result
        )

    def run(self) -> None:
        """All rounds that are left, unless a callback ends the run.

        Raises:
            Unavailable: too few clients at the start, or too few good replies after the last repetition.
        """
        self._begun = time.perf_counter() - self._recorder.seconds
        if self._coordinator.state.round < self._settings.rounds:
            quorum = self._settings.quorum or self._coordinator.population
            self._registry.wait_for_quorum(quorum, self._settings.connect_seconds)
        if self._recorder.evaluated:
            self._react()
        elif self.evaluation.measures:
            self._evaluate()
        while self._coordinator.state.round < self._settings.rounds and not self.ended:
            self._run_round()

    def _evaluate(self, client_loss: float = float("nan")) -> None:
        self.evaluation.record(lambda: time.perf_counter() - self._begun, client_loss)
        self._react()

    def _react(self) -> None:
        """Let callbacks and rates react to the last evaluation."""
        self.ended = self.evaluation.why_the_run_ends()
        self._coordinator.react(self._recorder.evaluations.arrays())

    def _run_round(self) -> None:
        begun, number = time.perf_counter(), self._coordinator.state.round + 1
        replies = self._collect_replies(number)
        entry = self._finish_round(replies.accepted, replies.wanted)
        traffic = {
            "bytes_up": replies.bytes_up,
            "bytes_down": replies.bytes_down,
            "rejected": len(replies.rejected),
        }
        self._recorder.entry({"round": number, **entry, **traffic})
        if number % self._settings.eval_every == 0 or number == self._settings.rounds:
            self._evaluate(entry.get("client_loss", float("nan")))
        self._recorder.seconds = time.perf_counter() - self._begun
        self._checkpoint.save(self._coordinator, self._recorder)
        self._reports.round(
            {
                "round": number,
                "rounds": self._settings.rounds,
                "replies": len(replies.accepted),
                **traffic,
                "loss": entry.get("client_loss"),
                LARGEST: entry.get(LARGEST),
                WHOSE: entry.get(WHOSE),
                "seconds": time.perf_counter() - begun,
                "metrics": self._recorder.latest if self._recorder.evaluated else {},
                "reasons": [f"client {client}: {reason}" for client, reason in replies.rejected],
            }
        )

    def _collect_replies(self, number: int) -> Replies[Accepted]:
        """The replies to a round's orders; none where too few count and such rounds are skipped."""
        settings, cohort = self._settings, self._coordinator.draw_cohort()
        wanted = settings.replies_wanted(len(cohort))
        needed = max(settings.replies_needed(wanted), min(self._coordinator.fewest, wanted))
        replies: Replies[Accepted] = Replies(f"round {number}", needed, wanted)
        for attempt in range(settings.repeats + 1):
            missing = [client for client in cohort if client not in replies.accepted]
            self._collector.collect(missing, replies, is_retry=attempt > 0)
            for client, reason in self._coordinator.exclude_outliers(replies.accepted).items():
                self._collector.reject(replies, client, reason)
            if replies.is_enough:
                break
            count = f"{len(replies.accepted)} of {wanted} replies count, {replies.needed} are needed"
            shortage = f"round {number}: {count}"
            if settings.shortfall == "skip":
                self._log(f"{shortage}{self._why_too_large(replies)}: the round is skipped")
                replies.accepted.clear()
                break
            if attempt == settings.repeats:
                last = replies.rejected[-len(cohort) :]
                reasons = "; ".join(f"client {client}: {reason}" for client, reason in last)
                raise Unavailable(
                    f"{shortage}, after {attempt + 1} attempts ({reasons}){self._why_too_large(replies)}: mend the "
                    "clients and resume"
                )
            self._log(f"{shortage}: those missing are asked again")
        return replies

    def _why_too_large(self, replies: Replies[Accepted] | None = None) -> str:
        """The update that a model was probably spoiled by, where numbers became too large; where to go back to."""
        if replies is not None and not replies.too_large:
            return ""
        rise = sharpest_rise(self._recorder.rounds.columns)
        return f"; {rise}; {self._checkpoint.how_to_go_back(rise.round)}" if rise else ""

    def _finish_round(self, accepted: dict[int, Accepted], drawn: int) -> dict[str, float]:
        """End the round, without any reply if the model would not be finite after it."""
        before = self._coordinator.state
        try:
            entry = self._coordinator.finish_round(accepted, drawn)
            self._void_rounds = 0
            if words := why_most_rose(before.usual, self._coordinator.state.usual):
                back = self._checkpoint.how_to_go_back(before.round + 1)
                self._log(f"round {before.round + 1}: {words}; if the change is none of yours, {back}")
            return entry
        except Diverged as error:
            self._void_rounds += 1
            if self._void_rounds > self._settings.repeats:
                raise Diverged(
                    f"{error}, as after the {self._void_rounds - 1} rounds before: the last checkpoint is kept; "
                    f"lower the rates, or set norm_bound if clients cannot be trusted{self._why_too_large()}"
                ) from None
            self._log(f"{error}: the round is void, set norm_bound to refuse such replies")
            accepted.clear()
            return self._coordinator.finish_round(accepted, drawn)
