"""The rounds of a sweep: batches of trials go through the loop together, kept in the store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import numpy as np

from fedsolve.core import trees
from fedsolve.core.errors import Interrupted
from fedsolve.engine.compute.layout import batches_at_once, free_bytes
from fedsolve.engine.loop import CompileClock, Rounds, Stopwatch, loop
from fedsolve.engine.progress import SweepProgress
from fedsolve.engine.sweep.compiled_trials import TrialBatch
from fedsolve.engine.sweep.grid import SweepOptions
from fedsolve.engine.sweep.sweep_store import SweepStore, TrialResults
from fedsolve.engine.sweep.trials import RunningBatch, Trials
from fedsolve.folders.files import Interruptible

_SHARE = 8  # states may take an eighth of the memory that is free: a batch that runs has its own twice, and gradients


class SweepRounds(Rounds):
    """The rounds of all batches, or of as many as fit the memory; when they are done, of those that follow.

    On a CPU as many run at once as there are cores, each in a thread: their arrays are small, and XLA alone keeps one
    core busy with them. Trials that diverge are left out at once, and their batches with them.

    Args:
        trials: all of the sweep.
        options: how many run side by side, and the selection, whose metric must be measured.
        store: keeps what is finished.
        progress: told how far all trials are.

    Attributes:
        trials: without clients that have no loss, once that was looked at.
        results: of all trials so far.
    """

    def __init__(
        self,
        trials: Trials,
        options: SweepOptions,
        store: SweepStore,
        progress: Callable[[SweepProgress], None] | None,
    ) -> None:
        prepared = trials.prepared
        self.rounds, self.eval_every, self.trials = prepared.rounds, prepared.eval_every, trials
        shape = (len(trials.methods), len(trials.seeds), len(trials.evaluated))
        self.results = TrialResults(shape, prepared.dtype)
        self._selection, self._store, self._progress = options.selection, store, progress
        self._batches, self._notes = trials.batches(store.trials or options.parallel_trials)
        self._at_once = store.at_once or self._batches_in_memory()
        self._evaluated = trials.evaluated.tolist()
        self._running: list[RunningBatch] = []
        self._is_compiled = False

    def finish(self) -> None:
        """All batches, from where the store is.

        Raises:
            InvalidInput: the selection's metric is not measured.
            Interrupted: Ctrl-C, after everything was kept.
        """
        results, clock, begun = self.results, CompileClock(), Stopwatch(0.0)
        with Interruptible(self._store.where) as interrupt:
            self._restore()
            before = results.seconds
            self._seconds = lambda: before + begun.seconds
            with clock, ThreadPoolExecutor(batches_at_once()) as self._pool:
                while results.batches < len(self._batches):
                    loop(self, clock, lambda: interrupt.asked)
                    results.batches, results.rounds = results.batches + len(self._together), 0
                    self._running = []
                    if interrupt.asked and self._trial_rounds < self._all_trial_rounds:
                        self.save()
                        raise Interrupted(self.how_to_resume())
            self.save()

    def _restore(self) -> None:
        """Put results and batches where the store left them."""
        results = self.results
        results.batches, results.rounds, results.seconds = self._store.done
        if results.rounds:
            self._running = [self.trials.begin(batch) for batch in self._store.running or self._together]
        states = self._store.restore(results, [current.states for current in self._running])
        self._running = [replace(current, states=s) for current, s in zip(self._running, states, strict=True)]
        if results.batches or results.rounds:
            self._leave_out_nonfinite_clients()

    def _start(self) -> list[RunningBatch]:
        """The batches that run next, at their start."""
        return [self.trials.begin(batch) for batch in self._together]

    @property
    def _together(self) -> Sequence[TrialBatch]:
        """The batches that run at once now."""
        return self._batches[self.results.batches : self.results.batches + self._at_once]

    @property
    def done(self) -> int:
        """Rounds done of the batches that run."""
        return self.results.rounds

    def begin(self) -> str:
        """Evaluate the initial models, where the batches are at their start."""
        results, self._is_compiled = self.results, False
        if not results.rounds:
            self._running = self._start()
            self._evaluate(0, None)
            if not results.batches and not np.isfinite(self._first_losses()).all():
                self._leave_out_nonfinite_clients()
                self._evaluate(0, None)
            self._selection.check(results.metrics)
            for current in self._running:
                current.next_methods(results.metrics, 1)  # refuses a rate that reacts to what is not measured
        self.report()
        return ""

    def advance(self, rounds: int) -> int:
        """So many rounds of every trial."""
        # the first call compiles, which is done once: no threads
        pool = self._pool if self._is_compiled else None
        self._next = self._evaluated.index(self.next_evaluation)
        metrics = self.results.metrics
        ahead = partial(RunningBatch.advance, rounds=rounds, metrics=metrics, evaluations=self._next)
        self._running, self._is_compiled = _each(ahead, self._running, pool), True
        return rounds

    def record(self, logs: int) -> None:
        """Note which trials have diverged, and go on with the others; where all have, no round is left."""
        results, running = self.results, self._running
        results.rounds += logs
        for current in running:
            results.diverged[np.ix_(current.batch.settings, current.batch.seeds)] = current.failed
        if all((current.failed > 0).all() for current in running):
            results.rounds = self.rounds
        if any((current.failed > 0).any() for current in running):
            self._running = in_fewest_batches(running)

    def evaluate(self) -> str:
        """All metrics of all trials, at the evaluation that is next."""
        self._evaluate(self._next, self._pool)
        if self.results.rounds == self.rounds:
            for batch in self._together:
                self.results.end(batch, self.rounds)
        return ""

    def due(self, over: bool) -> bool:
        """Whether enough time has passed since the last saving; batches that are done wait for the next one."""
        return self._store.due

    def save(self) -> None:
        """Keep the results so far, and the states of the batches that run."""
        self.results.seconds = self._seconds()
        lanes = len(self._batches[0].settings) * len(self._batches[0].seeds)
        layout = {"lanes": lanes, "at_once": self._at_once}
        self._store.save(self.results, self._running, layout)

    def report(self) -> None:
        """Tell how far all trials are."""
        if self._progress is not None:
            diverged = int((self.results.diverged > 0).sum())
            label, done, total = self.trials.prepared.label, self._trial_rounds, self._all_trial_rounds
            self._progress(SweepProgress(label, done, total, diverged, self._notes))

    @property
    def notes(self) -> tuple[str, ...]:
        """What is to be said of the sweep, each remark once."""
        return tuple(dict.fromkeys((*self._notes, *self.trials.prepared.remarks)))

    def how_to_resume(self) -> str:
        """What an interrupted user is told."""
        return self._store.how_to_resume(self._trial_rounds, self._all_trial_rounds)

    @property
    def _trial_rounds(self) -> int:
        before = sum(b.trials for b in self._batches[: self.results.batches]) * self.rounds
        return before + sum(b.trials for b in self._together) * self.done

    @property
    def _all_trial_rounds(self) -> int:
        return sum(b.trials for b in self._batches) * self.rounds

    def _first_losses(self) -> np.ndarray:
        """The training losses at the start, of the trials of the first batches."""
        losses = self.results.metrics["train_loss"][..., 0]
        return np.concatenate([losses[np.ix_(b.settings, b.seeds)].ravel() for b in self._together])

    def _leave_out_nonfinite_clients(self) -> None:
        """Go on without clients that have no loss (see `nonfinite_clients`), those that run included."""
        self.trials = self.trials.without_nonfinite_clients()
        self._running = [replace(current, trials=self.trials) for current in self._running]

    def _evaluate(self, evaluation: int, pool: ThreadPoolExecutor | None) -> None:
        values = _each(RunningBatch.evaluate, self._running, pool)
        for current, found in zip(self._running, values, strict=True):
            self.results.put(current.batch, evaluation, found)

    def _batches_in_memory(self) -> int:
        """How many batches lie in memory together: all, where their states are little."""
        trials = sum(len(batch.settings) * len(batch.seeds) for batch in self._batches)
        states = trials * trees.nbytes(self.trials.prepared.state)
        return len(self._batches) if _SHARE * states < free_bytes() else batches_at_once()


def _each(
    function: Callable[[RunningBatch], Any], running: list[RunningBatch], pool: ThreadPoolExecutor | None
) -> list[Any]:
    """The function of each batch: in threads at once, or one after another without a pool."""
    if pool is None or len(running) == 1:
        return [function(current) for current in running]
    wide = jax.config.jax_enable_x64  # pyright: ignore[reportAttributeAccessIssue]
    context = copy_context()  # whose clock counts what is compiled

    def in_thread(current: RunningBatch) -> Any:
        with jax.enable_x64(wide):  # each thread has its own
            return function(current)

    return list(pool.map(lambda current: context.copy().run(in_thread, current), running))


def in_fewest_batches(running: Sequence[RunningBatch]) -> list[RunningBatch]:
    """The trials that have not diverged, in batches of the same shape; one batch stays where all have."""
    alike: dict[Any, list[RunningBatch]] = {}
    for current in running:
        program = jax.tree.structure((current.algorithms, current.diagnostics))
        alike.setdefault((program, tuple(current.batch.seeds.tolist())), []).append(current)
    packed = [batch for group in alike.values() for batch in _packed(group)]
    return packed or [running[0]]


def _packed(group: list[RunningBatch]) -> list[RunningBatch]:
    """The same of batches of one program and the same seeds."""
    live = np.stack([_live_columns(current) for current in group])
    needed = int(live.sum(0).max())
    if needed == len(group):
        return group
    # of each column the batches, those with a live one first
    first = np.argsort(~live, axis=0, kind="stable")
    return [group[0].with_columns(group, source) for source in first[:needed]]


def _live_columns(current: RunningBatch) -> np.ndarray:
    """Which columns hold a trial that has not diverged; a setting that fills a batch up counts once."""
    live = np.zeros(len(current.batch.settings), bool)
    live[np.unique(current.batch.settings, return_index=True)[1]] = True
    return live & (np.asarray(current.states.failed) < 0).any(0)
