"""Secure sums of a deployment as the server sees them: who takes part, orders and replies, and evaluations."""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
from flwr.app import RecordDict
from flwr.serverapp import Grid

from fedsolve.core import wire
from fedsolve.core.algorithm import Algorithm, name_of
from fedsolve.core.errors import InvalidInput, Unavailable
from fedsolve.deploy.client.secure_sums import LEAST_SUM
from fedsolve.deploy.codec import Expected, record_to_reply, to_record
from fedsolve.deploy.exchange import Replies, ask
from fedsolve.deploy.message import (
    PARTS,
    PROTOCOL,
    EvaluateReply,
    EvaluateRequest,
    PartMetrics,
    ProtocolReply,
    ProtocolRequest,
    Step,
    TrainReply,
    TrainRequest,
    first_digest,
    request_digest,
)
from fedsolve.deploy.registry import ClientRegistry
from fedsolve.deploy.reply_checks import check_addressed, check_train_reply
from fedsolve.deploy.sanitize import reading, sanitize
from fedsolve.deploy.secure.attempt import SECOND_SUM
from fedsolve.deploy.secure.keys import SMALLEST
from fedsolve.deploy.secure.primitives import RoundIsOver, SumNotOpened
from fedsolve.deploy.secure.sums import Measured, SummedMetrics, count_words, from_words
from fedsolve.deploy.server.coordinator import Accepted, Coordinator
from fedsolve.deploy.server.evaluation import MEASURED, ClientEvaluation, EvaluationResult
from fedsolve.deploy.server.settings import Settings
from fedsolve.deploy.signature import signature_digest
from fedsolve.engine.evaluation.eval_sets import as_part
from fedsolve.folders.files import write_atomically
from fedsolve.folders.untrusted import read_if_there
from fedsolve.results.clients import ClientMetrics

# The server's keys and stock of pre-keys in a file of the run's folder, how clients enrol, and who is left out.

KEYS_FILE = "secure-sums.bin"
"""The server's keys, which clients' pre-keys are in stock, and the attempts that were made."""
_MOST_BYTES, _HELLO_BYTES, _KINDS_BYTES, _COIN_BYTES = 2**30, 2**16, 2**16, 32
_SHOWN = 3  # reasons of those that do not enrol


