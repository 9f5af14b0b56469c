"""What every tracker does: it is a callback that sends on what is new, and the files of the result at the end."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import tempfile
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from fedsolve.callbacks import Evaluated
from fedsolve.errors import InvalidInput
from fedsolve.report.plots import curves
from fedsolve.report.plots import save as save_figure
from fedsolve.report.table import headline
from fedsolve.results.history import Setting

CURVES = "curves.png"


class Tracker(ABC):
    """A callback that sends a run to an experiment tracker; another run afterwards is another run there.

    A resumed run is one of its own there, with the evaluations of before. What the tracker cannot reach or write is a
    warning, and nothing more is sent: the run goes on.
    """

    _sent = -1  # evaluations that were sent; -1 while no run is begun
    _failed = False

    def __call__(self, at: Evaluated) -> None:
        """Send the evaluations that are new.

        Args:
            at: the evaluation.
        """
        if not self._failed:
            with self._without_harm():
                self._send(at)

    def ended(self, result: Any) -> None:
        """Send the result's files and close the run; one that did not finish (None) is marked so.

        Args:
            result: what `fs.run` returns, or None.
        """
        if self._sent >= 0 and not self._failed:
            with self._without_harm():
                if result is not None:
                    self._send_files(result)
                self.close(finished=result is not None)
        self._sent, self._failed = -1, False

    def _send(self, at: Evaluated) -> None:
        if self._sent < 0:
            record = at.result().history
            self.begin(at.label, record.task, record.settings)
            self._sent = 0
        columns = at.metrics
        rounds = columns["round"]
        for row in range(self._sent, len(rounds)):
            self.log(int(rounds[row]), {k: float(v[row]) for k, v in columns.items() if k != "round"})
        self._sent = len(rounds)

    def _send_files(self, result: Any) -> None:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            result.save(folder)
            if importlib.util.find_spec("matplotlib") is not None:
                shown = [result.history]
                save_figure(curves(shown, headline(shown)), folder / CURVES)
            self.keep(sorted(folder.iterdir()))

    @contextlib.contextmanager
    def _without_harm(self) -> Iterator[None]:
        """An error of the tracker's, whatever it is, ends the sending and not the run."""
        try:
            yield
        except Exception as error:
            self._failed = True
            why = str(error).splitlines()[0] if str(error) else type(error).__name__
            warnings.warn(f"{type(self).__name__} takes nothing more of this run: {why}", stacklevel=4)

    @abstractmethod
    def begin(self, label: str, task: str, settings: dict[str, Setting]) -> None:
        """A run of a method on a task begins, with its resolved settings.

        Args:
            label: the method's name in tables.
            task: the task's name.
            settings: name -> number or text.
        """

    @abstractmethod
    def log(self, round: int, metrics: dict[str, float]) -> None:
        """Metrics after so many rounds; what is not finite is sent as it is.

        Args:
            round: rounds done, from 0.
            metrics: name -> value at that evaluation.
        """

    @abstractmethod
    def keep(self, files: list[Path]) -> None:
        """Files of the result: its record, evaluations, model and a picture; they are gone afterwards.

        Args:
            files: paths in a temporary folder.
        """

    @abstractmethod
    def close(self, finished: bool) -> None:
        """The run has ended.

        Args:
            finished: whether the run ended with a result.
        """


def package(name: str, extra: str) -> ModuleType:
    """A tracker's package.

    Raises:
        InvalidInput: it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError:
        raise InvalidInput(f"{name} is not installed: pip install 'fedsolve[{extra}]'") from None
