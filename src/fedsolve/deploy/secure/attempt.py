"""One attempt to sum: roster, kind, round, number, request, cohort and layout; its digest is bound into all it uses.

Each client masks and opens an attempt once: `AttemptLog` is the rule, and what it needs to be remembered.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cache, cached_property
from math import ceil, comb
from typing import NamedTuple

from fedsolve.deploy.secure.keys import SMALLEST, Roster
from fedsolve.deploy.secure.primitives import (
    KEY,
    ProtocolError,
    Reader,
    check_ascending,
    client_list,
    digest,
    names,
    number,
)

# Which clients of a cohort share a mask: all pairs up to 64 clients, beyond that those near each other in a ring.
#
# The ring is a random order of all clients of the roster, drawn once for an experiment (`Roster.ring`), when nobody
# can choose keys any more. Each client of a cohort has a mask with those of it that are among the m clients before and
# the m after it in the ring (a Harary graph of degree 2 m where the cohort is all, as in Bell et al. 2020, section 3).
# So it does not matter that the server knows the ring when it chooses cohorts, and who is lost.

COMPLETE = 64
"""Clients up to which all pairs share a mask."""
CORRUPT = 0.05
"""The fraction of all clients that may work with the server; all of them may be in one cohort."""
LOST = 0.2
"""The fraction of a cohort that may be lost in a round and its sum still be opened."""
SECURITY = 40
"""The probability that a ring does not hide every client is below 2^-40."""
_OPENED = 20  # one round in 2^20 cannot be opened although clients are lost at random


class Width(NamedTuple):
    """How far masks reach.

    One shares a mask with m = `reach` clients on each side in the ring, if they are of the cohort. Of the m clients
    after each one that arrived, `arrived` must have arrived too, else the sum stays closed.
    """

    reach: int
    arrived: int


@cache
def width(clients: int, cohort: int, corrupt: float = CORRUPT, lost: float = LOST) -> Width | None:
    """The smallest reach that is safe for a cohort of so many of all clients; None where all pairs must share a mask.

    The honest clients that arrived are connected by masks unless there are two places with m clients in sequence among
    whom no honest one arrived. As `arrived` of them did, each place then has so many corrupt clients, which were
    corrupt before the order was drawn. With n clients, of whom c are corrupt and l not in the cohort or lost, and
    H(n, c, d) the number of corrupt ones among d clients, which is hypergeometric:

        n (n - 1) / 2 * P[H(n, c, 2 m) >= 2 arrived] <= 2^-40,
        n P[H(n, l, m) > m - arrived] <= 2^-20.

    The server may choose cohorts and who is lost after it has seen the order: the first line holds whomever it chooses.
    """
    bad, gone = ceil(corrupt * clients), clients - cohort + ceil(lost * cohort)
    pairs = clients * (clients - 1) // 2
    arrived = 1
    for reach in range(1, min((clients - 1) // 2, cohort)):  # a longer one saves little
        draws = comb(clients, 2 * reach)
        while pairs * ways(clients, bad, 2 * reach, 2 * arrived) << SECURITY > draws:
            arrived += 1  # grows with reach
        if arrived > reach:
            continue
        if clients * ways(clients, gone, reach, reach - arrived + 1) << _OPENED <= comb(clients, reach):
            return Width(reach, arrived)
    return None


def ways(clients: int, marked: int, drawn: int, least: int) -> int:
    return sum(
        comb(marked, i) * comb(clients - marked, drawn - i) for i in range(least, min(marked, drawn) + 1)
    )


class MaskGraph:
    """The pairs of a cohort that share a mask; `ring` has all clients of the roster, in their random order."""

    # Source: Bell, Bonawitz, Gascon, Lepoint, Raykova (2020), "Secure single-server aggregation with
    # (poly)logarithmic overhead".

    def __init__(self, cohort: Sequence[int], ring: Sequence[int]) -> None:
        self.width = width(len(ring), len(cohort)) if len(cohort) > COMPLETE else None
        self._cohort, self._ring = frozenset(cohort), ring
        self._place = {client: i for i, client in enumerate(ring)}
        self._neighbours: dict[int, list[int]] = {}

    def neighbours(self, client: int) -> list[int]:
        if client not in self._neighbours:
            self._neighbours[client] = self._find(client)
        return self._neighbours[client]

    def _find(self, client: int) -> list[int]:
        if self.width is None:
            return sorted(self._cohort - {client})
        n, here = len(self._ring), self._place[client]
        steps = range(1, self.width.reach + 1)
        near = {self._ring[(here + s) % n] for step in steps for s in (step, -step)}
        return sorted(near & self._cohort)

    def check_arrived(self, arrived: Collection[int]) -> None:
        """Raise `ProtocolError` if so many are missing side by side that a sum of few clients could be opened."""
        if self.width is None:
            return
        # Many that are missing side by side would cut the ring in two, and each side were a sum of its own.
        here = [client in arrived for client in self._ring]
        n, (reach, least) = len(here), self.width
        for i, client in enumerate(self._ring):
            if here[i] and sum(here[(i + s) % n] for s in range(1, reach + 1)) < least:
                raise ProtocolError(
                    f"of the {reach} clients that follow client {client} in the graph fewer than {least} arrived: too "
                    "many are missing to open the sum"
                )


KINDS = ("train", "evaluate", "statistics")
"""What is summed; a mask, a share or an answer of one kind is worth nothing in another."""
STATISTICS = KINDS.index("statistics")
LARGEST_ATTEMPT = 255
"""Attempts of a round are few."""
LOGGED = 1000
"""Rounds that a client remembers; an older one is refused."""
_MOST_BYTES = 2**40
SECOND_SUM = "another sum of this round was opened"
"""What a member says that may not open one more, and a server knows that the round is over."""


class Attempt:
    """What all clients, the committee and the server must agree on before anything is sent.

    A round that is asked for again has the next `attempt`, from 0. The cohort is ascending, at least 3 clients; a
    message has n32 words of 32 bits, then n64 of 64 bits. `request` is the digest, 32 bytes, of what all clients are
    asked: a client that is asked something else has other masks, which cancel with nobody's (against Pasquini et al.
    2022, "Eluding secure aggregation in federated learning via model inconsistency").
    """

    def __init__(
        self,
        roster: Roster,
        kind: str,
        round: int,
        attempt: int,
        cohort: Sequence[int],
        n32: int,
        n64: int,
        request: bytes,
    ) -> None:
        if kind not in KINDS:
            raise ProtocolError(f"{kind!r} is no kind of a secure sum: use one of {', '.join(KINDS)}")
        self.roster, self.kind, self.cohort = roster, kind, check_ascending(cohort, "the cohort")
        self.round, self.attempt = round, attempt
        self.n32, self.n64, self.request = n32, n64, request
        if not 0 <= attempt <= LARGEST_ATTEMPT:
            raise ProtocolError(
                f"attempt {attempt} is not in 0 ... {LARGEST_ATTEMPT}: go on with the next round"
            )
        if len(request) != KEY:
            raise ProtocolError(f"the digest of a request has {len(request)} bytes, not {KEY}")
        # Bounded, so that an order makes nobody ask the system for more memory than there is.
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
        return self.roster.digest + head + self.request + sizes + client_list(self.cohort)

    @classmethod
    def read(cls, reader: Reader, roster: Roster, what: str) -> Attempt:
        if reader.take(len(roster.digest)) != roster.digest:
            raise ProtocolError(f"{what} has the digest of another roster")
        code, round, attempt = reader.number(1), reader.number(4), reader.number(2)
        request = reader.take(KEY)
        n32, n64, cohort = reader.number(8), reader.number(8), reader.clients()
        kind = KINDS[code] if code < len(KINDS) else str(code)
        return cls(roster, kind, round, attempt, cohort, n32, n64, request)

    @cached_property
    def context(self) -> bytes:
        return digest("attempt", self.to_bytes())

    @cached_property
    def graph(self) -> MaskGraph:
        return MaskGraph(self.cohort, self.roster.ring)

    @cached_property
    def step(self) -> Step:
        return Step(KINDS.index(self.kind), self.round, self.attempt, self.context)

    @property
    def num_bytes(self) -> int:
        return 4 * self.n32 + 8 * self.n64

    def __str__(self) -> str:
        return f"{self.kind}, round {self.round + 1}, attempt {self.attempt}"


class Step(NamedTuple):
    """What an attempt is to the clients that take part in it: its kind and round, its number, its digest."""

    kind: int
    round: int
    attempt: int
    context: bytes

    def __str__(self) -> str:
        return f"round {self.round + 1}, attempt {self.attempt}"


class Words(NamedTuple):
    """A client's message, n32 unsigned words of 32 bits and n64 of 64 bits, little-endian, and what it answers.

    There are no data before they are made. The round is None where only the server counts; `request`, the digest of
    what this client was asked, where it is not known before the words are.
    """

    data: bytes | None
    n32: int
    n64: int
    kind: str
    round: int | None
    request: bytes | None

    def check(self, attempt: Attempt) -> None:
        """Raise `ProtocolError` unless an attempt is to sum such messages."""
        if self.data is not None and (
            (attempt.n32, attempt.n64) != (self.n32, self.n64) or len(self.data) != attempt.num_bytes
        ):
            raise ProtocolError(
                f"{attempt}: the order is for {attempt.n32} + {attempt.n64} words, this client has {self.n32} + "
                f"{self.n64}"
            )
        if attempt.kind != self.kind or attempt.round != (
            attempt.round if self.round is None else self.round
        ):
            raise ProtocolError(f"the order is of {attempt}, the words of {self.kind}, round {self.round}")
        # Of an evaluation the request's digest is not known before it is measured (`request` is None).
        is_known = self.data is not None or self.request is not None
        if is_known and attempt.request != self.request:
            raise ProtocolError(
                f"{attempt}: the sum is of answers to another request than this client was sent: the server asks "
                "different clients different things, or has another version of fedsolve"
            )


class AttemptLog:
    """What a client has masked and answered; of each (kind, round) the last attempt is enough, as they only go up.

    | last of this (kind, round) | an order | an unmask request |
    |---|---|---|
    | nothing | mask | answer |
    | masked attempt a | mask if its attempt is above a | answer a itself, or above a |
    | answered attempt a | mask if its attempt is above a | answer if above a |

    Refused are thus a second order or list of one attempt, whatever it says; an attempt after a later one; and a list
    of the attempt that was masked, with another digest. Rounds 1,000 before the last are refused, and forgotten.

    A round opens one sum. A second one may be of the same clients, or of others that differ by at least `min_sum`
    clients, so that the difference of both is no message of few; then no third. All statistics count as one round,
    since their server numbers the rounds.

    Source: Ma, Woods, Angel, Polychroniadou, Rabin (2023), "Flamingo: multi-round single-server secure aggregation".
    """

    def __init__(self) -> None:
        self._masked: dict[tuple[int, int], Step] = {}
        self._answered: dict[tuple[int, int], Step] = {}
        self._opened: dict[tuple[int, int], list[int]] = {}

    def mask(self, step: Step) -> None:
        """Note that an order is answered; `ProtocolError` if it must not be."""
        for done, last in (("masked", self._masked), ("opened", self._answered)):
            self._check_above(step, last, f"this client has {done}")
        self._note(step, self._masked)

    def answer(self, step: Step, clients: int, min_sum: int, may_repeat: bool) -> None:
        """Note that an unmask request is answered; `ProtocolError` if it must not be.

        `may_repeat`: the owner lets a round, whose sum is that of `clients` (`Roster.bits`), be opened a second time.
        """
        self._check_above(step, self._answered, "this member has answered")
        masked = self._masked.get((step.kind, step.round))
        if masked is not None and masked.attempt > step.attempt:
            raise ProtocolError(f"{step}: a later attempt, {masked.attempt}, has begun")
        if masked is not None and masked.attempt == step.attempt and masked.context != step.context:
            raise ProtocolError(f"{step}: the digest is not that of the order: another cohort or layout")
        # The server numbers statistics, which all count as one round: under a new number a second sum is
        # opened even where the owner allows no repetition, and no third one.
        is_new = step.kind == STATISTICS and (step.kind, step.round) not in self._answered
        may_repeat = may_repeat or is_new
        before = self._opened.get(key := (step.kind, 0 if step.kind == STATISTICS else step.round), [])
        if before and not (may_repeat and (clients in before or len(before) == 1)):
            raise ProtocolError(f"{step}: {SECOND_SUM} already, and no more is")
        if before and 0 < (apart := (clients ^ before[0]).bit_count()) < min_sum:
            raise ProtocolError(
                f"{step}: {SECOND_SUM}, from which this one differs by {apart} clients, fewer than min_sum = {min_sum}"
            )
        self._note(step, self._answered)
        self._opened[key] = before if clients in before else [*before, clients]

    def _note(self, step: Step, log: dict[tuple[int, int], Step]) -> None:
        # Add an entry, and leave out what is so old that it is refused anyway.
        # By kind: rounds of training and of evaluation go on apart.
        newest = max(
            round
            for kind, round in (*self._masked, *self._answered, (step.kind, step.round))
            if kind == step.kind
        )
        if step.round <= newest - LOGGED:
            raise ProtocolError(f"{step}: it is {newest - step.round} rounds ago")
        log[step.kind, step.round] = step
        old = [(kind, round) for kind, round in log if kind == step.kind and round <= newest - LOGGED]
        for key in old:
            del log[key]
            if step.kind != STATISTICS:
                self._opened.pop(key, None)

    @staticmethod
    def _check_above(step: Step, last: dict[tuple[int, int], Step], what: str) -> None:
        before = last.get((step.kind, step.round))
        if before is not None and before.attempt >= step.attempt:
            raise ProtocolError(f"{step}: {what} attempt {before.attempt} of this round already")

    def to_bytes(self) -> bytes:
        # Two tables of kind, round, attempt, digest; then the sets of clients that were opened, as numbers.
        logs = (self._masked, self._answered)
        opened = [number(len(self._opened), 4)]
        for (kind, round), sets in self._opened.items():
            opened.append(number(kind, 1) + number(round, 4) + number(len(sets), 1))
            for clients in sets:
                size = (clients.bit_length() + 7) // 8
                opened.append(number(size, 2) + number(clients, size))
        return b"".join(
            number(len(log), 4)
            + b"".join(
                number(s.kind, 1) + number(s.round, 4) + number(s.attempt, 2) + s.context
                for s in log.values()
            )
            for log in logs
        ) + b"".join(opened)

    @classmethod
    def read(cls, reader: Reader) -> AttemptLog:
        self = cls()
        for log in (self._masked, self._answered):
            for _ in range(reader.number(4)):
                step = Step(reader.number(1), reader.number(4), reader.number(2), reader.take(KEY))
                log[step.kind, step.round] = step
        for _ in range(reader.number(4)):
            key, count = (reader.number(1), reader.number(4)), reader.number(1)
            self._opened[key] = [reader.number(reader.number(2)) for _ in range(count)]
        return self