class SecureSession:
    """The server's side of an experiment's secure sums; each attempt is written down before an order is sent."""

    # Clients in `left_out`, each with the reason, take part in no sum of this run any more.

    def __init__(
        self,
        grid: Grid,
        settings: Settings,
        registry: ClientRegistry,
        experiment: str,
        log: Callable[[str], None],
    ) -> None:
        self._grid, self._settings, self._registry, self._log = grid, settings, registry, log
        self._path, self._experiment = Path(settings.out) / KEYS_FILE, experiment
        self._server: Any = None
        self.left_out: dict[int, str] = {}
        self._in_dispute: set[int] = set()  # whose messages are in no sum until the next one is opened
        self._unwilling: set[int] = set()  # nor those of others until all that are asked arrive
        self._disputes: set[tuple[int, int]] = set()  # of the whole run

    def load_or_enrol(self) -> None:
        """Go on with the keys in the file, or ask all clients for theirs; those connected then have the keys of all.

        `Unavailable` if a client is missing, or does not accept the keys of the others.
        """
        self._server, is_new, population = self._load(), False, self._settings.population
        if self._server is None:
            self._server, is_new = self._enrolled(range(population)), True
            self._save()
        roster: Any = self._server.roster
        coins: dict[int, bytes] = {}
        content: bytes = roster.to_bytes()
        needs_all = is_new or (roster.is_drawn and not roster.coins)
        clients = range(population) if needs_all else self._registry.poll()
        # an experiment begins with all clients; one that goes on does without those that do not answer
        ask = partial(self._ask_all, needs_all=needs_all)
        ask("roster", dict.fromkeys(clients, content), _COIN_BYTES, coins.__setitem__)
        if roster.is_drawn:
            if not roster.coins:
                # Every client is bound to the roster now: the server may learn the coins that draw the committee.
                roster.reveal(b"".join(coins[client] for client in roster.members))
                self._save()
            content = roster.coins
            ask("coins", dict.fromkeys(clients, content), 0, lambda *_: None)
        if is_new:
            self._log(
                f"secure sums: {population} clients have each other's keys; {roster.threshold} of "
                f"{len(roster.committee)} open a sum"
            )

    def _load(self) -> Any:
        # The keys in the file; None without one, or where it is of a run that ended before its first checkpoint.
        from fedsolve.deploy.secure.keys import experiment_digest
        from fedsolve.deploy.secure.server import SecureServer

        content = read_if_there(self._path, _MOST_BYTES)
        if content is None:
            return None
        server = SecureServer.from_bytes(content)
        if server.roster.experiment == experiment_digest(self._experiment):
            return server
        self._log(f"{self._path.name} is of a run that has not begun: clients are asked for their keys again")
        return None

    def _enrolled(self, clients: Sequence[int]) -> Any:
        from fedsolve.deploy.secure.server import SecureServer

        # Of all clients: the roster is for the whole experiment, and nobody joins it later.
        connect_seconds = self._settings.connect_seconds
        connected = self._registry.wait(clients, connect_seconds)
        if missing := sorted(set(clients) - set(connected)):
            begin = f"secure sums begin with all {len(clients)} clients, and"
            if refused := self._registry.refused:
                raise Unavailable(f"{begin} some were refused: {'; '.join(refused.values())}: fix them first")
            raise Unavailable(
                f"{begin} {_listed(missing)} are not connected within {connect_seconds:g} s: start their SuperNodes"
            )
        hellos: dict[int, bytes] = {}
        self._ask_all("hello", dict.fromkeys(clients, b""), _HELLO_BYTES, hellos.__setitem__)
        server = SecureServer.of(hellos[client] for client in clients)
        if tuple(server.roster.members) != tuple(clients):
            raise InvalidInput("clients say in their keys that they are others")
        return server

    def measured(self, names: Sequence[str], clients: Sequence[int]) -> dict[int, Measured]:
        said: dict[int, Measured] = {}

        def take(client: int, data: bytes) -> None:
            said[client] = Measured.read(data, names)

        question = json.dumps(list(names)).encode()
        failed = self._ask("metrics", dict.fromkeys(clients, question), _KINDS_BYTES, take)
        for client, reason in sorted(failed.items()):
            self._log(f"{self._registry.names(client)} is not asked for metrics: {reason}")
        return said

    def begin(self, kind: str, round: int, cohort: Sequence[int], n32: int, n64: int, request: bytes) -> Any:
        """A new attempt to sum the messages of a cohort (`SecureServer.begin`), of clients that have pre-keys."""
        attempt = self._server.begin(kind, round, cohort, n32, n64, request)
        self._save()
        return attempt

    def ready(self, clients: Sequence[int], needed: int = 0) -> list[int]:
        """Those of these clients that take part in a sum and have pre-keys, after the others were asked for new ones.

        Owners that allow no small sums are left aside while clients are lost, if so many as are needed are there.
        """
        clients = [c for c in clients if c not in self.left_out and c not in self._in_dispute]
        others = [client for client in clients if client not in self._unwilling]
        clients = others if len(others) >= max(needed, SMALLEST) else clients
        if without := self._server.without_keys(clients):
            self._ask("hello", dict.fromkeys(without, b""), _HELLO_BYTES, self._refresh)
            self._save()
        lacking = set(self._server.without_keys(clients))
        return [client for client in clients if client not in lacking]

    def open(self, attempt: Any) -> Any:
        """The sum of an attempt that is over (`OpenedSum`), from the committee's shares of masks.

        `SumNotOpened` if too few clients or members have answered (those at fault are left out from now on),
        `RoundIsOver` if members have answered for another sum of this round.
        """
        attempt.close()

        def take(member: int, answer: bytes) -> bool:
            attempt.add_shares(member, answer)
            return bool(attempt.is_open)

        # The committee need not be of the cohort: any client that is connected helps.
        connected = set(self._registry.poll())
        # Who was at fault before is not asked for shares either.
        asked = connected - set(self.left_out)
        requests = {m: attempt.unmask_request(m) for m in attempt.committee if m in asked}
        failed = self._ask("unmask", requests, _MOST_BYTES, take)
        for member, reason in sorted(failed.items()):
            self._log(f"{self._registry.names(member)} does not help to open a sum: {reason}")
        self._save()  # pre-keys that came with the replies
        try:
            opened = attempt.result()
        except SumNotOpened as error:
            self._leave_out(error, len(attempt.committee) - attempt.attempt.roster.threshold)
            if any(SECOND_SUM in reason for reason in failed.values()):
                raise RoundIsOver(
                    str(error), error.missing, error.at_fault, error.disputes, error.unwilling
                ) from None
            raise
        self._in_dispute.clear()
        if not attempt.missing:
            self._unwilling.clear()
        return opened

    def _leave_out(self, error: SumNotOpened, most: int) -> None:
        # Those at fault, also who was in dispute with more others than may be dishonest, in all attempts together.
        self.left_out |= {client: f"left out: {error}" for client in error.at_fault}
        self._unwilling |= set(error.unwilling)
        self._disputes |= set(error.disputes)
        self._in_dispute |= {client for pair in error.disputes for client in pair}
        counts = (Counter(pair[side] for pair in self._disputes) for side in (0, 1))
        for client in {client for side in counts for client, count in side.items() if count > most}:
            self.left_out[client] = f"left out: {most + 1} others dispute its shares"

    def _refresh(self, client: int, hello: bytes) -> None:
        if self._server.refresh(hello) != client:
            raise InvalidInput("it says that it is another client")

    def _save(self) -> None:
        write_atomically(self._path, self._server.to_bytes(), private=True)

    def _ask(
        self,
        step: Step,
        data: Mapping[int, bytes],
        most_bytes: int,
        take: Callable[[int, bytes], bool | None],
    ) -> dict[int, str]:
        # Ask clients a question; why their answers do not count, by client.
        nodes = self._registry.poll()
        clients = {nodes[client]: client for client in data if client in nodes}
        requests = {
            node: to_record(ProtocolRequest(self._experiment, step, data[client]))
            for node, client in clients.items()
        }

        def read(node: int, answer: RecordDict) -> bool:
            reply = record_to_reply(ProtocolReply, answer, Expected(most_bytes, facts_bytes=_ROOM))
            if reply.client != clients[node]:
                raise InvalidInput(f"it is of client {reply.client}, not of client {clients[node]}")
            with reading("the answer"):
                return bool(take(reply.client, reply.data))

        failed = ask(self._grid, f"query.{PROTOCOL}", requests, self._settings.round_seconds, read)
        gone = dict.fromkeys(set(data) - set(nodes), "not connected")
        return gone | {clients[node]: reason for node, reason in failed.items()}

    def _ask_all(
        self,
        step: Step,
        data: Mapping[int, bytes],
        most_bytes: int,
        take: Callable[[int, bytes], None],
        needs_all: bool = True,
    ) -> None:
        # Ask clients a question that each of them must answer, or all that take part.
        failed = sorted(self._ask(step, data, most_bytes, take).items())
        reasons = [f"{self._registry.names(client)}: {why}" for client, why in failed]
        if reasons and needs_all:
            more = f"; and {len(reasons) - _SHOWN} more" if len(reasons) > _SHOWN else ""
            raise Unavailable(f"secure sums need every client; {'; '.join(reasons[:_SHOWN])}{more}")
        for client, reason in failed:
            self._log(f"{self._registry.names(client)} takes no part in secure sums: {reason}")


