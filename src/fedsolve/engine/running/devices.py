"""Who may use the devices: so many runs at once, or one alone."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator


class Devices:
    """Lets so many runs at them at once, or one alone, in the order in which they come."""

    def __init__(self, runs: int) -> None:
        self._all = self._free = runs
        self._queue: list[object] = []
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def taken(self, alone: bool) -> Iterator[None]:
        """Wait for a place, or for all of them, and keep it within the block."""
        places, me = self._all if alone else 1, object()
        with self._changed:
            self._queue.append(me)
            self._changed.wait_for(lambda: self._queue[0] is me and self._free >= places)
            self._queue.pop(0)
            self._free -= places
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._free += places
                self._changed.notify_all()

    def free(self, alone: bool) -> bool:
        """Whether one that comes now need not wait."""
        with self._changed:
            return not self._queue and self._free >= (self._all if alone else 1)
