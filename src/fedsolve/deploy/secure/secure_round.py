"""One attempt to sum on the server: orders go out, replies are added as they come, the committee opens the sum.

Nothing of one client is ever readable here: only the masks of the whole sum are taken off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from fedsolve.deploy.secure import primitives as p
from fedsolve.deploy.secure.attempt import Attempt
from fedsolve.deploy.secure.byte_reader import ProtocolError, Reader, SumNotOpened, names, number
from fedsolve.deploy.secure.identity import PreKey
from fedsolve.deploy.secure.masked_reply import mask_key, order_bytes, read_reply, sealed_size, secrets_of
from fedsolve.deploy.secure.roster import Roster
from fedsolve.deploy.secure.unmasking import Lists, Opening, Sealed, request_bytes

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

    Attributes:
        attempt: what it is bound to.

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
        """The clients whose messages are in the sum, ascending."""
        return tuple(sorted(self._sealed))

    @property
    def missing(self) -> tuple[int, ...]:
        """The other clients of the cohort, ascending."""
        return tuple(client for client in self.attempt.cohort if client not in self._sealed)

    @property
    def committee(self) -> tuple[int, ...]:
        """The clients that are asked to open the sum; they need not be of the cohort."""
        return self.attempt.roster.committee

    def order(self, client: int) -> bytes:
        """What a client of the cohort is sent."""
        self._check_client(client)
        return order_bytes(self.attempt, client, self._keys)

    def add(self, client: int, reply: bytes) -> None:
        """Add a client's reply, once everything of it has been checked.

        Raises:
            ProtocolError: the reply does not count, and nothing has been added.
        """
        self._check_client(client)
        if self._lists is not None:
            raise ProtocolError(f"{self.attempt} is closed: client {client} came too late")
        if client in self._sealed:
            raise ProtocolError(f"client {client} has answered {self.attempt} already")
        found = read_reply(reply, self.attempt, client, self._server.private)
        n32 = self.attempt.n32
        for total, words in zip(
            self._sums,
            (np.frombuffer(found.words, "<u4", n32), np.frombuffer(found.words, "<u8", -1, 4 * n32)),
            strict=True,
        ):
            np.add(total, words, out=total)
        self._sealed[client] = [Sealed(*both) for both in zip(found.sealed, found.digests, strict=True)]
        self._server.store(client, found.fresh)

    def _check_client(self, client: int) -> None:
        if client not in self._keys:
            raise ProtocolError(f"client {client} is not in the cohort of {self.attempt}")

    def close(self) -> None:
        """Fix who arrived and who is missing; no reply counts any more.

        Raises:
            SumNotOpened: so few arrived that no member of the committee would answer.
        """
        if self._lists is None:
            try:
                self._lists = Lists(self.attempt, self.arrived, self.missing)
            except ProtocolError as error:
                raise SumNotOpened(f"{error}; missing: {names(self.missing)}", missing=self.missing) from None
            self._opening = Opening(self._lists, self._sealed)

    def unmask_request(self, member: int) -> bytes:
        """What one member of the committee is sent, after `close`."""
        self._check_member(member)
        seat = self.committee.index(member)
        return request_bytes(
            self._closed()[0], {client: shares[seat] for client, shares in self._sealed.items()}
        )

    def unmask_requests(self) -> dict[int, bytes]:
        """What every member of the committee is sent, after `close`."""
        return {member: self.unmask_request(member) for member in self.committee}

    def add_shares(self, member: int, answer: bytes) -> None:
        """Note a member's answer.

        Raises:
            ProtocolError: the answer does not count.
        """
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
        """Whether the members that have answered are enough for `result`."""
        return self._opening is not None and self._opening.is_enough

    def result(self) -> OpenedSum:
        """The sum of the messages that arrived, without masks.

        Raises:
            SumNotOpened: too few members answered; who is missing or at fault.
        """
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
        """The round whose `to_bytes` these are; `ProtocolError` if they are damaged or of another roster."""
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
