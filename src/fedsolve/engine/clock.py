"""Seconds that JAX spends tracing and compiling, so that a run's own time can be told apart."""

from __future__ import annotations

import time
from typing import Any

import jax

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
