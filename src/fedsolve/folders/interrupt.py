"""What asks a run to save and stop after the current compiled call: Ctrl-C, or a file in its folder.

A second Ctrl-C stops at once. The file is how another process asks, such as the page of `fedsolve watch`.
"""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from types import FrameType
from typing import Any

STOP = "stop"
"""The file that asks the run of its folder to stop; who is asked removes it."""


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
