"""Running the trials of a sweep: batches one after another, evaluated on the way, kept in the store."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import jax
import numpy as np

from fedsolve.core.errors import Interrupted
from fedsolve.engine.compute.layout import batches_at_once
from fedsolve.engine.compute.round import RunState
from fedsolve.engine.sweep.sweep_store import SweepStore, TrialResults
from fedsolve.engine.sweep.sweep_trials import RunningBatch, Trials
from fedsolve.engine.sweep.trials import TrialBatch
from fedsolve.engine.timing import CallLength, CompileClock
from fedsolve.folders.interrupt import Interruptible
from fedsolve.results.sweep import Selection


@dataclass
class SweepRun:
    """A sweep under way; `tell` is called with trial-rounds done, those in all, and trials that diverged.

    On a CPU as many batches run at once as there are cores, each in a thread: their arrays are small, and XLA
    alone keeps one core busy with them.
    """

    work: Trials
    batches: Sequence[TrialBatch]
    selection: Selection
    store: SweepStore
    tell: Callable[[int, int, int], None]
    found: TrialResults
    at_once: int = field(default_factory=batches_at_once)

    def finish(self, interrupt: Interruptible) -> TrialResults:
        """All batches, from where the store is.

        Raises:
            InvalidInput: the selection's metric is not measured.
            Interrupted: Ctrl-C, after everything was kept.
        """
        found, clock, begun = self.found, CompileClock(), time.perf_counter()
        self.at_once = self.store.at_once or self.at_once
        running = self._restore()
        if found.batches or found.rounds:
            running = self._without_nonfinite_clients(running)
        before = found.seconds
        kept = {"lanes": len(self.batches[0].settings) * len(self.batches[0].seeds), "at_once": self.at_once}
        with clock, ThreadPoolExecutor(self.at_once) as pool:
            while found.batches < len(self.batches):
                running = self._begin(found.batches) if running is None else running
                for states in self._rounds(running, clock, pool):
                    asked = interrupt.asked
                    found.seconds = before + time.perf_counter() - begun
                    if asked or self.store.due:
                        self.store.save(found, states, kept)
                    self._report()
                    if asked and self._done < self._total:
                        raise Interrupted(self.store.how_to_resume(self._done, self._total))
                found.batches, found.rounds, running = found.batches + len(self._together), 0, None
        found.seconds = before + time.perf_counter() - begun
        self.store.save(found, [], kept)
        return found

    def _restore(self) -> list[RunningBatch] | None:
        """What the store has found so far, into `found`; the batches that were under way, None if none were."""
        found = self.found
        found.batches, found.rounds, found.seconds = self.store.done
        started = self._begin(found.batches) if found.rounds else []
        states = self.store.restore(found, [current.states for current in started])
        return [replace(current, states=s) for current, s in zip(started, states, strict=True)] or None

    def _begin(self, first: int) -> list[RunningBatch]:
        """The batches that run together from number `first` on, at their start."""
        return [self.work.begin(b) for b in self.batches[first : first + self.at_once]]

    @property
    def _together(self) -> Sequence[TrialBatch]:
        return self.batches[self.found.batches : self.found.batches + self.at_once]

    def _rounds(
        self, running: list[RunningBatch], clock: CompileClock, pool: Executor
    ) -> Iterator[list[RunState]]:
        """Batches together to their end; their states after each call."""
        found, batches, total = self.found, self._together, self.work.prepared.rounds
        evaluated, call_length = self.work.evaluated.tolist(), CallLength(clock)
        if found.rounds == 0:
            self._evaluate(running, 0, None)
            if not found.batches and not np.isfinite(self._first_losses()).all():
                running = self._without_nonfinite_clients(running)
                self._evaluate(running, 0, None)
            self.selection.check(found.metrics)
            for current in running:
                current.next_methods(found.metrics, 1)  # refuses a rate that reacts to what is not measured
        self._report()
        while (done := found.rounds) < total:
            stop = next(r for r in evaluated if r > done)
            step, first = call_length.rounds(stop - done), not call_length.known
            ahead = partial(
                RunningBatch.advance, rounds=step, metrics=found.metrics, evaluations=evaluated.index(stop)
            )
            with call_length.timed(step):  # the first call compiles, which is done once: not in threads
                running = _each(ahead, running, None if first else pool)
            found.rounds = done + step
            for batch, current in zip(batches, running, strict=True):
                found.diverged[np.ix_(batch.settings, batch.seeds)] = current.failed
            if found.rounds == stop:
                self._evaluate(running, evaluated.index(stop), pool)
            if all((current.failed > 0).all() for current in running):  # nothing of them is left
                found.rounds = total
            if found.rounds == total:
                for batch in batches:
                    found.end(batch, total)
            yield [current.states for current in running]

    def _first_losses(self) -> np.ndarray:
        """The training losses at the start, of the trials of the first batches."""
        losses = self.found.metrics["train_loss"][..., 0]
        return np.concatenate([losses[np.ix_(b.settings, b.seeds)].ravel() for b in self._together])

    def _without_nonfinite_clients(self, running: list[RunningBatch] | None) -> Any:
        """The batches and all trials from here on without clients that have no loss (see `nonfinite_clients`)."""
        self.work = self.work.without_nonfinite_clients()
        return None if running is None else [replace(current, work=self.work) for current in running]

    def _evaluate(self, running: list[RunningBatch], evaluation: int, pool: Executor | None) -> None:
        for batch, values in zip(self._together, _each(RunningBatch.evaluate, running, pool), strict=True):
            self.found.put(batch, evaluation, values)

    @property
    def _total(self) -> int:
        return sum(b.trials for b in self.batches) * self.work.prepared.rounds

    @property
    def _done(self) -> int:
        before = sum(b.trials for b in self.batches[: self.found.batches]) * self.work.prepared.rounds
        return before + sum(b.trials for b in self._together) * self.found.rounds

    def _report(self) -> None:
        self.tell(self._done, self._total, int((self.found.diverged > 0).sum()))


def _each(
    function: Callable[[RunningBatch], Any], running: list[RunningBatch], pool: Executor | None
) -> list[Any]:
    """The function of each batch: in threads at once, or one after another without a pool."""
    if pool is None or len(running) == 1:
        return [function(current) for current in running]
    wide = jax.config.jax_enable_x64  # pyright: ignore[reportAttributeAccessIssue]

    def in_thread(current: RunningBatch) -> Any:
        with jax.enable_x64(wide):  # each thread has its own
            return function(current)

    return list(pool.map(in_thread, running))
