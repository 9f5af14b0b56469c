"""The evaluations of a deployment: by the server, and by the clients that are connected; no model follows from them."""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from flwr.app import RecordDict
from flwr.serverapp import Grid

from fedsolve.core.errors import InvalidInput, check_integer, shown
from fedsolve.deploy.messages.codec import Expected, record_to_reply
from fedsolve.deploy.messages.fact_checks import check_evaluate_reply
from fedsolve.deploy.messages.message import EVALUATE, EvaluateReply, EvaluateRequest, PartMetrics
from fedsolve.deploy.messages.sanitize import reading, sanitize
from fedsolve.deploy.monitoring.client_status import Cause
from fedsolve.deploy.monitoring.phases import PhaseClock
from fedsolve.deploy.nodes.client_registry import ClientRegistry
from fedsolve.deploy.nodes.exchange import Exchange, Replies
from fedsolve.deploy.nodes.pending_requests import PendingRequests, send_and_wait
from fedsolve.deploy.server.coordinator import Coordinator
from fedsolve.deploy.server.evaluation_result import EvaluationResult, find_metric_outliers
from fedsolve.deploy.server.settings import Settings
from fedsolve.report.style import human_time
from fedsolve.results.clients import ClientMetrics

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
        super().__init__(
            grid, EVALUATE, settings.round_seconds, settings.grace, self._read, registry.clients, log
        )
        self._first, self._save = first, save
        self._times = 0
        self._last: EvaluationResult | None = None
        self._under_way: Callable[[], EvaluationResult] | None = None

    def _read(self, request: EvaluateRequest, record: RecordDict) -> Metrics:
        return read_metrics(request, record, self._coordinator.declared.get(request.client))

    def prepare(self) -> PendingRequests[EvaluateRequest, Metrics]:
        """The requests of the next `evaluate`, for a caller that sends them beside others before it asks for that."""
        pending, self._under_way = self._prepare(0, None)
        return pending

    def evaluate(self, steps: int = 0, solver: Any = None) -> EvaluationResult:
        """What clients measure of the present model, after so many local steps of a solver.

        They are asked once a round where they take none.
        """
        if steps:
            return self._ask(steps, solver)
        if self._under_way is not None:
            self._last, self._under_way = self._under_way(), None
        if self._last is None or self._last.round != self._coordinator.state.round:
            self._last = self._ask(0, None)
        return self._last

    def _ask(self, steps: int, solver: Any) -> EvaluationResult:
        pending, result = self._prepare(steps, solver)
        send_and_wait([pending], self._coordinator.state.round, PhaseClock())
        return result()

    def _prepare(
        self, steps: int, solver: Any
    ) -> tuple[PendingRequests[EvaluateRequest, Metrics], Callable[[], EvaluationResult]]:
        """Requests, and what gives the result once they were waited for."""
        begun, done = time.perf_counter(), self._coordinator.state.round
        self._times += 1
        requests = self._requests(steps, solver)
        title = f"evaluation after round {done}{f' and {steps} local steps' if steps else ''}"
        needed = self._settings.replies_needed(len(requests))
        replies: Replies[Metrics] = Replies(title, needed, len(requests))
        pending = PendingRequests(self, requests, replies, self._times)

        def result() -> EvaluationResult:
            for client in pending.silent:
                self.reject(replies, client, Cause.NO_ANSWER, "no answer in time")
            self.take_late()
            for client, reason in find_metric_outliers(replies.accepted, self._first()).items():
                del replies.accepted[client]
                self.reject(replies, client, Cause.OUTLIER, reason)
            self._clients.succeeded(replies.accepted)
            self._log(
                f"{title}: {len(replies.accepted)} of {len(requests)} clients count, {replies.bytes_up:,} bytes up, "
                f"{replies.bytes_down:,} down, {human_time(time.perf_counter() - begun)}"
            )
            found = self._result_of(done, steps, replies)
            self._save(found)
            return found

        return pending, result

    @property
    def _metrics(self) -> tuple[str, ...]:
        """The names of the metrics that are asked for."""
        return tuple(self._settings.client_metrics)

    def _requests(self, steps: int, solver: Any) -> dict[int, EvaluateRequest]:
        """What the clients that are connected are asked, by node."""
        request_for = self._coordinator.evaluate_requests(self._metrics, steps, solver)
        return {
            node: request_for(client)
            for client, node in self._registry.poll().items()
            if not self.backoff.is_backing_off(client, node, self._times)
        }

    def _result_of(self, done: int, steps: int, replies: Replies[Metrics]) -> EvaluationResult:
        """The result of the replies that count."""
        refused = dict(replies.rejected)
        return EvaluationResult(done, steps, self._metrics, replies.accepted, refused, self._registry.names)


