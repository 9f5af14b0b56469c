"""How far a run or a sweep is, and what shows it: lines, a line in a terminal, a bar in a notebook.

FedAvg: round 320 of 500, test accuracy 93.1 %, training loss 0.21, 160 a second, 1 s left
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Self, TextIO, cast

from fedsolve.core.errors import InvalidInput, shown
from fedsolve.engine.compute.sharding import is_first
from fedsolve.results.metrics import duration, summary

_SECONDS_OF_ESTIMATE = 2.0
"""Rounds are timed for so long before the time left is told: the first of them may wait for a compilation."""
_NEVER = float("-inf")


@dataclass(frozen=True)
class Progress:
    """Where a run stands, or of several seeds the first of those that have not ended, or all trials of a sweep."""

    # Of a sweep, rounds are sums over its trials (those that diverged or stopped count as done), there are no
    # metrics, and `diverged` counts the trials that have; `by_seed` has the rounds that each of several seeds has
    # done; `remark` says more, such as a federation's replies.

    label: str
    round: int
    rounds: int
    metrics: dict[str, float]
    remark: str = ""
    by_seed: tuple[int, ...] = ()
    diverged: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def done(self) -> int:
        return sum(self.by_seed) if self.by_seed else self.round

    @property
    def total(self) -> int:
        return self.rounds * max(1, len(self.by_seed))

    @property
    def where(self) -> str:
        """The round, after the seed where there are several.

        >>> Progress("FedAvg", 10, 40, {}, by_seed=(40, 10, 0)).where
        'seed 2 of 3, round 10 of 40'
        """
        if self.diverged is not None:
            return f"{self.round:,} of {self.rounds:,} rounds of all trials"
        where = f"round {self.round:,} of {self.rounds:,}"
        if not self.by_seed:
            return where
        ended = [done >= self.rounds for done in self.by_seed]
        seed = len(ended) if all(ended) else 1 + ended.index(False)
        return f"seed {seed} of {len(ended)}, {where}"

    @property
    def words(self) -> str:
        diverged = "" if self.diverged is None else f"{self.diverged} diverged"
        return ", ".join(part for part in (summary(self.metrics), self.remark, diverged) if part)


class Display:
    """Shows one method after another as lines on a stream, a line every few seconds at most."""

    seconds_between = 5.0
    last: Progress | None = None
    _shown = _NEVER
    _timed: tuple[float, int] | None = None  # when the clock began, and the rounds done by then

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        # leave what is shown as it stands
        return None

    def begin(self, label: str, doing: str = "preparing") -> None:
        """A method starts: what it does until its first progress, which is shown at once."""
        self.last, self._timed, self._shown = None, None, _NEVER
        self.note(label, doing)

    def compiling(self, label: str) -> None:
        """All is checked; the rounds are compiled, which takes seconds that no rate counts."""
        self._timed = None
        self.note(label, "compiling")

    def __call__(self, at: Progress) -> None:
        self.last = at
        if at.done:
            self.advance(at)

    def advance(self, at: Progress) -> None:
        """Show how far it is if it is time, with rate and time left once rounds were timed for a while."""
        now, over = time.monotonic(), at.done >= at.total
        if self._timed is None:  # the first call holds the compilation
            self._timed = (now, at.done)
        if not over and now - self._shown < self.seconds_between:
            return
        self._shown, (since, first) = now, self._timed
        speed = ""
        if at.done > first and now > since and (over or now - since >= _SECONDS_OF_ESTIMATE):
            rate = (at.done - first) / (now - since)
            left = "done" if over else f"{duration((at.total - at.done) / rate)} left"
            speed = f"{rate:.3g} a second, {left}"
        self.show(at, speed)

    def show(self, at: Progress, speed: str) -> None:
        self.note(at.label, ", ".join(part for part in (at.where, at.words, speed) if part))

    def note(self, label: str, text: str) -> None:
        self.write(f"{label}: {text}")

    def write(self, text: str) -> None:
        self._stream.write(f"{text}\n")
        self._stream.flush()

    def end(self, label: str, text: str, done: bool = True) -> None:
        self.note(label, text)

    def where(self) -> str:
        return f"after {self.last.where}" if self.last and self.last.done else "before its first round ended"


class TerminalLine(Display):
    """A line in the place of the one before."""

    seconds_between = 0.2
    _width = 0

    def write(self, text: str) -> None:
        self._stream.write(f"\r{text.ljust(self._width)}")
        self._stream.flush()
        self._width = len(text)

    def __exit__(self, *error: object) -> None:
        self._stream.write("\n")  # what is written next begins below


class NotebookBar(Display):
    """A bar of tqdm, which itself tells rate and time left."""

    seconds_between = 0.0

    def __init__(self) -> None:
        from tqdm.notebook import tqdm

        self._bar: Any = tqdm(total=1, unit=" rounds")
        self._counting = False

    def note(self, label: str, text: str) -> None:
        self._bar.set_description(f"{label}: {text}")

    def show(self, at: Progress, speed: str) -> None:
        if not self._counting:  # the bar's clock starts behind the compilation
            self._bar.reset(at.total)
            self._counting = True
        self._bar.set_description(f"{at.label}: {at.where}", refresh=False)
        self._bar.set_postfix_str(at.words, refresh=False)
        self._bar.update(at.done - self._bar.n)
        self._bar.refresh()

    def __exit__(self, *error: object) -> None:
        self._bar.close()


@contextlib.contextmanager
def progress_to(progress: Any, label: str) -> Iterator[Callable[[Any], None] | None]:
    """What is called with the progress of a run, if anything, as a user asked for it."""
    # None is for what suits where standard error goes, True to show it anywhere, False for nothing; or it is a
    # function. The run has the label until its first progress tells one.
    if callable(progress):
        yield cast(Callable[[Any], None], progress)
        return
    if progress is not None and not isinstance(progress, bool):
        raise InvalidInput(f"progress = {shown(progress)} must be True, False or a function")
    display = _display(asked=progress is True) if progress is not False and is_first() else None
    if display is None:
        yield None
        return
    with display:
        display.begin(label)
        yield display


def _display(asked: bool) -> Display | None:
    """A bar in a notebook, a line in a terminal; where nobody watches, lines if they were asked for."""
    # tqdm's TQDM_DISABLE in the environment silences what was not asked for.
    if os.environ.get("TQDM_DISABLE") and not asked:
        return None
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if getattr(shell, "kernel", None) is not None:  # in a notebook
        widgets = all(importlib.util.find_spec(name) is not None for name in ("tqdm", "ipywidgets"))
        return NotebookBar() if widgets else TerminalLine(sys.stdout)
    if sys.stderr.isatty():
        return TerminalLine(sys.stderr)
    return Display(sys.stderr) if asked else None


def tell_compiling(progress: object, label: str) -> None:
    """Tell a progress that shows it that all checks of a run are done and its rounds are compiled next."""
    compiling = getattr(progress, "compiling", None)
    if compiling is not None:
        compiling(label)
