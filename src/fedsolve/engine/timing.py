"""How long things take: seconds spent compiling, and rounds of one compiled call, which nothing interrupts."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import jax

_CALL_SECONDS = 1.0
_clocks: list[CompileClock] = []
_listening = False


class CompileClock:
    """Counts compilation while it is entered; `seconds` so far.

    Tracing one function reports the functions inside it too: a report covers those that began after it.
    """

    def __init__(self) -> None:
        self._spans: list[tuple[float, float]] = []  # begin and length, none inside another

    @property
    def seconds(self) -> float:
        """Seconds of compilation so far."""
        return sum(length for _, length in self._spans)

    def add(self, end: float, length: float) -> None:
        """Count a span of time that ended now."""
        while self._spans and self._spans[-1][0] >= end - length:
            self._spans.pop()
        self._spans.append((end - length, length))

    def __enter__(self) -> CompileClock:
        global _listening
        if not _listening:  # jax has no way to remove one listener, so one stays for the process
            jax.monitoring.register_event_duration_secs_listener(_on_duration)
            _listening = True
        _clocks.append(self)
        return self

    def __exit__(self, *exc: Any) -> None:
        _clocks.remove(self)


def _on_duration(event: str, duration_secs: float, **_: Any) -> None:
    if event.startswith("/jax/core/compile/"):
        for clock in _clocks:
            clock.add(time.perf_counter(), duration_secs)


class CallLength:
    """Rounds of the next call, by what those before took; progress and Ctrl-C wait for no more than that.

    Attributes:
        known: whether a call has been timed; the first one compiles, too.
    """

    def __init__(self, clock: CompileClock) -> None:
        self._clock = clock
        self._round_seconds: float | None = None

    @property
    def known(self) -> bool:
        """See the class."""
        return self._round_seconds is not None

    def rounds(self, most: int) -> int:
        """Rounds of the next call: one while nothing is known, and never more than `most`."""
        if self._round_seconds is None:
            return 1
        return min(most, max(1, int(_CALL_SECONDS / self._round_seconds)))

    @contextlib.contextmanager
    def timed(self, rounds: int) -> Iterator[None]:
        """Time a call of so many rounds, without what it compiles."""
        begun, compiled = time.perf_counter(), self._clock.seconds
        yield
        spent = time.perf_counter() - begun - (self._clock.seconds - compiled)
        self._round_seconds = max(spent / rounds, 1e-6)