class Evaluation:
    """Evaluates a coordinator's model.

    Args:
        coordinator: the method and its state.
        settings: metrics of the model on the server.
        clients: asks the clients; None if they measure nothing.
    """

    def __init__(
        self, coordinator: Coordinator, settings: Settings, clients: ClientEvaluation | None
    ) -> None:
        self._coordinator, self._settings, self._clients = coordinator, settings, clients

    @property
    def may_be_carried(self) -> bool:
        """Whether the next round's orders may carry it: nothing asks for it before, and all are waited for."""
        settings = self._settings
        waits_for_all = not settings.over_select and settings.grace in (None, math.inf)
        is_asked_for = bool(settings.callbacks) or self._coordinator.reacts
        return self._clients is not None and waits_for_all and not is_asked_for

    @property
    def measures(self) -> bool:
        """Whether there is more to an evaluation than the losses of local steps."""
        return self._settings.evaluate is not None or self._clients is not None

    def metrics(self, is_first: bool) -> dict[str, float]:
        """What is measured of the present model, nothing where nobody measures anything.

        Raises:
            InvalidInput: `evaluate` raises, or in the first evaluation no client can measure what all are asked.
        """
        return self._measured_by_clients(is_first) | self._measured_here()

    def _measured_here(self) -> dict[str, float]:
        if self._settings.evaluate is None:
            return {}
        try:
            return dict(self._settings.evaluate(self._coordinator.model, self._coordinator.state.buffers))
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            done = self._coordinator.state.round
            raise InvalidInput(
                f"evaluate raised {type(error).__name__} after round {done} ({sanitize(error)}; {last.filename}, "
                f"line {last.lineno}): fix it and resume"
            ) from error

    def _measured_by_clients(self, is_first: bool) -> dict[str, float]:
        if self._clients is None:
            return {}
        result = self._clients.evaluate()
        if not result.answers and result.refused and is_first:  # nothing is lost yet
            client, reason = min(result.refused.items())
            raise InvalidInput(
                f"no client evaluates client_metrics = {result.metrics}; {result.names(client)}: {reason}"
            )
        return result.columns()

    def by_client(
        self, *, unseen: bool = False, validation: bool = False, steps: int = 0, solver: Any = None
    ) -> ClientMetrics:
        """What callbacks are given as `Evaluated.clients`: the metrics of those that answer.

        Raises:
            InvalidInput: clients are not asked, or of what a federation has not; a number of steps below 0, what is no
                solver; validation examples that no client has.
        """
        if self._clients is None:
            raise InvalidInput(
                "clients measure nothing in this run: give server_app client_metrics = ('loss',)"
            )
        if unseen:
            raise InvalidInput("a federation has no held-out clients: each client may train")
        if check_integer("steps", steps) and not callable(getattr(solver, "solve", None)):
            raise InvalidInput(
                f"solver = {shown(solver)} must be one such as fs.client.SGD(0.1), for {steps} steps"
            )
        result = self._clients.evaluate(steps, solver)
        metrics = result.clients("validation" if validation else "train")
        if validation and result.answers and not metrics.names:
            raise InvalidInput(
                "no client has validation examples: give their oracles some, such as JaxOracle(..., validation=...)"
            )
        return metrics


def read_metrics(request: EvaluateRequest, record: RecordDict, declared: int | None = None) -> Metrics:
    """What a client answered to a request, checked; `declared` are the examples that it trains on, None if unknown.

    Raises:
        InvalidInput: why it does not count, whatever it is made of.
    """
    with reading("the answer"):
        reply = record_to_reply(EvaluateReply, record, Expected(metrics=request.metrics))
        check_evaluate_reply(reply, request, declared)
        return reply.parts