def _listed(clients: Sequence[int]) -> str:
    shown = ", ".join(map(str, clients[:10]))
    return f"clients {shown}{' and others' if len(clients) > 10 else ''}"


_ROOM = 4096  # bytes of facts about a message of the protocol
ROOM = 2**24
"""Bytes that a masked reply has besides its words, at most: shares of masks and new pre-keys."""


class SecureCoordinator(Coordinator):
    """A coordinator of a method under `fs.Secure`; `session`, the server's side, is given before the first round.

    Clients have the configuration of Flower's run too; `attempt` is the sum that current orders are for, None before.
    """

    session: SecureSession
    run_config: Mapping[str, Any] = MappingProxyType({})
    attempt: Any = None

    def begin_attempt(self, clients: Sequence[int]) -> None:
        """Begin a sum over these clients; what an earlier attempt of the round has gathered is worth nothing."""
        self._opened: Any = None
        self.attempt = None
        if clients:
            counts = count_words(self.method.zero_message)
            # All are asked the same but for what is of one client, so that any request has the digest of all.
            digest = request_digest(self._unmasked_request(clients[0]), self.run_config)
            self.attempt = self.session.begin("train", self.state.round, clients, *counts, digest)

    @property
    def max_message_bytes(self) -> int:
        """Bytes of the longest message that a client may send: its words and shares of its masks."""
        return count_words(self.method.zero_message).bytes + ROOM

    def train_request(self, client: int) -> TrainRequest:
        """What a client of the cohort is asked to do, and how it masks its reply."""
        return dataclasses.replace(self._unmasked_request(client), masks=self.attempt.order(client))

    def _unmasked_request(self, client: int) -> TrainRequest:
        return dataclasses.replace(super().train_request(client), first_digest=self.first_digest)

    @cached_property
    def first_digest(self) -> bytes | None:
        return first_digest(wire.encode(self.method.first_broadcast)) if self.method.is_stateful else None

    def validate_reply(self, client: int, reply: TrainReply) -> Accepted:
        check_train_reply(reply, self.experiment, self.state.round, client)
        if reply.signature != signature_digest(self.method.zero_message):
            raise InvalidInput("its message has other shapes or types than the server's")
        if reply.buffers:
            raise InvalidInput("it has buffers beside its message, which the server would see")
        self.attempt.add(client, reply.message)
        return Accepted(1.0, 0.0, {}, {}, not reply.untold)

    def open(self) -> tuple[int, ...]:
        """Open the sum; the clients whose messages are in it.

        `SumNotOpened` if too few clients or members have answered, `RoundIsOver` if it is none of such messages.
        """
        opened = self.session.open(self.attempt)
        message = from_words(opened.words, self.method.zero_message)
        try:
            secure: Any = self.method.algorithm
            with self.precision():
                secure.check_sums(message, len(opened.clients), self.model)
        except InvalidInput as error:
            raise RoundIsOver(f"the sum is refused: {error}") from None
        self._opened = opened.clients, message
        return opened.clients

    def _reduced(self, accepted: Mapping[int, Accepted]) -> Any:
        if not accepted:
            return super()._reduced(accepted)
        clients, message = self._opened
        # Against mistakes of ours, not of clients: masks of others would not have cancelled.
        if sorted(accepted) != list(clients):
            raise RuntimeError("the sum is over other clients than those that count")
        return jax.tree.map(jnp.asarray, message)


