"""How far the runs of a method are, told when the methods before have ended: until then the latest is kept."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from fedsolve.engine.progress import Progress, tell_compiling


class MethodProgress:
    """What shows the progress of a method's runs.

    Args:
        seeds: of the runs; progress of several is that of the first that has not ended, with the rounds of each.
        lock: held while progress is told.

    Attributes:
        compiled: set when one of them has told progress, and so the rounds are compiled.
        ended: set when all of them have ended.
    """

    def __init__(self, seeds: Sequence[int] | None, lock: threading.Lock) -> None:
        self._seeds, self._lock = seeds, lock
        self.compiled, self.ended = threading.Event(), threading.Event()
        self._latest: dict[int, Progress] = {}
        self._over: set[int] = set()  # with all rounds, or where a callback or divergence ended them
        self._left = 1 if seeds is None else len(seeds)
        self._kept: Progress | None = None
        self._compiling: str | None = None
        self._shown_by: Callable[[Progress], None] | None = None

    def begin(self, shown_by: Callable[[Progress], None] | None) -> None:
        """It is this method's turn: tell where it is, and from now on whatever comes."""
        with self._lock:
            self._shown_by = shown_by
            if self._kept is not None:
                self._show(self._kept)
            elif self._compiling is not None:
                tell_compiling(shown_by, self._compiling)

    def of(self, seed: int) -> SeedProgress:
        """What the run with a seed tells."""
        return SeedProgress(self, seed)

    def end(self, seed: int, over: bool) -> None:
        """The run with a seed has ended, and the lock is held; one that is `over`, not interrupted, counts as done."""
        self._left -= 1
        if not self._left:
            self.ended.set()
        if not over or self._seeds is None:
            return
        self._over.add(seed)
        at = self._latest.get(seed)
        if at is not None and at.round < at.rounds:
            self._tell(at)

    def tell(self, seed: int, at: Progress) -> None:
        """The run with a seed has come further."""
        self.compiled.set()
        with self._lock:
            self._latest[seed] = at
            self._tell(at)

    def _tell(self, at: Progress) -> None:
        if self._seeds is not None:
            done = {seed: each.round for seed, each in self._latest.items()}
            by_seed = tuple(at.rounds if s in self._over else done.get(s, 0) for s in self._seeds)
            left = [s for s, n in zip(self._seeds, by_seed, strict=True) if n < at.rounds]
            longest = max(self._latest.values(), key=lambda each: each.round)
            at = replace(self._latest.get(left[0], at) if left else longest, by_seed=by_seed)
        self._kept = at
        self._show(at)

    def tell_compiling(self, label: str) -> None:
        """The rounds are compiled, once for all seeds."""
        if self.compiled.is_set():
            return
        with self._lock:
            self._compiling = label
            tell_compiling(self._shown_by, label)

    def _show(self, at: Progress) -> None:
        if self._shown_by is not None:
            self._shown_by(at)


@dataclass(frozen=True)
class SeedProgress:
    """What one of several runs tells."""

    told: MethodProgress
    seed: int

    def __call__(self, at: Progress) -> None:
        """The run has come further."""
        self.told.tell(self.seed, at)

    def compiling(self, label: str) -> None:
        """All checks of the run are done and its rounds are compiled next."""
        self.told.tell_compiling(label)
