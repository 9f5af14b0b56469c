"""The server of secure sums: keys and pre-keys over all rounds, and one attempt from orders to the opened sum.

Nothing of one client is ever readable here: only the masks of the whole sum are taken off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from fedsolve.core.errors import check_integer
from fedsolve.deploy.secure import primitives as p
from fedsolve.deploy.secure.attempt import KINDS, Attempt
from fedsolve.deploy.secure.keys import BUNDLE, PreKey, Roster, bundle_bytes, read_bundle, read_hello
from fedsolve.deploy.secure.masking import (
    Lists,
    Opening,
    Sealed,
    mask_key,
    order_bytes,
    read_reply,
    request_bytes,
    sealed_size,
    secrets_of,
)
from fedsolve.deploy.secure.primitives import ProtocolError, Reader, SumNotOpened, names, number

_ROUND = b"fsq2"


class OpenedSum(NamedTuple):
    """A sum: its words as bytes, n32 of 32 bits and n64 of 64 bits, and the clients whose messages it is of."""

    words: bytes
    clients: tuple[int, ...]


class ServerSide(NamedTuple):
    """What a round needs of the server: its roster, its private key, and where new pre-keys of a client go."""

    roster: Roster
    private: bytes
    store: Callable[[int, Iterable[PreKey]], None]


class SecureRound:
    """One attempt to sum the messages of a cohort: orders, replies, then requests to the committee and its answers.

    Source: the server of Bell et al. (2020), algorithm 2, with the committee of Ma et al. (2023).
    """

    def __init__(self, server: ServerSide, attempt: Attempt, keys: dict[int, PreKey]) -> None:
        self.attempt = attempt
        self._server, self._keys = server, keys
        self._sums = (np.zeros(attempt.n32, "<u4"), np.zeros(attempt.n64, "<u8"))
        self._sealed: dict[int, list[Sealed]] = {}
        self._lists: Lists | None = None
        self._answers: dict[int, bytes] = {}
        self._opening: Opening | None = None

    @property
    def arrived(self) -> tuple[int, ...]:
        return tuple(sorted(self._sealed))

    @property
    def missing(self) -> tuple[int, ...]:
        return tuple(client for client in self.attempt.cohort if client not in self._sealed)

    @property
    def committee(self) -> tuple[int, ...]:
        """The clients that are asked to open the sum; they need not be of the cohort."""
        return self.attempt.roster.committee

    def order(self, client: int) -> bytes:
        self._check_client(client)
        return order_bytes(self.attempt, client, self._keys)

    def add(self, client: int, reply: bytes) -> None:
        self._check_client(client)
        if self._lists is not None:
            raise ProtocolError(f"{self.attempt} is closed: client {client} came too late")
        if client in self._sealed:
            raise ProtocolError(f"client {client} has answered {self.attempt} already")
        # Checked as a whole before anything is added: a reply that fails leaves the sum as it was.
        found = read_reply(reply, self.attempt, client, self._server.private)
        n32 = self.attempt.n32
        for total, words in zip(
            self._sums,
            (np.frombuffer(found.words, "<u4", n32), np.frombuffer(found.words, "<u8", -1, 4 * n32)),
            strict=True,
        ):
            # Unsigned arrays wrap around, modulo 2^32 and 2^64, as the masks do.
            np.add(total, words, out=total)
        self._sealed[client] = [Sealed(*both) for both in zip(found.sealed, found.digests, strict=True)]
        self._server.store(client, found.fresh)

    def _check_client(self, client: int) -> None:
        if client not in self._keys:
            raise ProtocolError(f"client {client} is not in the cohort of {self.attempt}")

    def close(self) -> None:
        """Fix who arrived and who is missing; no reply counts any more."""
        # `SumNotOpened` if so few arrived that no member of the committee would answer.
        if self._lists is None:
            try:
                # From now on the secrets of those that are missing may be opened: what they send is not added.
                self._lists = Lists(self.attempt, self.arrived, self.missing)
            except ProtocolError as error:
                raise SumNotOpened(f"{error}; missing: {names(self.missing)}", missing=self.missing) from None
            self._opening = Opening(self._lists, self._sealed)

    def unmask_request(self, member: int) -> bytes:
        self._check_member(member)
        seat = self.committee.index(member)
        return request_bytes(
            self._closed()[0], {client: shares[seat] for client, shares in self._sealed.items()}
        )

    def add_shares(self, member: int, answer: bytes) -> None:
        self._check_member(member)
        opening = self._closed()[1]
        self._answers.setdefault(member, answer)
        opening.add(member, answer)

    def _check_member(self, member: int) -> None:
        if member not in self.committee:
            raise ProtocolError(f"client {member} is no member of the committee")

    def _closed(self) -> tuple[Lists, Opening]:
        if self._lists is None or self._opening is None:
            raise ProtocolError(f"{self.attempt} is not closed yet")
        return self._lists, self._opening

    @property
    def is_open(self) -> bool:
        return self._opening is not None and self._opening.is_enough

    def result(self) -> OpenedSum:
        """The sum of the messages that arrived, without masks."""
        # `SumNotOpened`, with who is missing or at fault, if too few members answered.
        lists, opening = self._closed()
        secrets = opening.secrets()
        sums, stream = tuple(total.copy() for total in self._sums), p.MaskStream()
        for (client, other), secret in secrets.items():  # as `masked_reply` added them
            stream.add(sums, mask_key(self.attempt.context, secret), -1 if other >= client else 1)
        return OpenedSum(b"".join(total.tobytes() for total in sums), lists.arrived)

    def to_bytes(self) -> bytes:
        """All of it, for a server that may be started again meanwhile."""
        keys = b"".join(key.to_bytes() for key in self._keys.values())
        parts = [_ROUND, self.attempt.to_bytes(), keys, *(total.tobytes() for total in self._sums)]
        parts.append(number(len(self._sealed), 4))
        for client, sealed in self._sealed.items():
            parts += [number(client, 4), *(part for both in sealed for part in both)]
        parts += [number(self._lists is not None, 1), number(len(self._answers), 2)]
        for member, answer in self._answers.items():
            parts += [number(member, 4), number(len(answer), 8), answer]
        return b"".join(parts)

    @classmethod
    def read(cls, server: ServerSide, data: bytes) -> SecureRound:
        reader = Reader(data, _ROUND, "a round of secure sums")
        attempt = Attempt.read(reader, server.roster, "a round of secure sums")
        self = cls(server, attempt, {client: PreKey.read(reader) for client in attempt.cohort})
        self._sums = (
            np.frombuffer(reader.take(4 * attempt.n32), "<u4").copy(),
            np.frombuffer(reader.take(8 * attempt.n64), "<u8").copy(),
        )
        for _ in range(reader.number(4)):
            client = reader.number(4)
            self._check_client(client)
            size, count = sealed_size(attempt, client), len(secrets_of(attempt, client))
            self._sealed[client] = [
                Sealed(reader.take(size), reader.take(p.TAG * count)) for _ in self.committee
            ]
        if reader.number(1):
            self.close()
        for _ in range(reader.number(2)):
            member, length = reader.number(4), reader.number(8)
            with suppress(ProtocolError):  # of one that did not count the server knows why again
                self.add_shares(member, reader.take(length))
        reader.end()
        return self


# The server of secure sums over all rounds: everybody's keys, pre-keys in stock, and the attempts that were made.

_SERVER = b"fss2"


class SecureServer:
    """What the server keeps over all rounds of an experiment; `begin` starts a round, and the roster is sent to all.

    Its bytes hold a private key of the server's: keep them in a file of mode 0600.

    Source: Bonawitz et al. (2017); Bell et al. (2020); Ma et al. (2023), "Flamingo".
    """

    def __init__(self, roster: Roster, private: bytes) -> None:
        self.roster, self._private = roster, private
        self._stock: dict[int, list[PreKey]] = {client: [] for client in roster.members}
        self._taken: dict[int, int] = dict.fromkeys(roster.members, 0)  # numbers below are used
        self._attempts: dict[tuple[int, int], int] = {}

    @classmethod
    def of(cls, hellos: Iterable[bytes]) -> SecureServer:
        listed, private = list(hellos), p.new_secret()
        self = cls(Roster.of(listed, p.public_key(private)), private)
        for hello in listed:
            self.refresh(hello)
        return self

    def refresh(self, hello: bytes) -> int:
        """Take the pre-keys of a client that says hello again, and return its number."""
        experiment, member, keys = read_hello(hello)
        if experiment != self.roster.experiment or self.roster.members.get(member.client) != member:
            raise ProtocolError(f"the hello of client {member.client} does not have the keys of the roster")
        # The client has deleted the private halves of those before.
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
        """A new attempt to sum the messages of a cohort (at least 3 clients), with the next pre-key of each client.

        Save this object before any order is sent: a pre-key is used once. A message has n32 words of 32 bits and n64
        of 64; `request` is the digest, 32 bytes, of what all clients are asked.
        """
        check_integer("round", round, bits=32)
        listed = sorted({check_integer("a client of the cohort", client) for client in cohort})
        code = KINDS.index(kind) if kind in KINDS else -1
        number_ = self._attempts.get((code, round), 0)
        attempt = Attempt(self.roster, kind, round, number_, listed, n32, n64, request)
        # Taken from the stock only below: an attempt that cannot begin uses none.
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
        # The first pre-key in stock that the client signed; others are removed.
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
        return SecureRound.read(self._side, data)
