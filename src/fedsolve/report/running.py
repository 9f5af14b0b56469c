"""A page while its runs go on: written again every few seconds, and loaded again by the browser, until they end."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from fedsolve.core.errors import Diverged, Interrupted

_SECONDS_BETWEEN = 5.0
_TIMES_BETWEEN = 20  # as long as a writing takes: at most a twentieth of the time goes to it


class SoFar(NamedTuple):
    """How far runs are, in words, and whether they go on."""

    words: str
    goes_on: bool

    @property
    def sentence(self) -> str:
        """What the page says first."""
        return f"{'Running' if self.goes_on else 'Stopped'}, {time.strftime('%H:%M:%S')}: {self.words}."

    @property
    def refresh(self) -> str:
        """What has the browser load the page again."""
        return f'<meta http-equiv="refresh" content="{_SECONDS_BETWEEN:g}">\n' if self.goes_on else ""


@contextlib.contextmanager
def written_meanwhile(write: Callable[[bool], bool]) -> Iterator[None]:
    """Write a page every few seconds in a thread of its own; and once more where the block stops before its end.

    Args:
        write: writes it, told whether the runs go on, and says whether it did. What it raises ends nothing.
    """
    ended, written = threading.Event(), threading.Event()

    def attempt(goes_on: bool) -> None:
        with contextlib.suppress(Exception):
            if write(goes_on):
                written.set()

    def follow() -> None:
        took = 0.0
        while not ended.wait(max(_SECONDS_BETWEEN, _TIMES_BETWEEN * took)):
            begun = time.monotonic()
            attempt(goes_on=True)
            took = time.monotonic() - begun

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    except BaseException as error:
        ended.set()
        thread.join()
        if written.is_set() or isinstance(error, Interrupted | Diverged):  # not where the folder was refused
            attempt(goes_on=False)
        raise
    finally:
        ended.set()
        thread.join()
