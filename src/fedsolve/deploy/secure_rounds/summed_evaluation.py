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
from fedsolve.deploy.messages.request_digest import request_digest
from fedsolve.deploy.messages.sanitize import reading, sanitize
from fedsolve.deploy.nodes.exchange import Replies
from fedsolve.deploy.secure.byte_reader import SumNotOpened
from fedsolve.deploy.secure_rounds.secure_coordinator import ROOM, SecureCoordinator
from fedsolve.deploy.secure_rounds.summed_metrics import Measured, SummedMetrics
from fedsolve.deploy.server.evaluation import ClientEvaluation
from fedsolve.deploy.server.evaluation_result import MEASURED, EvaluationResult
from fedsolve.engine.evaluation.eval_sets import as_part
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
        self._measured: dict[int, Measured] = {}  # by client
        self._save = lambda result: None  # there is nothing of single clients to save

    def _requests(self, steps: int, solver: Any) -> dict[int, EvaluateRequest]:
        """What the clients are asked, and how they mask their answers; nothing where they are too few for a sum."""
        coordinator, keys = self._coordinator, self._coordinator.keys
        requests = {
            request.client: (node, request) for node, request in super()._requests(steps, solver).items()
        }
        clients = keys.ready(sorted(requests))
        if new := [client for client in clients if client not in self._measured]:
            self._measured |= keys.measured(self._metrics, new)
        measured, clients = self._agreeing(clients)
        if measured is None or len(clients) < LEAST_SUM:
            return {}
        self._layout = SummedMetrics(self._metrics, measured, self._settings.population)
        shared = {"first_digest": coordinator.first_digest, "summed_parts": " ".join(measured.parts).encode()}
        asked = {c: dataclasses.replace(requests[c][1], **shared) for c in clients}
        digest = request_digest(asked[clients[0]], coordinator.run_config, measured.to_bytes())
        width = self._layout.width
        self._attempt = keys.begin("evaluate", coordinator.state.round, clients, 0, width, digest)
        return {
            requests[c][0]: dataclasses.replace(request, masks=self._attempt.order(c))
            for c, request in asked.items()
        }

    def _agreeing(self, clients: list[int]) -> tuple[Measured | None, list[int]]:
        """What most clients measure, on the parts that all of these have, and those clients."""
        known = {client: self._measured[client] for client in clients if client in self._measured}
        if not known:
            return None, []
        most = Counter(each._replace(parts=()) for each in known.values()).most_common(1)[0][0]
        for client, each in known.items():
            if each._replace(parts=()) != most:
                self._log(
                    f"{self._registry.names(client)} has other metrics than most, and is not asked for them"
                )
        agreeing = [client for client, each in known.items() if each._replace(parts=()) == most]
        parts = tuple(part for part in PARTS if all(part in known[client].parts for client in agreeing))
        return most._replace(parts=parts), agreeing

    def _result_of(self, done: int, steps: int, replies: Replies[Any]) -> SummedResult:
        """The metrics of the examples of all clients whose answers count."""
        totals: dict[str, PartMetrics] = {}
        try:
            if replies.accepted:
                opened = self._coordinator.keys.open(self._attempt)
                totals, clipped = self._layout.from_words(opened.words, len(opened.clients))
                if clipped:
                    self._log(
                        f"{replies.title}: {clipped} numbers of clients were too large and were clipped"
                    )
        except (SumNotOpened, InvalidInput) as error:
            totals = {}
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
