"""What the seconds of a round are spent on."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

PHASES: tuple[str, ...] = ("wait", "orders", "training", "replies", "update", "evaluation", "checkpoint")
"""Waiting for nodes; encoding and sending orders; waiting for replies; checking them; updating the model, and all that
belongs to no other phase; evaluating the model; saving the state."""


class PhaseClock:
    """The seconds of a round by phase. Each moment belongs to one phase, so that they add up to the round's.

    Args:
        now: the time in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self.begin()

    def begin(self) -> None:
        """A round begins."""
        self._seconds: dict[str, float] = dict.fromkeys(PHASES, 0.0)
        self._phase, self._since = "update", self._now()

    @contextlib.contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """What happens within it belongs to this phase, but for phases that begin and end inside."""
        before = self._switch(phase)
        try:
            yield
        finally:
            self._switch(before)

    def seconds(self) -> dict[str, float]:
        """The seconds so far, by phase."""
        self._switch(self._phase)
        return dict(self._seconds)

    def _switch(self, phase: str) -> str:
        now, before = self._now(), self._phase
        self._seconds[before] += now - self._since
        self._phase, self._since = phase, now
        return before
