"""Flower's simulation engine: when it stops, it leaves the server's app waiting; here that becomes an error."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

from flwr.serverapp import Grid

from fedsolve.core.errors import Unavailable
from fedsolve.deploy.messages.sanitize import sanitize

_STOPPED = "An exception occur"  # how the engine's own log begins what ended it


class _CauseHandler(logging.Handler):
    """Remembers the line of the engine's log that says why it stopped."""

    cause = ""

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if not self.cause and record.levelno >= logging.ERROR and text.startswith(_STOPPED):
            self.cause = sanitize(text.partition("!!")[2] or text)


def is_simulated(grid: Grid) -> bool:
    """Whether the clients are simulated by Flower, in this process."""
    return type(grid).__name__ == "InMemoryGrid"


@contextlib.contextmanager
def watched_engine(grid: Grid) -> Iterator[None]:
    """Within it, `check_engine` knows whether the simulation engine, if there is one, has stopped."""
    log, handler = logging.getLogger("flwr"), _CauseHandler(logging.ERROR)
    if is_simulated(grid):
        log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


def check_engine() -> None:
    """Raise `Unavailable` with the cause if the engine has stopped: nobody will answer any more."""
    for handler in logging.getLogger("flwr").handlers:
        if isinstance(handler, _CauseHandler) and handler.cause:
            raise Unavailable(f"Flower's simulation engine has stopped, no client runs: {handler.cause}")


def missing_clients_advice(grid: Grid, population: int) -> str:
    """What to do if clients are missing at the start."""
    if is_simulated(grid):
        return f"simulate num-supernodes={population}, and give Ray more connect-seconds to start"
    return "start their SuperNodes or lower the quorum"
