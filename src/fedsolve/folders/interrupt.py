"""What asks a run to save and stop after the current compiled call: Ctrl-C, or a file in its folder.

A second Ctrl-C stops at once. The file is how another process asks, such as `fedsolve stop`.
"""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

from fedsolve.core.errors import InvalidInput
from fedsolve.folders.files import write_atomically
from fedsolve.folders.lock import held_within

_SECONDS_BETWEEN = 0.5
STOP = "stop"
"""The file that asks the run of its folder to stop; who is asked removes it."""


def stop_within(folder: Path) -> None:
    """Ask what runs in a folder, or in those in it, to save and stop, and wait until it has.

    Raises:
        InvalidInput: nothing runs there, or the file that asks cannot be written.
    """
    running, asked = held_within(folder), set[Path]()
    if not running:
        raise InvalidInput(f"nothing runs in {folder}: give the folder of a run whose rounds have begun")
    while running:  # asked again: a comparison may hold its folder before a method of it does
        for place in running - {parent for each in running for parent in each.parents}:
            write_atomically(place / STOP, "")
            asked.add(place)
        time.sleep(_SECONDS_BETWEEN)
        running = held_within(folder)
    for place in asked:
        (place / STOP).unlink(missing_ok=True)


class Interruptible:
    """While entered, the first SIGINT or SIGTERM, and a file `STOP` in the folder if there is one, set `asked`."""

    def __init__(self, folder: Path | None = None) -> None:
        self._file = None if folder is None else folder / STOP
        self._signalled = False
        self._old: dict[int, Any] = {}

    def __enter__(self) -> Interruptible:
        self._remove()  # one that was meant for an earlier run
        if threading.current_thread() is threading.main_thread():
            self._old = {s: signal.signal(s, self._on_signal) for s in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *exc: Any) -> None:
        self._remove()
        self._restore()

    @property
    def asked(self) -> bool:
        """Whether the run shall stop."""
        return self._signalled or (self._file is not None and self._file.exists())

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._signalled = True
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)
        self._old = {}

    def _remove(self) -> None:
        if self._file is not None:
            self._file.unlink(missing_ok=True)
