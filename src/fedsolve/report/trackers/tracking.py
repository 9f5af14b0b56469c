"""What every tracker does: it is a callback that sends on what is new, and the files of the result at the end."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import tempfile
import warnings
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from threading import Condition, Thread
from types import ModuleType
from typing import Any

from fedsolve.core.errors import InvalidInput
from fedsolve.report.plots import curves
from fedsolve.report.plots import save as save_figure
from fedsolve.report.table import headline
from fedsolve.results.callbacks import Evaluated
from fedsolve.results.history import Setting

CURVES = "curves.png"


class Tracker(ABC):
    """Base class of trackers: callbacks that log runs to an experiment tracker, each run as a run of its own.

    A resumed run is one of its own there, with the evaluations of before. Everything is sent from a thread of its own,
    so that the run does not wait for the tracker. What fails is sent again, which the run warns of. What the tracker
    has not taken at the end of the run, `patience` seconds after the last success, is dropped with a warning.

    Attributes:
        patience: seconds without success after which the end of a run waits no longer, > 0.
    """

    patience = 20.0  # a local MLflow database or W&B's own process takes seconds to start
    observes_only = True  # and ends no run
    _sender: Sender | None = None
    _sent = -1  # evaluations that were handed over; -1 while no run is begun
    _warned = False

    def __call__(self, at: Evaluated) -> None:
        """Log the new evaluations.

        Args:
            at: the evaluation.
        """
        with self._without_harm():
            self._send(at)
        error = self._sending.error
        if error is not None and not self._warned:
            self._warned = True
            warnings.warn(f"{type(self).__name__} fails and is tried again: {_line(error)}", stacklevel=2)

    def ended(self, result: Any) -> None:
        """Log the result's files, close the run and wait until all is sent; a run without a result is marked failed.

        Args:
            result: what `fs.run` returns, or None.
        """
        self._warned = False
        if self._sent < 0:
            return
        calls = self._sent + 2  # the run's start, each evaluation, the run's end
        with tempfile.TemporaryDirectory() as name, self._without_harm():
            try:
                if result is not None:
                    self._sending.put(partial(self.keep, _files_of(result, Path(name))))
                    calls += 1
                self._sending.put(partial(self.close, finished=result is not None))
                dropped = self._sending.finish(self.patience)
                if dropped:
                    self._warn_of(calls - dropped)
            finally:
                self._sent = -1

    @property
    def _sending(self) -> Sender:
        if self._sender is None:  # made late: a tracker of one's own need not call `super().__init__`
            self._sender = Sender()
        return self._sender

    def _send(self, at: Evaluated) -> None:
        if self._sent < 0:
            record = at.result().history
            self._sending.put(partial(self.begin, at.label, record.task, dict(record.settings)))
            self._sent = 0
        columns = at.metrics
        rounds = columns["round"]
        for row in range(self._sent, len(rounds)):
            metrics = {k: float(v[row]) for k, v in columns.items() if k != "round"}
            self._sending.put(partial(self.log, int(rounds[row]), metrics))
        self._sent = len(rounds)

    def _warn_of(self, made: int) -> None:
        """Warn that only so many calls were made, the run's start among them."""
        error = self._sending.error
        why = "no answer" if error is None else _line(error)
        taken = min(max(made - 1, 0), self._sent)
        warnings.warn(
            f"{type(self).__name__} logged {taken} of {self._sent} evaluations, then nothing for "
            f"{self.patience:g} s ({why}): the run's own record has them all",
            stacklevel=4,
        )

    @contextlib.contextmanager
    def _without_harm(self) -> Iterator[None]:
        """An error on the run's side, whatever it is, is a warning and does not end the run."""
        try:
            yield
        except Exception as error:
            warnings.warn(f"{type(self).__name__} does not log this run: {_line(error)}", stacklevel=4)

    @abstractmethod
    def begin(self, label: str, task: str, settings: dict[str, Setting]) -> None:
        """Begin a run of a method on a task, with its resolved settings.

        Args:
            label: the method's name in tables.
            task: the task's name.
            settings: name -> number or text.
        """

    @abstractmethod
    def log(self, round: int, metrics: dict[str, float]) -> None:
        """Log metrics after a number of rounds; non-finite values are logged unchanged.

        Args:
            round: rounds done, from 0.
            metrics: name -> value at that evaluation.
        """

    @abstractmethod
    def keep(self, files: list[Path]) -> None:
        """Log the result's files: record, evaluations, model and a plot; they are deleted afterwards.

        Args:
            files: paths in a temporary folder.
        """

    @abstractmethod
    def close(self, finished: bool) -> None:
        """End the run.

        Args:
            finished: whether the run ended with a result.
        """


def _files_of(result: Any, folder: Path) -> list[Path]:
    """A result's files, saved in a folder, with a plot of its curves where matplotlib is installed."""
    result.save(folder)
    if importlib.util.find_spec("matplotlib") is not None:
        shown = [result.history]
        save_figure(curves(shown, headline(shown)), folder / CURVES)
    return sorted(folder.iterdir())


def _line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def package(name: str, extra: str) -> ModuleType:
    """A tracker's package.

    Raises:
        InvalidInput: it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError:
        raise InvalidInput(f"{name} is not installed: pip install 'fedsolve[{extra}]'") from None


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