# Evaluation under secure sums: clients add up what they measure, and the server sees the metrics of all examples.


@dataclass(frozen=True)
class SummedResult(EvaluationResult):
    """What clients measured together: of each part, the metrics of all examples; no client's own."""

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
        # What the clients are asked, and how they mask their answers; nothing where they are too few for a sum.
        coordinator, session = self._coordinator, self._coordinator.session
        requests = {
            request.client: (node, request) for node, request in super()._requests(steps, solver).items()
        }
        clients = session.ready(sorted(requests))
        if new := [client for client in clients if client not in self._measured]:
            self._measured |= session.measured(self._metrics, new)
        measured, clients = self._agreeing(clients)
        if measured is None or len(clients) < LEAST_SUM:
            return {}
        # Words of 64 bits in one order for all; where each adds its own, nobody's are seen.
        self._layout = SummedMetrics(self._metrics, measured, self._settings.population)
        shared = {"first_digest": coordinator.first_digest, "summed_parts": " ".join(measured.parts).encode()}
        asked = {c: dataclasses.replace(requests[c][1], **shared) for c in clients}
        digest = request_digest(asked[clients[0]], coordinator.run_config, measured.to_bytes())
        width = self._layout.width
        self._attempt = session.begin("evaluate", coordinator.state.round, clients, 0, width, digest)
        return {
            requests[c][0]: dataclasses.replace(request, masks=self._attempt.order(c))
            for c, request in asked.items()
        }

    def _agreeing(self, clients: list[int]) -> tuple[Measured | None, list[int]]:
        # What most measure, on the parts of which all of those have examples: only numbers of one kind add up.
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
        # The metrics of the examples of all clients whose answers count.
        totals: dict[str, PartMetrics] = {}
        try:
            if replies.accepted:
                opened = self._coordinator.session.open(self._attempt)
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
        # Add a client's metrics to the sum; nothing is known of them alone.
        with reading("the answer"):
            expected = Expected(8 * self._layout.width + ROOM, metrics=request.metrics)
            reply = record_to_reply(EvaluateReply, record, expected)
            check_addressed(reply, request.experiment, request.round, request.client)
            if reply.steps != request.steps or reply.parts or reply.masked is None:
                raise InvalidInput(f"it is of {sanitize(reply.steps)} steps, or not masked")
            self._attempt.add(request.client, reply.masked)
            return {}


def check_secure(algorithm: Algorithm, settings: Settings) -> None:
    """Raise `InvalidInput` unless a method under secure sums can run with these settings; others pass."""
    if not algorithm.traits.secure_sums:
        return
    name = name_of(algorithm)
    if settings.population < LEAST_SUM:
        raise InvalidInput(
            f"{name} needs at least {LEAST_SUM} clients: of two, each could subtract its own message; population = "
            f"{settings.population}"
        )
    for option, none in (("norm_bound", (None, math.inf)), ("max_share", (None, 1)), ("buffers", (None, {}))):
        if getattr(settings, option) not in none:
            raise InvalidInput(
                f"{option} looks at single messages, which {name} hides: leave it out, `bound` clips"
            )
