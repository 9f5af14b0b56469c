"""Evaluation under secure sums: clients add up what they measure, and the server sees the metrics of all examples."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flwr.app import RecordDict

from fedsolve.core.errors import InvalidInput
from fedsolve.deploy.client.secure_sums import LEAST_SUM
from fedsolve.deploy.messages.codec import Expected, record_to_reply
from fedsolve.deploy.messages.fact_checks import check_addressed
from fedsolve.deploy.messages.message import PARTS, EvaluateReply, EvaluateRequest, PartMetrics
from fedsolve.deploy.messages.sanitize import reading, sanitize
from fedsolve.deploy.nodes.exchange import Replies
from fedsolve.deploy.secure.byte_reader import SumNotOpened
from fedsolve.deploy.secure_rounds.secure_coordinator import ROOM, SecureCoordinator
from fedsolve.deploy.secure_rounds.summed_metrics import SummedMetrics
from fedsolve.deploy.server.evaluation import ClientEvaluation
from fedsolve.deploy.server.evaluation_result import MEASURED, EvaluationResult
from fedsolve.engine.evaluation.pooling import as_part
from fedsolve.results.clients import ClientMetrics


@dataclass(frozen=True)
class SummedResult(EvaluationResult):
    """What clients measured together.

    Attributes:
        totals: of each part, the metrics of all examples; no client's own.
    """

    totals: Mapping[str, PartMetrics] = dataclasses.field(default_factory=dict)

    def columns(self) -> dict[str, float]:
        """Means over all examples, under the names that simulations have them by."""
        columns: dict[str, float] = {MEASURED: len(self.answers)}
        for part in PARTS:
            if part in self.totals:
                pooled = {f"train_{c.name}": c.pooled for c in self._columns({0: self.totals[part]})}
                columns |= pooled if part == "train" else as_part(part, pooled)
        return columns

    def clients(self, part: str) -> ClientMetrics:
        """Raise `InvalidInput`: no client's own metrics are known."""
        raise InvalidInput("under fs.Secure no client's own metrics are known: leave out what asks for them")


class SummedEvaluation(ClientEvaluation):
    """Asks all clients that are connected for one sum of their metrics."""

    _coordinator: SecureCoordinator
    _layout: SummedMetrics
    _attempt: Any = None

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._kinds: dict[int, Any] = {}  # of each client's metrics
        self._save = lambda result: None  # there is nothing of single clients to save

    def _requests(self, steps: int, solver: Any) -> dict[int, EvaluateRequest]:
        """What the clients are asked, and how they mask their answers; nothing where they are too few for a sum."""
        keys, requests = self._coordinator.keys, super()._requests(steps, solver)
        clients = keys.ready(sorted(request.client for request in requests.values()))
        if new := [client for client in clients if client not in self._kinds]:
            self._kinds |= keys.kinds(self._metrics, new)
        kinds, clients = self._agreeing(clients)
        if len(clients) < LEAST_SUM:
            return {}
        self._layout = SummedMetrics(self._metrics, kinds, self._settings.population)
        self._attempt = keys.begin("evaluate", self._coordinator.state.round, clients, 0, self._layout.width)
        return {
            node: dataclasses.replace(request, masks=self._attempt.order(request.client))
            for node, request in requests.items()
            if request.client in clients
        }

    def _agreeing(self, clients: list[int]) -> tuple[Any, list[int]]:
        """What the metrics of most clients are, and those clients."""
        known = {client: self._kinds[client] for client in clients if client in self._kinds}
        if not known:
            return (), []
        most = Counter(known.values()).most_common(1)[0][0]
        for client, kinds in known.items():
            if kinds != most:
                self._log(
                    f"{self._registry.names(client)} has other metrics than most, and is not asked for them"
                )
        return most, [client for client, kinds in known.items() if kinds == most]

    def _result_of(self, done: int, steps: int, replies: Replies[Any]) -> SummedResult:
        """The metrics of the examples of all clients whose answers count."""
        totals: dict[str, PartMetrics] = {}
        try:
            if replies.accepted:
                totals, clipped = self._layout.from_words(self._coordinator.keys.open(self._attempt).words)
                if clipped:
                    self._log(
                        f"{replies.title}: {clipped} numbers of clients were too large and were clipped"
                    )
        except SumNotOpened as error:
            self._log(f"{replies.title}: {error}")
            replies.accepted.clear()
        refused = dict(replies.rejected)
        names = self._registry.names
        return SummedResult(done, steps, self._metrics, replies.accepted, refused, names, totals=totals)

    def _read(self, request: EvaluateRequest, record: RecordDict) -> dict[str, PartMetrics]:
        """Add a client's metrics to the sum; nothing is known of them alone."""
        with reading("the answer"):
            expected = Expected(8 * self._layout.width + ROOM, metrics=request.metrics)
            reply = record_to_reply(EvaluateReply, record, expected)
            check_addressed(reply, request.experiment, request.round, request.client)
            if reply.steps != request.steps or reply.parts or reply.masked is None:
                raise InvalidInput(f"it is of {sanitize(reply.steps)} steps, or not masked")
            self._attempt.add(request.client, reply.masked)
            return {}
