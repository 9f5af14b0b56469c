"""Which clients of a cohort share a mask: all pairs up to 64 clients, beyond that those near each other in a ring.

The ring is a random order of all clients of the roster, drawn once for an experiment (`Roster.ring`), when nobody can
choose keys any more. Each client of a cohort has a mask with those of it that are among the m clients before and the m
after it in the ring (a Harary graph of degree 2 m where the cohort is all, as in Bell et al. 2020, section 3). So it
does not matter that the server knows the ring when it chooses cohorts, and who is lost.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cache
from math import ceil, comb
from typing import NamedTuple

from fedsolve.deploy.secure.byte_reader import ProtocolError

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

    Attributes:
        reach: m, the clients on each side in the ring that one shares a mask with, if they are of the cohort.
        arrived: of the m clients after each one that arrived, so many must have arrived, else the sum stays closed.
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
    """In how many ways `drawn` of the clients have at least `least` marked ones among them."""
    return sum(
        comb(marked, i) * comb(clients - marked, drawn - i) for i in range(least, min(marked, drawn) + 1)
    )


class MaskGraph:
    """The pairs of a cohort that share a mask.

    Args:
        cohort: its clients, ascending.
        ring: all clients of the roster, in their random order.

    Source: Bell, Bonawitz, Gascon, Lepoint, Raykova (2020), "Secure single-server aggregation with
    (poly)logarithmic overhead".
    """

    def __init__(self, cohort: Sequence[int], ring: Sequence[int]) -> None:
        self.width = width(len(ring), len(cohort)) if len(cohort) > COMPLETE else None
        self._cohort, self._ring = frozenset(cohort), ring
        self._place = {client: i for i, client in enumerate(ring)}
        self._neighbours: dict[int, list[int]] = {}

    def neighbours(self, client: int) -> list[int]:
        """Whom a client of the cohort shares a mask with, ascending."""
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
        here = [client in arrived for client in self._ring]
        n, (reach, least) = len(here), self.width
        for i, client in enumerate(self._ring):
            if here[i] and sum(here[(i + s) % n] for s in range(1, reach + 1)) < least:
                raise ProtocolError(
                    f"of the {reach} clients that follow client {client} in the graph fewer than {least} arrived: too "
                    "many are missing to open the sum"
                )
