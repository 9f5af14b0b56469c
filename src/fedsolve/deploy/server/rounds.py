"""The rounds of a deployment: ask a cohort, validate its replies, update, evaluate, save."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from flwr.app import RecordDict
from flwr.serverapp import Grid

from fedsolve.core.errors import Diverged, Unavailable
from fedsolve.deploy import codec
from fedsolve.deploy.client.secure_sums import LEAST_SUM
from fedsolve.deploy.client.state import StateLost
from fedsolve.deploy.codec import Expected, record_to_reply
from fedsolve.deploy.exchange import Exchange, PendingRequests, Replies, send_and_wait
from fedsolve.deploy.message import TRAIN, TrainReply, TrainRequest
from fedsolve.deploy.registry import ClientRegistry
from fedsolve.deploy.run_log import Reports
from fedsolve.deploy.sanitize import reading
from fedsolve.deploy.secure.primitives import RoundIsOver, SumNotOpened
from fedsolve.deploy.secure.rounds import SecureCoordinator, SecureSession, SummedEvaluation
from fedsolve.deploy.server.checkpoint import DeploymentCheckpoint
from fedsolve.deploy.server.coordinator import LARGEST, SITE, WHOSE, Accepted, Coordinator, largest_update
from fedsolve.deploy.server.evaluation import ClientEvaluation, Evaluation, first_means
from fedsolve.deploy.server.settings import Settings
from fedsolve.deploy.site_names import SiteNames
from fedsolve.deploy.status import Cause, PhaseClock
from fedsolve.engine.loop import RecordedRounds, Stopwatch
from fedsolve.engine.record import Recorder
from fedsolve.results.clients import ClientMetrics
from fedsolve.tasks.training_loops import UNMOVED

# Asking a cohort for one round: who is asked, and which of the replies count.


class ReplyCollector(Exchange[TrainRequest, Accepted]):
    """Asks clients for rounds of a coordinator, and remembers who kept a round waiting.

    Under secure sums only clients that have pre-keys are asked, and nobody where they are too few for a sum.
    """

    def __init__(
        self,
        grid: Grid,
        coordinator: Coordinator,
        settings: Settings,
        registry: ClientRegistry,
        phases: PhaseClock,
        log: Callable[[str], None],
    ) -> None:
        self._coordinator, self._settings, self._registry = coordinator, settings, registry
        self._phases = phases
        super().__init__(
            grid, TRAIN, settings.round_seconds, settings.grace, self._read, registry.clients, log
        )

    def collect(
        self,
        clients: list[int],
        replies: Replies[Accepted],
        is_retry: bool,
        beside: Callable[[], PendingRequests[Any, Any]] | None = None,
    ) -> None:
        """Ask clients for this round, and validate what comes back until the round closes."""
        # Clients that kept an earlier one waiting are left alone, unless this is a retry or too few would be left.
        # With `beside`, the messages carry these requests too, and the round closes when the wait for them ends as
        # well.
        with self._phases.during("wait"):
            clients, connected = self._connected(clients, replies, is_retry)
        with self._phases.during("orders"):
            if isinstance(self._coordinator, SecureCoordinator):
                self._coordinator.begin_attempt(clients)
            requests = {connected[client]: self._coordinator.train_request(client) for client in clients}
            orders = PendingRequests(self, requests, replies, self._round)
            pending = [orders, beside()] if beside else [orders]
        send_and_wait(pending, self._round, self._phases)
        for client in orders.silent:
            self.reject(replies, client, Cause.NO_ANSWER, f"no answer within {self.waited}")
        self._note_late_answers(connected)

    def _connected(
        self, clients: list[int], replies: Replies[Accepted], is_retry: bool
    ) -> tuple[list[int], dict[int, int]]:
        session = self._coordinator.session if isinstance(self._coordinator, SecureCoordinator) else None
        if session is not None:
            for client in set(clients) & set(session.left_out):
                self.reject(replies, client, Cause.INVALID, session.left_out[client])
            clients = [client for client in clients if client not in session.left_out]
        connected = self._registry.poll()
        if not is_retry:
            clients = self._without_backoff(clients, connected, replies)
        # Who is not on Flower's list may be about to connect.
        if not set(clients) <= set(connected):
            connected = self._registry.wait(clients, self._settings.connect_seconds)
        for client in clients:
            if client in connected:
                continue
            if (why := self._registry.refused.get(client)) is not None:
                why = why.removeprefix(f"{self._names(client)}: ")
                self.reject(replies, client, Cause.REFUSED, f"refused: {why}")
                continue
            # It is not waited for again before it connects.
            self.backoff.record_miss(client, None, self._round)
            reason = f"not connected within {self._settings.connect_seconds:g} s"
            self.reject(replies, client, Cause.NOT_CONNECTED, reason)
        asked = [client for client in clients if client in connected]
        if session is not None:
            asked = session.ready(asked, replies.needed)
            asked = asked if len(asked) >= LEAST_SUM else []
        return asked, connected

    def _without_backoff(
        self, clients: list[int], connected: dict[int, int], replies: Replies[Accepted]
    ) -> list[int]:
        # The clients that are asked now; all of them if too few would be left.
        skipped = {
            client
            for client in clients
            if self.backoff.is_backing_off(client, connected.get(client), self._round)
        }
        # Better to wait for one that was late than to have too few.
        if len(clients) - len(skipped) < replies.needed:
            return clients
        for client in sorted(skipped):
            reason = "not asked: it left an earlier round without an answer"
            self.reject(replies, client, Cause.NOT_ASKED, reason)
        return [client for client in clients if client not in skipped]

    def _note_late_answers(self, connected: dict[int, int]) -> None:
        # An answer to an order that is over is no part of any round; it shows that its client is alive.
        clients = {node: client for client, node in connected.items()}
        for node in self.take_late():
            if node in clients:
                self.backoff.record_answer(clients[node])
                self._clients.on_message(clients[node])
                self._log(
                    f"{self._names(clients[node])} answers, too late for the round that it was asked for"
                )

    @property
    def _round(self) -> int:
        return self._coordinator.state.round + 1

    def _read(self, request: TrainRequest, answer: RecordDict) -> Accepted:
        reply = read_and_validate(self._coordinator, request.client, answer)
        if reply.parts.get("delta") == 0 and request.client in self._registry.loops:
            self._registry.notes.setdefault(UNMOVED, request.client)
        return reply


def read_and_validate(coordinator: Coordinator, client: int, answer: RecordDict) -> Accepted:
    with reading("the reply"):
        try:
            expected = Expected(coordinator.max_message_bytes, coordinator.returned_buffers)
            reply = record_to_reply(TrainReply, answer, expected)
        except StateLost:
            # The next order brings the state where the server tracks it; a retry of this round has it already.
            coordinator.report_lost_state(client)
            raise
        # The encoded arrays go before the message is decoded: there is one copy of it at a time.
        codec.clear_record(answer)
        return coordinator.validate_reply(client, reply)


class FederationLoop(RecordedRounds):
    """A coordinator's rounds on Flower's grid, with the state saved after each.

    `measures_loss`: the last evaluation had the training loss itself, measured by the server or by clients.
    """

    _collectors: ClassVar[Callable[..., ReplyCollector]] = ReplyCollector

    def __init__(
        self,
        grid: Grid,
        coordinator: Coordinator,
        settings: Settings,
        checkpoint: DeploymentCheckpoint,
        recorder: Recorder,
        result: Callable[[], Any],
        reports: Reports,
    ) -> None:
        self.rounds, self.eval_every = settings.rounds, settings.eval_every
        self.label, self.callbacks, self.recorder = settings.label or "", settings.callbacks, recorder
        self._coordinator, self._settings, self._checkpoint = coordinator, settings, checkpoint
        self._result, self._reports, self._log = result, reports, reports.log
        self._void_rounds = 0  # in a row: after each the model would not have been finite
        # the last evaluation, which the next orders carry
        self._eval_is_due = checkpoint.evaluation_is_due
        self._phases = PhaseClock()
        self.measures_loss = False
        self._registry = ClientRegistry(
            grid, settings, checkpoint.experiment, coordinator.signature, reports.clients, self._log
        )
        self._registry.refuses_loops = lambda: coordinator.refuses_loops
        self._names = coordinator.names = self._registry.names
        self._secure = coordinator if isinstance(coordinator, SecureCoordinator) else None
        if self._secure is not None:
            self._secure.session = SecureSession(
                grid, settings, self._registry, coordinator.experiment, self._log
            )
        self._collector = self._collectors(
            grid, coordinator, settings, self._registry, self._phases, self._log
        )
        kind = ClientEvaluation if self._secure is None else SummedEvaluation
        self._by_clients = kind(
            grid,
            coordinator,
            settings,
            self._registry,
            lambda: first_means(recorder.evaluations.columns),
            reports.client_metrics,
            self._log,
        )
        self._evaluation = Evaluation(
            coordinator, settings, self._by_clients if settings.client_metrics else None
        )

    @property
    def done(self) -> int:
        return self._coordinator.state.round

    @property
    def sites(self) -> dict[int, str]:
        return self._names.given

    @property
    def client_notes(self) -> tuple[str, ...]:
        return tuple(f"client {client}: {note}" for note, client in self._registry.notes.items())

    @property
    def most_rounds(self) -> int:
        return 1

    def begin(self) -> str:
        """Wait for clients and evaluate the initial model, if anybody does; why a callback ends the run here, or ''."""
        self._watch = Stopwatch(self.recorder.seconds)
        if self.done < self.rounds or self._eval_is_due:
            settings = self._settings
            self._reports.status()
            self._registry.wait_for_quorum(settings.quorum or settings.population, settings.connect_seconds)
            if self._secure is not None:
                self._secure.session.load_or_enrol()
        # put off by a run whose settings let it be carried, which these do not
        if self._eval_is_due and not self._is_carried:
            return self._evaluate()
        if self.recorder.evaluated:
            return self._react()
        return self._evaluate() if self._evaluation.measures else ""

    def advance(self, rounds: int) -> tuple[Replies[Accepted], dict[str, float]]:
        """One round: its replies, and what is recorded of it; `Unavailable` if too few count at the last repetition."""
        self._phases.begin()
        replies = self._collect_replies(self.done + 1)
        return replies, self._finish_round(replies.accepted, replies.wanted)

    def record(self, logs: tuple[Replies[Accepted], dict[str, float]]) -> None:
        replies, entry = logs
        self.recorder.entry({"round": self.done, **entry, **_traffic(replies)})
        self._last = _round_entry(self.done, self.rounds, replies, entry, self._names)

    def evaluate(self) -> str:
        """Evaluate the model now, or with the orders of the next round where nothing asks for it before."""
        self._eval_is_due = True
        return "" if self._is_carried else self._evaluate()

    @property
    def _is_carried(self) -> bool:
        # Whether a round follows whose orders may carry the evaluation.
        return self.done < self.rounds and self._evaluation.may_be_carried

    def _evaluate(self) -> str:
        # Record the model's metrics, where nobody measures any the mean loss of local steps alone.
        with self._phases.during("evaluation"):
            metrics = self._evaluation.metrics(is_first=not self.recorder.evaluated)
            self.measures_loss = "train_loss" in metrics
            # Without an evaluation the record has the losses of local steps, the last that are known.
            losses = self.recorder.rounds.columns.get("client_loss") or [float("nan")]
            # A carried evaluation is of the model before this round: it has the time of that model.
            seconds = self.recorder.seconds if self._is_carried and self._eval_is_due else self._watch.seconds
            self.recorder.evaluation(self.done, seconds, {"train_loss": losses[-1], **metrics})
            self._eval_is_due = False
            return self._react()

    def _react(self) -> str:
        # Let callbacks and rates react to the last evaluation; why a callback ends the run, or ''.
        ended = self.why_they_end()
        self._coordinator.react(self.recorder.evaluations.arrays())
        return ended

    def callback_arguments(self) -> tuple[Callable[[], Any], Callable[..., ClientMetrics]]:
        return self._result, self._evaluation.by_client

    def due(self, over: bool) -> bool:
        """Always: what clients sent is not asked for twice."""
        return True

    def save(self) -> None:
        with self._phases.during("checkpoint"):
            self.recorder.seconds = self._watch.seconds
            self._checkpoint.save(self._coordinator, self.recorder, evaluation_is_due=self._eval_is_due)
            self._reports.status()

    def report(self) -> None:
        phases = self._phases.seconds()
        metrics = self.recorder.latest if self.recorder.evaluated else {}
        timed = {"seconds": sum(phases.values()), "phases": phases}
        self._reports.round({**self._last, **timed, "metrics": metrics})

    def _collect_replies(self, number: int) -> Replies[Accepted]:
        # The replies to a round's orders; none where too few count and such rounds are skipped.
        settings, cohort = self._settings, self._coordinator.draw_cohort()
        # Over-selection asks more than are wanted; a robust reduction has a least number of messages of its own.
        wanted = settings.replies_wanted(len(cohort))
        needed = max(settings.replies_needed(wanted), min(self._coordinator.method.fewest, wanted))
        replies: Replies[Accepted] = Replies(f"round {number}", needed, wanted)
        for attempt in range(settings.repeats + 1):
            self._ask(cohort, replies, attempt > 0)
            if replies.is_enough:
                break
            count = f"{len(replies.accepted)} of {wanted} replies count, {replies.needed} are needed"
            shortage = f"round {number}: {count}"
            if settings.shortfall == "skip" or replies.is_over:
                self._log(f"{shortage}{self._why_too_large(replies)}: the round is skipped")
                replies.accepted.clear()
                break
            if attempt == settings.repeats:
                # Those of the last attempt.
                last = replies.rejected[-len(cohort) :]
                reasons = "; ".join(f"{self._names(client)}: {reason}" for client, reason in last)
                if self._reports.clients.hides_cohorts:  # this is written into the run's folder
                    reasons = "the log above has the reasons"
                raise Unavailable(
                    f"{shortage}, after {attempt + 1} attempts ({reasons}){self._why_too_large(replies)}: fix the "
                    "clients and resume"
                )
            self._log(f"{shortage}: those missing are asked again")
        return replies

    def _ask(self, cohort: list[int], replies: Replies[Accepted], is_retry: bool) -> None:
        # Ask those of a cohort whose reply does not count yet, and add what comes of it.
        if self._secure is not None:  # masks are of one attempt, which asks its whole cohort
            replies.accepted.clear()
        missing = [client for client in cohort if client not in replies.accepted]
        beside = self._by_clients.prepare if self._eval_is_due else None
        self._collector.collect(missing, replies, is_retry, beside)
        if self._eval_is_due:
            self._evaluate()  # what the replies to these requests say
        # After all came, since what is usual follows from the round itself.
        for client, reason in self._coordinator.exclude_outliers(replies.accepted).items():
            self._collector.reject(replies, client, Cause.OUTLIER, reason)
        self._reports.clients.succeeded(replies.accepted)
        if self._secure is not None:
            self._open_sum(self._secure, replies)

    def _open_sum(self, coordinator: SecureCoordinator, replies: Replies[Accepted]) -> None:
        # Open the sum of the messages if enough came; else none of them is worth anything.
        try:
            if replies.is_enough:
                coordinator.open()
                return
        except SumNotOpened as error:
            self._log(f"{replies.title}: {error}")
            replies.is_over = isinstance(error, RoundIsOver)
        replies.accepted.clear()

    def _why_too_large(self, replies: Replies[Accepted] | None = None) -> str:
        # The largest update, where numbers became too large; where to go back to.
        if replies is not None and not replies.too_large:
            return ""
        largest = largest_update(self.recorder.rounds.columns, self._names)
        return f"; {largest[1]}; {self._checkpoint.how_to_go_back(largest[0])}" if largest else ""

    def _finish_round(self, accepted: dict[int, Accepted], drawn: int) -> dict[str, float]:
        # End the round, without any reply if the model would not be finite after it.
        try:
            entry = self._coordinator.finish_round(accepted, drawn)
            self._void_rounds = 0
            return entry
        except Diverged as error:
            self._void_rounds += 1
            # A single skipped round may be one client's fault; round upon round the model itself is spoiled.
            if self._void_rounds > self._settings.repeats:
                raise Diverged(
                    f"{error}, as after the {self._void_rounds - 1} rounds before: the last checkpoint is kept; "
                    f"lower the rates, or set norm_bound if clients cannot be trusted{self._why_too_large()}"
                ) from None
            self._log(f"{error}: the round is void, set norm_bound to refuse such replies")
            accepted.clear()
            # Without replies: keys and cohorts go on, so that the next round is another one.
            return self._coordinator.finish_round(accepted, drawn)


def _traffic(replies: Replies[Any]) -> dict[str, int]:
    return {"bytes_up": replies.bytes_up, "bytes_down": replies.bytes_down, "rejected": len(replies.rejected)}


def _round_entry(
    round: int, rounds: int, replies: Replies[Any], logged: Mapping[str, Any], names: SiteNames
) -> dict[str, Any]:
    """What is reported of a round as plain data, but for its metrics and its seconds."""
    whose = logged.get(WHOSE)
    return {
        "round": round,
        "rounds": rounds,
        "asked": replies.asked,
        "replies": len(replies.accepted),
        **_traffic(replies),
        "causes": {cause.value: n for cause, n in sorted(replies.causes.items())},
        "loss": logged.get("client_loss"),
        "epsilon": logged.get("epsilon"),
        LARGEST: logged.get(LARGEST),
        WHOSE: whose,
        "reasons": [f"{names(client)}: {reason}" for client, reason in replies.rejected],
        **({SITE: names.given[whose]} if whose in names.given else {}),
    }
