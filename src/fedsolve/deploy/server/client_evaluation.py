"""Asking the clients that are connected what a model is worth on their examples; nothing of it reaches the model."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from flwr.app import RecordDict
from flwr.serverapp import Grid

from fedsolve.deploy.messages.codec import Expected, record_to_reply
from fedsolve.deploy.messages.fact_checks import check_evaluate_reply
from fedsolve.deploy.messages.message import EvaluateReply, EvaluateRequest, PartMetrics
from fedsolve.deploy.messages.sanitize import reading
from fedsolve.deploy.nodes.client_registry import ClientRegistry
from fedsolve.deploy.nodes.exchange import Exchange, Replies
from fedsolve.deploy.server.coordinator import Coordinator
from fedsolve.deploy.server.evaluation_result import EvaluationResult, find_metric_outliers
from fedsolve.deploy.server.settings import Settings

Metrics = Mapping[str, PartMetrics]
"""What a client measured, by part of its examples."""


class ClientEvaluation(Exchange[EvaluateRequest, Metrics]):
    """Asks all clients that are connected, and waits for them as long as for a round's replies.

    Who leaves requests without an answer is not asked the next 1, 2, 4, ... times. That is apart from training, and
    so is all else here: who trains, and from what, is the same with and without it.

    Args:
        grid, coordinator, settings, registry, log: as for a round's replies.
        first: gives what was measured first, a mean over training examples of each metric.
        save: told what clients measured, each time that they are asked.
    """

    def __init__(
        self,
        grid: Grid,
        coordinator: Coordinator,
        settings: Settings,
        registry: ClientRegistry,
        first: Callable[[], Mapping[str, float]],
        save: Callable[[EvaluationResult], None],
        log: Callable[[str], None],
    ) -> None:
        self._coordinator, self._settings, self._registry = coordinator, settings, registry
        super().__init__(grid, "evaluate", settings.round_seconds, settings.grace, read_metrics, log)
        self._first, self._save = first, save
        self._times = 0
        self._last: EvaluationResult | None = None

    def evaluate(self, steps: int = 0, solver: Any = None) -> EvaluationResult:
        """What clients measure of the present model, after so many local steps of a solver.

        They are asked once a round where they take none.
        """
        if steps:
            return self._ask(steps, solver)
        if self._last is None or self._last.round != self._coordinator.state.round:
            self._last = self._ask(0, None)
        return self._last

    def _ask(self, steps: int, solver: Any) -> EvaluationResult:
        begun, done = time.perf_counter(), self._coordinator.state.round
        metrics = tuple(self._settings.client_metrics)
        self._times += 1
        request_for = self._coordinator.evaluate_requests(metrics, steps, solver)
        requests = {
            node: request_for(client)
            for client, node in self._registry.poll().items()
            if not self.backoff.is_backing_off(client, node, self._times)
        }
        title = f"evaluation after round {done}{f' and {steps} local steps' if steps else ''}"
        needed = self._settings.replies_needed(len(requests))
        replies: Replies[Metrics] = Replies(title, needed, len(requests))
        for client in self.run(requests, replies, turn=self._times, group=done):
            self.reject(replies, client, "no answer in time")
        self.take_late()
        for client, reason in find_metric_outliers(replies.accepted, self._first()).items():
            del replies.accepted[client]
            self.reject(replies, client, reason)
        self._log(
            f"{title}: {len(replies.accepted)} of {len(requests)} clients count, {replies.bytes_up:,} bytes up, "
            f"{replies.bytes_down:,} down, {time.perf_counter() - begun:.1f} s"
        )
        result = EvaluationResult(done, steps, metrics, replies.accepted, dict(replies.rejected))
        self._save(result)
        return result


def read_metrics(request: EvaluateRequest, record: RecordDict) -> Metrics:
    """What a client answered to a request, checked.

    Raises:
        InvalidInput: why it does not count, whatever it is made of.
    """
    with reading("the answer"):
        reply = record_to_reply(EvaluateReply, record, Expected(metrics=request.metrics))
        check_evaluate_reply(reply, request)
        return reply.parts
