"""One attempt to sum: roster, kind, round, number, cohort and layout; its digest is bound into all that it uses."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from fedsolve.deploy.secure.byte_reader import (
    ProtocolError,
    Reader,
    check_ascending,
    client_list,
    names,
    number,
)
from fedsolve.deploy.secure.committee import Step
from fedsolve.deploy.secure.graph import MaskGraph
from fedsolve.deploy.secure.primitives import digest
from fedsolve.deploy.secure.roster import SMALLEST, Roster

KINDS = ("train", "evaluate", "statistics")
"""What is summed; a mask, a share or an answer of one kind is worth nothing in another."""
LARGEST_ATTEMPT = 255
"""Attempts of a round are few: the order of the graph follows from the number, and the server must not try many."""
_MOST_BYTES = 2**40


class Attempt:
    """What all clients, the committee and the server must agree on before anything is sent.

    Args:
        roster: the keys of all clients.
        kind: one of "train", "evaluate" and "statistics".
        round: from 0.
        attempt: from 0; a round that is asked for again has the next.
        cohort: the clients whose messages are summed, at least 3, ascending.
        n32, n64: how many words of 32 bits, then of 64 bits, a message has.

    Raises:
        ProtocolError: one of them is out of its range.
    """

    def __init__(
        self, roster: Roster, kind: str, round: int, attempt: int, cohort: Sequence[int], n32: int, n64: int
    ) -> None:
        if kind not in KINDS:
            raise ProtocolError(f"{kind!r} is no kind of a secure sum: use one of {', '.join(KINDS)}")
        self.roster, self.kind, self.cohort = roster, kind, check_ascending(cohort, "the cohort")
        self.round, self.attempt = round, attempt
        self.n32, self.n64 = n32, n64
        if not 0 <= attempt <= LARGEST_ATTEMPT:
            raise ProtocolError(
                f"attempt {attempt} is not in 0 ... {LARGEST_ATTEMPT}: go on with the next round"
            )
        if not (0 <= round < 2**32 and n32 >= 0 and n64 >= 0 and 0 < 4 * n32 + 8 * n64 < _MOST_BYTES):
            raise ProtocolError(f"round {round} with {n32} and {n64} words is out of range")
        if unknown := [client for client in self.cohort if client not in roster.members]:
            raise ProtocolError(f"clients {names(unknown)} of the cohort are not in the roster")
        if len(self.cohort) < SMALLEST:
            raise ProtocolError(
                f"a cohort of {len(self.cohort)} is no secret: a secure sum needs {SMALLEST} clients"
            )

    def to_bytes(self) -> bytes:
        """The fields with which orders and unmask requests begin."""
        head = number(KINDS.index(self.kind), 1) + number(self.round, 4) + number(self.attempt, 2)
        sizes = number(self.n32, 8) + number(self.n64, 8)
        return self.roster.digest + head + sizes + client_list(self.cohort)

    @classmethod
    def read(cls, reader: Reader, roster: Roster, what: str) -> Attempt:
        """The attempt that a message is of.

        Raises:
            ProtocolError: the roster is another, or a field is out of its range.
        """
        if reader.take(len(roster.digest)) != roster.digest:
            raise ProtocolError(f"{what} has the digest of another roster")
        code, round, attempt = reader.number(1), reader.number(4), reader.number(2)
        n32, n64, cohort = reader.number(8), reader.number(8), reader.clients()
        kind = KINDS[code] if code < len(KINDS) else str(code)
        return cls(roster, kind, round, attempt, cohort, n32, n64)

    @cached_property
    def context(self) -> bytes:
        """The digest of all of it."""
        return digest("attempt", self.to_bytes())

    @cached_property
    def graph(self) -> MaskGraph:
        """Who shares a mask with whom."""
        return MaskGraph(self.cohort, self.context)

    @cached_property
    def step(self) -> Step:
        """What a client notes of it."""
        return Step(KINDS.index(self.kind), self.round, self.attempt, self.context)

    @property
    def num_bytes(self) -> int:
        """Bytes of a message's words."""
        return 4 * self.n32 + 8 * self.n64

    def __str__(self) -> str:
        return f"{self.kind}, round {self.round + 1}, attempt {self.attempt}"
