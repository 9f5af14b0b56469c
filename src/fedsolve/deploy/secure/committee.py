"""Who opens the sums, and when a member may answer: all clients up to 31, else 31 that nobody chooses.

Any threshold = floor(2 c / 3) + 1 of the c members open a sum. Two different lists of one attempt could only be opened
if 2 threshold - c members, more than a third, answered twice: an honest one answers once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from fedsolve.deploy.secure.byte_reader import ProtocolError, Reader, number
from fedsolve.deploy.secure.identity import Member
from fedsolve.deploy.secure.primitives import KEY, digest

LARGEST = 31
"""Members of a committee at most."""
LOGGED = 1000
"""Rounds that a client remembers; an older one is refused."""


def committee(members: Iterable[Member]) -> tuple[int, ...]:
    """The clients that open the sums, ascending: the same for a whole experiment, by a hash of the identities alone."""
    listed = sorted(members)
    if len(listed) > LARGEST:
        seed = digest("committee", *(number(m.client, 4) + m.identity for m in listed))
        listed = sorted(listed, key=lambda m: digest("seat", seed, number(m.client, 4)))[:LARGEST]
    return tuple(sorted(m.client for m in listed))


def threshold(members: int) -> int:
    """How many of the members must answer.

    >>> [threshold(c) for c in (3, 4, 10, 31)]
    [3, 3, 7, 21]
    """
    return 2 * members // 3 + 1


class Step(NamedTuple):
    """What an attempt is to the clients that take part in it: its kind and round, its number, its digest."""

    kind: int
    round: int
    attempt: int
    context: bytes

    def __str__(self) -> str:
        return f"round {self.round + 1}, attempt {self.attempt}"


class AttemptLog:
    """What a client has masked and answered; of each (kind, round) the last attempt is enough, as they only go up.

    | last of this (kind, round) | an order | an unmask request |
    |---|---|---|
    | nothing | mask | answer |
    | masked attempt a | mask if its attempt is above a | answer a itself, or above a |
    | answered attempt a | mask if its attempt is above a | answer if above a |

    Refused are thus a second order or list of one attempt, whatever it says; an attempt after a later one; and a list
    of the attempt that was masked, with another digest. Rounds 1,000 before the last are refused, and forgotten.

    Source: Ma, Woods, Angel, Polychroniadou, Rabin (2023), "Flamingo: multi-round single-server secure aggregation".
    """

    def __init__(self) -> None:
        self._masked: dict[tuple[int, int], Step] = {}
        self._answered: dict[tuple[int, int], Step] = {}

    def mask(self, step: Step) -> None:
        """Note that an order is answered; `ProtocolError` if it must not be."""
        for done, last in (("masked", self._masked), ("opened", self._answered)):
            self._check_above(step, last, f"this client has {done}")
        self._note(step, self._masked)

    def answer(self, step: Step) -> None:
        """Note that an unmask request is answered; `ProtocolError` if it must not be."""
        self._check_above(step, self._answered, "this member has answered")
        masked = self._masked.get((step.kind, step.round))
        if masked is not None and masked.attempt > step.attempt:
            raise ProtocolError(f"{step}: a later attempt, {masked.attempt}, has begun")
        if masked is not None and masked.attempt == step.attempt and masked.context != step.context:
            raise ProtocolError(f"{step}: the digest is not that of the order: another cohort or layout")
        self._note(step, self._answered)

    def _note(self, step: Step, log: dict[tuple[int, int], Step]) -> None:
        """Add an entry, and leave out what is so old that it is refused anyway."""
        newest = max(
            round
            for kind, round in (*self._masked, *self._answered, (step.kind, step.round))
            if kind == step.kind
        )
        if step.round <= newest - LOGGED:
            raise ProtocolError(f"{step}: it is {newest - step.round} rounds ago")
        log[step.kind, step.round] = step
        for kind, round in [key for key in log if key[0] == step.kind and key[1] <= newest - LOGGED]:
            del log[kind, round]

    @staticmethod
    def _check_above(step: Step, last: dict[tuple[int, int], Step], what: str) -> None:
        before = last.get((step.kind, step.round))
        if before is not None and before.attempt >= step.attempt:
            raise ProtocolError(f"{step}: {what} attempt {before.attempt} of this round already")

    def to_bytes(self) -> bytes:
        """The log as bytes, for the client's file."""
        logs = (self._masked, self._answered)
        return b"".join(
            number(len(log), 4)
            + b"".join(
                number(s.kind, 1) + number(s.round, 4) + number(s.attempt, 2) + s.context
                for s in log.values()
            )
            for log in logs
        )

    @classmethod
    def read(cls, reader: Reader) -> AttemptLog:
        """The log from bytes."""
        self = cls()
        for log in (self._masked, self._answered):
            for _ in range(reader.number(4)):
                step = Step(reader.number(1), reader.number(4), reader.number(2), reader.take(KEY))
                log[step.kind, step.round] = step
        return self
