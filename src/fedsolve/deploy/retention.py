"""Which older checkpoints a deployment keeps, so that the server and its clients keep the states that go with them."""

from __future__ import annotations

from collections.abc import Iterable

EVERY = 10
"""Rounds between two checkpoints that are kept beside the newest two."""


def is_kept(done: int) -> bool:
    """Whether the checkpoint after so many rounds is kept: after 1, 11, 21, ... rounds."""
    return done % EVERY == 1


def pinned(rounds: Iterable[int], done: int) -> set[int]:
    """Those of a client's states that the kept checkpoints go on from: the last two that there can be.

    Args:
        rounds: from 0, in which the client's update was used and after which its state is there.
        done: rounds done.

    Returns:
        At most two rounds.

    >>> sorted(pinned([0, 4, 9, 12, 19, 21], done=22))
    [9, 19]
    """
    rounds, last = list(rounds), done - (done - 1) % EVERY
    before = ([r for r in rounds if r < retained] for retained in (last, last - EVERY))
    return {max(earlier) for earlier in before if earlier}
