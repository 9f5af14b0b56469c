"""Seconds that JAX spends tracing and compiling, so that a run's own time can be told apart."""

from __future__ import annotations

from typing import Any

import jax

_clocks: list[CompileClock] = []
_listening = False


class CompileClock:
    """Counts compilation while it is entered; `seconds` so far."""

    def __init__(self) -> None:
        self.seconds = 0.0

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
            clock.seconds += duration_secs
