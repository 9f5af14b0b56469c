"""Calls to a tracker, made in a thread beside the run, so that a server that does not answer never holds the run."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from threading import Condition, Thread

_FIRST_PAUSE, _LONGEST_PAUSE = 0.25, 8.0  # seconds before a call that failed is made again


class Sender:
    """Makes calls one after another, in the order in which they were put; a call that fails is made again.

    Attributes:
        error: what the latest failure raised; None while no call has failed since the last `finish`.
    """

    def __init__(self) -> None:
        self.error: Exception | None = None
        self._calls: deque[Callable[[], None]] = deque()
        self._changed = Condition()
        self._thread: Thread | None = None
        self._made, self._finishing = 0, False

    def put(self, call: Callable[[], None]) -> None:
        """Have a call made after those before it.

        Args:
            call: a function without arguments.
        """
        with self._changed:
            if self._finishing:
                self._finishing, self.error = False, None
            self._calls.append(call)
            if self._thread is None:
                self._thread = Thread(target=self._work, name="fedsolve tracker", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def finish(self, patience: float) -> int:
        """Wait until every call is made; give up once none has succeeded for some time.

        Args:
            patience: seconds without success after which the remaining calls are dropped.

        Returns:
            How many calls were dropped.
        """
        with self._changed:
            self._finishing = True
            self._changed.notify_all()
            made = -1
            while self._calls and made != self._made:
                made = self._made
                self._changed.wait_for(partial(self._differs, made), patience)
            dropped = len(self._calls)
            self._calls.clear()
            self._changed.notify_all()
        return dropped

    def _differs(self, made: int) -> bool:
        return not self._calls or self._made != made

    def _work(self) -> None:
        pause = _FIRST_PAUSE
        while (call := self._next()) is not None:
            try:
                call()
            except Exception as error:  # whatever the tracker's package raises
                self._pause(call, error, pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
            else:
                pause = _FIRST_PAUSE
                self._succeeded(call)

    def _next(self) -> Callable[[], None] | None:
        """The first call that is not made yet; None ends the thread."""
        with self._changed:
            self._changed.wait_for(lambda: self._calls or self._finishing)
            if self._calls:
                return self._calls[0]
            self._thread = None
            return None

    def _succeeded(self, call: Callable[[], None]) -> None:
        with self._changed:
            if self._calls and self._calls[0] is call:  # not if it was dropped meanwhile
                self._calls.popleft()
                self._made += 1
            self._changed.notify_all()

    def _pause(self, call: Callable[[], None], error: Exception, seconds: float) -> None:
        with self._changed:
            if self._calls and self._calls[0] is call:
                self.error = error
                self._changed.wait_for(lambda: not self._calls, seconds)
