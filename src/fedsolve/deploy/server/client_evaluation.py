"""Asking the clients that are connected what a model is worth on their examples; nothing of it reaches the model."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedsolve.core.errors import InvalidInput
from fedsolve.deploy.evaluation_result import Found
from fedsolve.deploy.far_answers import find_far_answers
from fedsolve.deploy.messages import records
from fedsolve.deploy.messages.codec import Expected, record_to_reply, to_record
from fedsolve.deploy.messages.fact_checks import check_evaluate_reply
from fedsolve.deploy.messages.message import EvaluateReply, EvaluateRequest, PartMetrics
from fedsolve.deploy.messages.sanitize import reading
from fedsolve.deploy.nodes.registry import ClientRegistry
from fedsolve.deploy.nodes.transport import MARGIN, Mailbox, send_and_collect
from fedsolve.deploy.server.backoff import Backoff
from fedsolve.deploy.server.coordinator import Coordinator
from fedsolve.deploy.server.settings import Settings


@dataclass
class _Answers:
    """What has come of one question so far, by client."""

    counted: dict[int, Mapping[str, PartMetrics]] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    bytes_up: int = 0
    closes: float = math.inf


class ClientEvaluation:
    """Asks all clients that are connected, and waits for them as long as for a round's replies.

    Who leaves questions without an answer is not asked the next 1, 2, 4, ... times. That is apart from training, and
    so is all else here: who trains, and from what, is the same with and without it.

    Args:
        grid: Flower's grid.
        coordinator: the method and its state.
        settings: deadlines, and the metrics that clients are asked for.
        registry: which client sits at which node.
        first: gives what was measured first, a mean over training examples of each metric.
        keep: told what clients found, each time that they are asked.
        log: told in one line what happens.
    """

    def __init__(
        self,
        grid: Grid,
        coordinator: Coordinator,
        settings: Settings,
        registry: ClientRegistry,
        first: Callable[[], Mapping[str, float]],
        keep: Callable[[Found], None],
        log: Callable[[str], None],
    ) -> None:
        self._coordinator, self._settings, self._registry, self._log = coordinator, settings, registry, log
        self._mailbox, self._backoff, self._keep = Mailbox(grid), Backoff(), keep
        self._first = first
        self._times = 0
        self._last: Found | None = None

    def found(self, steps: int = 0, solver: Any = None) -> Found:
        """What clients find of the present model; they are asked once a round where they take no steps before.

        Args:
            steps: local steps that each takes before, 0 for none.
            solver: the local solver that takes them.
        """
        if steps:
            return self._ask(steps, solver)
        if self._last is None or self._last.round != self._coordinator.state.round:
            self._last = self._ask(0, None)
        return self._last

    def _ask(self, steps: int, solver: Any) -> Found:
        begun, done = time.perf_counter(), self._coordinator.state.round
        metrics = tuple(self._settings.client_metrics)
        self._times += 1
        ask = self._coordinator.evaluate_requests(metrics, steps, solver)
        questions = {
            node: ask(client)
            for client, node in self._registry.poll().items()
            if not self._backoff.is_backing_off(client, node, self._times)
        }
        answers = _Answers()
        bytes_down = self._collect(questions, answers)
        for client, reason in find_far_answers(answers.counted, self._first()).items():
            del answers.counted[client]
            answers.refused[client] = reason
        when = f"evaluation after round {done}{f' and {steps} local steps' if steps else ''}"
        for client, reason in sorted(answers.refused.items()):
            self._log(f"{when}: client {client} does not count: {reason}")
        self._log(
            f"{when}: {len(answers.counted)} of {len(questions)} clients count, {answers.bytes_up:,} bytes up, "
            f"{bytes_down:,} down, {time.perf_counter() - begun:.1f} s"
        )
        found = Found(done, steps, metrics, answers.counted, answers.refused)
        self._keep(found)
        return found

    def _collect(self, questions: Mapping[int, EvaluateRequest], answers: _Answers) -> int:
        """Ask each node its question, and take what comes until the deadline; the bytes that were sent."""
        seconds, messages, bytes_down = self._settings.round_seconds, {}, 0
        for node, question in questions.items():
            record = to_record(question)
            bytes_down += records.record_bytes(record)
            group, ttl = str(question.round), seconds + MARGIN
            messages[node] = Message(record, node, "evaluate", group_id=group, ttl=ttl)
        enough = self._settings.replies_needed(len(questions))
        for node, answer in send_and_collect(self._mailbox, messages, seconds, lambda: answers.closes):
            self._take(questions[node], answer, answers)
            if self._settings.grace is not None and len(answers.counted) >= enough:
                answers.closes = min(answers.closes, time.monotonic() + self._settings.grace)
        for node in self._mailbox.waiting:
            client = questions[node].client
            self._backoff.record_miss(client, node, self._times)
            answers.refused[client] = "no answer in time"
        self._mailbox.close(seconds + MARGIN)
        self._mailbox.late.clear()
        return bytes_down

    def _take(self, question: EvaluateRequest, answer: RecordDict | str, answers: _Answers) -> None:
        if isinstance(answer, str):
            answers.refused[question.client] = answer
            return
        self._backoff.record_answer(question.client)
        answers.bytes_up += records.record_bytes(answer)
        try:
            answers.counted[question.client] = read_answer(answer, question)
        except InvalidInput as error:
            answers.refused[question.client] = str(error)


def read_answer(record: RecordDict, question: EvaluateRequest) -> Mapping[str, PartMetrics]:
    """What a client answered to a question, checked, by part.

    Raises:
        InvalidInput: why it does not count, whatever it is made of.
    """
    with reading("the answer"):
        reply = record_to_reply(EvaluateReply, record, Expected(metrics=question.metrics))
        check_evaluate_reply(reply, question)
        return reply.parts
