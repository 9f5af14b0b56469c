"""Which clients of a cohort share a mask: all pairs up to 32 clients, beyond that a ring in a random order.

The order of the ring follows from a hash of roster, kind, round, attempt and cohort. Each client has a mask with the m
clients before it and the m after it (a Harary graph of degree k = 2 m), as in Bell et al. (2020), section 3.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from functools import cache
from math import ceil, comb
from typing import NamedTuple

from fedsolve.deploy.secure.byte_reader import ProtocolError, number

COMPLETE = 32
"""Clients up to which all pairs share a mask."""
CORRUPT = 0.05
"""The fraction of a cohort that may work with the server."""
LOST = 0.2
"""The fraction of a cohort that may be lost in a round and its sum still be opened."""
SECURITY = 40
"""The probability that a graph does not hide every client is below 2^-40."""
_OPENED = (
    20  # one graph in 2^20 is refused although clients are lost at random; another attempt then has another
)


class Width(NamedTuple):
    """How far masks reach.

    Attributes:
        reach: m, the clients on each side that one shares a mask with.
        arrived: of the m clients after each one that arrived, so many must have arrived, else the sum stays closed.
    """

    reach: int
    arrived: int


@cache
def width(clients: int, corrupt: float = CORRUPT, lost: float = LOST) -> Width | None:
    """The smallest ring that is safe; None where all pairs must share a mask.

    The honest clients that arrived are connected by masks unless there are two places with m clients in sequence among
    whom no honest one arrived. As `arrived` of them did, each place then has so many corrupt clients, which were
    corrupt before the order was drawn. With n clients, of whom c are corrupt and l lost, and H(n, c, d) the number of
    corrupt ones among d clients, which is hypergeometric:

        n (n - 1) / 2 * P[H(n, c, 2 m) >= 2 arrived] <= 2^-40,
        n P[H(n, l, m) > m - arrived] <= 2^-20.

    The server may choose who is lost after it has seen the order: the first line holds whomever it chooses.
    """
    bad, gone = ceil(corrupt * clients), ceil(lost * clients)
    pairs = clients * (clients - 1) // 2
    arrived = 1
    for reach in range(1, (clients - 1) // 2):
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
        cohort: its clients.
        context: the digest of the attempt, which the order of the ring follows from.

    Source: Bell, Bonawitz, Gascon, Lepoint, Raykova (2020), "Secure single-server aggregation with
    (poly)logarithmic overhead".
    """

    def __init__(self, cohort: Sequence[int], context: bytes) -> None:
        self.width = width(len(cohort)) if len(cohort) > COMPLETE else None
        self._ring = list(cohort)
        if self.width is not None:
            self._ring.sort(key=lambda client: hashlib.sha256(context + number(client, 4)).digest())
        self._place = {client: i for i, client in enumerate(self._ring)}
        self._neighbours: dict[int, list[int]] = {}

    @property
    def degree(self) -> int:
        """How many others each client shares a mask with."""
        return len(self._ring) - 1 if self.width is None else 2 * self.width.reach

    def neighbours(self, client: int) -> list[int]:
        """Whom a client of the cohort shares a mask with, ascending."""
        if client not in self._neighbours:
            self._neighbours[client] = self._find(client)
        return self._neighbours[client]

    def _find(self, client: int) -> list[int]:
        if self.width is None:
            return [other for other in self._ring if other != client]
        n, here = len(self._ring), self._place[client]
        steps = range(1, self.width.reach + 1)
        return sorted(self._ring[(here + s) % n] for step in steps for s in (step, -step))

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
