"""Which clients are left alone for a while, because they did not answer."""

from __future__ import annotations

import math

_MAX_EXPONENT = 6


class Backoff:
    """Which clients are not asked for now. Rounds count from 1; a node is None for a client that is not connected.

    A client that was not connected is not waited for again until it is; one that did not answer is not asked for a
    number of rounds that doubles each time: one, two, four, at most 64. An answer, however late or to whatever
    question, or another node of the client ends that at once.
    """

    def __init__(self) -> None:
        # client -> (its node, misses so far, first round in which it is asked again)
        self._missing: dict[int, tuple[int | None, int, float]] = {}

    def record_miss(self, client: int, node: int | None, round: int) -> None:
        """A client was waited for in vain."""
        last_node, misses, _ = self._missing.get(client, (node, 0, 0.0))
        misses = min(misses, _MAX_EXPONENT) if last_node == node else 0
        next_round = math.inf if node is None else round + 1 + 2**misses
        self._missing[client] = (node, misses + 1, next_round)

    def record_answer(self, client: int) -> None:
        """A client answered."""
        self._missing.pop(client, None)

    def is_backing_off(self, client: int, node: int | None, round: int) -> bool:
        """Whether a client that is now at this node is left alone in this round."""
        last_node, _, next_round = self._missing.get(client, (None, 0, 0.0))
        return last_node == node and round < next_round
