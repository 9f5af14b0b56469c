"""The server's keys and stock of pre-keys in a file of the run's folder, how clients enrol, and who is left out."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from flwr.serverapp import Grid

from fedsolve.core.errors import InvalidInput, Unavailable
from fedsolve.deploy.secure.attempt import SECOND_SUM
from fedsolve.deploy.secure.byte_reader import RoundIsOver, SumNotOpened
from fedsolve.deploy.secure.roster import SMALLEST
from fedsolve.deploy.secure_rounds.questions import ask
from fedsolve.deploy.secure_rounds.secure_records import Question, Step
from fedsolve.deploy.secure_rounds.summed_metrics import Measured
from fedsolve.folders.files import write_atomically
from fedsolve.folders.untrusted import read_bytes

KEYS_FILE = "secure-sums.bin"
"""The server's keys, which clients' pre-keys are in stock, and the attempts that were made."""
_MOST_BYTES, _HELLO_BYTES, _KINDS_BYTES, _COIN_BYTES = 2**30, 2**16, 2**16, 32
_SHOWN = 3  # reasons of those that do not enrol


class Clients(Protocol):
    """Which clients are connected, and what they are called."""

    @property
    def names(self) -> Callable[[int], str]:
        """What a client is called."""
        ...

    @property
    def refused(self) -> Mapping[int, str]:
        """Clients that are not connected since they were refused, each with the reason, as far as it is known."""
        ...

    def poll(self) -> dict[int, int]:
        """The clients that are connected now, each with its node."""
        ...

    def wait(self, clients: Any, seconds: float) -> dict[int, int]:
        """Wait for these clients, until the deadline; then who is connected."""
        ...


class ServerKeys:
    """The server's side of an experiment's secure sums; each attempt is written down before an order is sent.

    Args:
        path: the file.
        grid: Flower's grid.
        registry: which clients are connected.
        experiment: its name.
        seconds: to wait for answers.
        log: told in one line what happens.

    Attributes:
        left_out: clients that take part in no sum of this run any more, each with the reason.
    """

    def __init__(
        self,
        path: Path,
        grid: Grid,
        registry: Clients,
        experiment: str,
        seconds: float,
        log: Callable[[str], None],
    ) -> None:
        self._path, self._grid, self._registry, self._log = path, grid, registry, log
        self._experiment, self.seconds = experiment, seconds
        self._server: Any = None
        self.left_out: dict[int, str] = {}
        self._in_dispute: set[int] = set()  # whose messages are in no sum until the next one is opened
        self._unwilling: set[int] = set()  # nor those of others until all that are asked arrive
        self._disputes: set[tuple[int, int]] = set()  # of the whole run

    def load_or_enrol(self, population: int, connect_seconds: float) -> None:
        """Go on with the keys in the file, or ask all clients for theirs; those connected then have the keys of all.

        Raises:
            InvalidInput: the file is damaged.
            Unavailable: a client is missing, or does not accept the keys of the others.
        """
        self._server, is_new = self._load(), False
        if self._server is None:
            self._server, is_new = self._enrolled(range(population), connect_seconds), True
            self._save()
        roster: Any = self._server.roster
        coins: dict[int, bytes] = {}
        content: bytes = roster.to_bytes()
        needs_all = is_new or (roster.is_drawn and not roster.coins)
        clients = range(population) if needs_all else self._registry.poll()
        ask = self._ask_all if needs_all else self._ask_some
        ask("roster", dict.fromkeys(clients, content), _COIN_BYTES, coins.__setitem__)
        if roster.is_drawn:
            if not roster.coins:
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
        """The keys in the file; None without one, or where it is of a run that ended before its first checkpoint."""
        from fedsolve.deploy.secure.roster import experiment_digest
        from fedsolve.deploy.secure.secure_server import SecureServer

        try:
            server = SecureServer.from_bytes(read_bytes(self._path, _MOST_BYTES))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise InvalidInput(f"cannot read {self._path}: {error.strerror or error}") from None
        if server.roster.experiment == experiment_digest(self._experiment):
            return server
        self._log(f"{self._path.name} is of a run that has not begun: clients are asked for their keys again")
        return None

    def _enrolled(self, clients: Sequence[int], connect_seconds: float) -> Any:
        """A new experiment of all clients."""
        from fedsolve.deploy.secure.secure_server import SecureServer

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
        """What clients measure, of those that say so."""
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

        Raises:
            SumNotOpened: too few clients or members have answered; those at fault are left out from now on.
            RoundIsOver: members have answered for another sum of this round.
        """
        attempt.close()

        def take(member: int, answer: bytes) -> bool:
            attempt.add_shares(member, answer)
            return bool(attempt.is_open)

        connected = set(self._registry.poll())
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
        """Those at fault, also who was in dispute with more others than may be dishonest, in all attempts together."""
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
        """Ask clients a question; why their answers do not count, by client."""
        nodes = self._registry.poll()
        questions = {
            client: (nodes[client], Question(self._experiment, step, content))
            for client, content in data.items()
            if client in nodes
        }
        gone = dict.fromkeys(set(data) - set(nodes), "not connected")
        return gone | ask(
            self._grid, questions, self.seconds, most_bytes, lambda *answer: bool(take(*answer))
        )

    def _ask_some(
        self, step: Step, data: Mapping[int, bytes], most_bytes: int, take: Callable[[int, bytes], None]
    ) -> None:
        """Ask clients a question that those who take part must answer."""
        for client, reason in sorted(self._ask(step, data, most_bytes, take).items()):
            self._log(f"{self._registry.names(client)} takes no part in secure sums: {reason}")

    def _ask_all(
        self, step: Step, data: Mapping[int, bytes], most_bytes: int, take: Callable[[int, bytes], None]
    ) -> None:
        """Ask clients a question that each of them must answer."""
        if failed := self._ask(step, data, most_bytes, take):
            reasons = [f"{self._registry.names(client)}: {why}" for client, why in sorted(failed.items())]
            more = f"; and {len(reasons) - _SHOWN} more" if len(reasons) > _SHOWN else ""
            raise Unavailable(f"secure sums need every client; {'; '.join(reasons[:_SHOWN])}{more}")


def _listed(clients: Sequence[int]) -> str:
    shown = ", ".join(map(str, clients[:10]))
    return f"clients {shown}{' and others' if len(clients) > 10 else ''}"
