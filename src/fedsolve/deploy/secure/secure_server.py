"""The server of secure sums over all rounds: everybody's keys, pre-keys in stock, and the attempts that were made."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fedsolve.core.errors import check_integer
from fedsolve.deploy.secure import primitives as p
from fedsolve.deploy.secure.attempt import KINDS, Attempt
from fedsolve.deploy.secure.byte_reader import ProtocolError, Reader, names, number
from fedsolve.deploy.secure.identity import BUNDLE, PreKey, bundle_bytes, read_bundle, read_hello
from fedsolve.deploy.secure.roster import Roster
from fedsolve.deploy.secure.secure_round import SecureRound, ServerSide

_SERVER = b"fss2"


class SecureServer:
    """What the server keeps over all rounds of an experiment; `begin` starts a round.

    Its bytes hold a private key of the server's: keep them in a file of mode 0600.

    Attributes:
        roster: every client's long-lived keys, to be sent to all of them.

    Source: Bonawitz et al. (2017); Bell et al. (2020); Ma et al. (2023), "Flamingo".
    """

    def __init__(self, roster: Roster, private: bytes) -> None:
        self.roster, self._private = roster, private
        self._stock: dict[int, list[PreKey]] = {client: [] for client in roster.members}
        self._taken: dict[int, int] = dict.fromkeys(roster.members, 0)  # numbers below are used
        self._attempts: dict[tuple[int, int], int] = {}

    @classmethod
    def of(cls, hellos: Iterable[bytes]) -> SecureServer:
        """A new experiment with the clients that said hello.

        Raises:
            ProtocolError: a hello is damaged, forged or of another experiment, or fewer than 3 came.
        """
        listed, private = list(hellos), p.new_secret()
        self = cls(Roster.of(listed, p.public_key(private)), private)
        for hello in listed:
            self.refresh(hello)
        return self

    def refresh(self, hello: bytes) -> int:
        """Take the pre-keys of a client that says hello again, and return its number.

        Raises:
            ProtocolError: it is damaged or forged, or its keys are not those of the roster.
        """
        experiment, member, keys = read_hello(hello)
        if experiment != self.roster.experiment or self.roster.members.get(member.client) != member:
            raise ProtocolError(f"the hello of client {member.client} does not have the keys of the roster")
        self._stock[member.client] = []
        self.store(member.client, keys)
        return member.client

    def store(self, client: int, keys: Iterable[PreKey]) -> None:
        """Add pre-keys to a client's stock, of which those count that are newer than all it had or used."""
        stock = self._stock[client]
        for key in keys:
            if len(stock) < BUNDLE and key.number >= max(
                self._taken[client], stock[-1].number + 1 if stock else 0
            ):
                stock.append(key)

    def without_keys(self, cohort: Iterable[int]) -> list[int]:
        """The clients that have no pre-key in stock: ask them for another hello."""
        return [client for client in cohort if not self._stock.get(client)]

    def begin(
        self, kind: str, round: int, cohort: Sequence[int], n32: int, n64: int, request: bytes
    ) -> SecureRound:
        """A new attempt to sum the messages of a cohort, with the next pre-key of each client.

        Save this object before any order is sent: a pre-key is used once.

        Args:
            kind: "train", "evaluate" or "statistics".
            round: from 0.
            cohort: at least 3 clients of the roster.
            n32, n64: words of 32 bits and of 64 bits of a message.
            request: the digest of what all clients are asked, 32 bytes.

        Raises:
            ProtocolError: a value out of its range, or clients without pre-keys.
        """
        check_integer("round", round, bits=32)
        listed = sorted({check_integer("a client of the cohort", client) for client in cohort})
        code = KINDS.index(kind) if kind in KINDS else -1
        number_ = self._attempts.get((code, round), 0)
        attempt = Attempt(self.roster, kind, round, number_, listed, n32, n64, request)
        found = {client: self._next_key(client) for client in listed}
        if empty := [client for client, key in found.items() if key is None]:
            raise ProtocolError(
                f"clients {names(empty)} have no pre-keys in stock: ask them for another hello"
            )
        self._attempts[code, round] = number_ + 1
        keys = {client: key for client, key in found.items() if key is not None}
        for client, key in keys.items():
            self._stock[client].pop(0)
            self._taken[client] = key.number + 1
        return SecureRound(self._side, attempt, keys)

    @property
    def _side(self) -> ServerSide:
        return ServerSide(self.roster, self._private, self.store)

    def _next_key(self, client: int) -> PreKey | None:
        """The first pre-key in stock that the client signed; others are removed."""
        owner = self.roster.members[client].owner(self.roster.experiment)
        while stock := self._stock[client]:
            try:
                stock[0].check(owner)
                p.check_point(stock[0].public, "a pre-key")  # else all its neighbours would fail
                return stock[0]
            except ProtocolError:
                stock.pop(0)
        return None

    def to_bytes(self) -> bytes:
        """All of it, for the server's file; it holds a private key."""
        roster, coins = self.roster.to_bytes(), self.roster.coins
        clients = b"".join(
            number(self._taken[c], 4) + bundle_bytes(self._stock[c]) for c in self.roster.members
        )
        attempts = b"".join(
            number(kind, 1) + number(round, 4) + number(following, 2)
            for (kind, round), following in self._attempts.items()
        )
        head = _SERVER + self._private + number(len(roster), 8) + roster
        head += number(len(coins), 8) + coins + clients
        return head + number(len(self._attempts), 4) + attempts

    @classmethod
    def from_bytes(cls, data: bytes) -> SecureServer:
        """A server that goes on; `ProtocolError` if the bytes are damaged."""
        reader = Reader(data, _SERVER, "the server's state of secure sums")
        private, roster = reader.take(p.KEY), reader.take(reader.number(8))
        self = cls(Roster.read(roster), private)
        if coins := reader.take(reader.number(8)):
            self.roster.reveal(coins)
        for client in self.roster.members:
            self._taken[client] = reader.number(4)
            self._stock[client] = read_bundle(reader, f"the stock of client {client}")
        for _ in range(reader.number(4)):
            which = reader.number(1), reader.number(4)
            self._attempts[which] = reader.number(2)
        reader.end()
        return self

    def restore(self, data: bytes) -> SecureRound:
        """The round whose `to_bytes` these are."""
        return SecureRound.read(self._side, data)
