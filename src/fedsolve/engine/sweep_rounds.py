"""The rounds of a sweep: batches of trials go through the loop together, kept in the store."""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedsolve.core import trees
from fedsolve.core.errors import Interrupted, InvalidInput
from fedsolve.engine.compute.layout import Need, batches_at_once, check_memory, free_bytes
from fedsolve.engine.compute.round import RunState
from fedsolve.engine.compute.workers import Units, each_in_threads
from fedsolve.engine.loop import CompileClock, Rounds, Stopwatch, loop
from fedsolve.engine.progress import Progress, tell_compiling
from fedsolve.engine.sweep_grid import SweepOptions
from fedsolve.engine.sweep_trials import RunningBatch, TrialBatch, Trials
from fedsolve.folders.files import Interruptible
from fedsolve.folders.run_folder import SWEEP, RunFolder, how_to_resume, load_tree
from fedsolve.folders.sealed import corrupt, mapped_arrays
from fedsolve.folders.untrusted import MALFORMED
from fedsolve.results.columns import plain

# What a sweep has found so far, and the folder that keeps it: one file, replaced atomically.


@dataclass
class TrialResults:
    """Results by trial while a sweep grows, of shape (settings, seeds, evaluations)."""

    # Metrics are NaN where nothing was seen, `diverged` and `stopped` (by setting) -1 where that has not happened.
    # `finished` has the numbers of the batches that are done; `rounds` counts those of the batches under way.

    shape: tuple[int, int, int]
    dtype: Any
    metrics: dict[str, np.ndarray] = field(default_factory=dict)
    diverged: np.ndarray = field(init=False)
    stopped: np.ndarray = field(init=False)
    finished: list[int] = field(default_factory=list)
    rounds: int = 0
    seconds: float = 0.0

    def __post_init__(self) -> None:
        self.diverged = np.full(self.shape[:2], -1, np.int32)
        self.stopped = np.full(self.shape[0], -1, np.int32)

    def put(self, batch: TrialBatch, evaluations: Sequence[int], values: dict[str, np.ndarray]) -> None:
        # metrics of a batch's trials at some evaluations, each of shape (L, S, evaluations)
        for name, value in values.items():
            all_trials = self.metrics.setdefault(name, np.full(self.shape, np.nan, self.dtype))
            all_trials[np.ix_(batch.settings, batch.seeds, np.asarray(evaluations))] = value

    def end(self, batch: TrialBatch, rounds: int) -> None:
        # a trial whose model is not finite after the last round has diverged: nobody trained from it to notice
        trials = np.ix_(batch.settings, batch.seeds)
        lost = np.isnan(self.metrics["train_loss"][trials][..., -1]) & (self.diverged[trials] < 0)
        self.diverged[trials] = np.where(lost, rounds, self.diverged[trials])


def results_so_far(
    folder: Path, shape: tuple[int, int, int]
) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray, float]:
    # the metrics of all trials, where they diverged and stopped, and the seconds, as a sweep of a shape last kept them
    path = folder / SWEEP.file
    header, arrays = mapped_arrays(path, "checkpoint")
    try:
        metrics = {name: arrays[f"['metrics']['{name}']"] for name in header.manifest["metrics"]}
        diverged, seconds = arrays["['diverged']"], float(header.manifest["seconds"])
        stopped = np.array(header.manifest.get("stopped", [-1] * shape[0]))
    except MALFORMED as error:
        raise corrupt(path, "checkpoint", f"it is of no sweep: {error}") from None
    if diverged.shape != shape[:2] or {x.shape for x in metrics.values()} != {shape}:
        raise corrupt(path, "checkpoint", "it is of another sweep")
    return metrics, diverged, stopped, seconds


class SweepStore:
    """The checkpoint of one sweep, or nothing where no folder was given."""

    def __init__(self, folder: RunFolder | None) -> None:
        # of a sweep that is resumed: trials side by side, which decide its bits; batches at once, which share a state
        # in the file; those under way where trials had ended; batches done, rounds of those under way, and seconds
        self._folder = folder
        manifest = self._manifest = {} if folder is None else folder.manifest() or {}
        self.trials, self.at_once = manifest.get("lanes"), manifest.get("at_once")
        self.running = [TrialBatch(*map(np.array, batch)) for batch in manifest.get("running", ())]
        # a number in earlier versions
        finished = list(manifest.get("finished", range(manifest.get("blocks", 0))))
        self.done = finished, manifest.get("rounds", 0), manifest.get("seconds", 0.0)

    @classmethod
    @contextlib.contextmanager
    def at(cls, out: str | Path | None, identity: dict[str, Any], resume: bool) -> Iterator[SweepStore]:
        # hold the folder for one sweep
        with RunFolder.if_given(out, SWEEP, plain(identity), resume) as folder:
            yield cls(folder)

    @property
    def where(self) -> Path | None:
        return None if self._folder is None else self._folder.hold.folder

    @property
    def due(self) -> bool:
        return self._folder is not None and self._folder.due

    def restore(self, results: TrialResults, states: list[RunState]) -> list[RunState]:
        # fill the results when resuming; the states of the batches under way, of the shapes of `states`
        if self._folder is None or not self._manifest:
            return states
        empty = {name: np.zeros(results.shape, results.dtype) for name in self._manifest["metrics"]}
        like = {"metrics": empty, "diverged": results.diverged, "states": states}
        saved = load_tree(self._folder.path, like)
        results.metrics = {name: np.array(saved["metrics"][name]) for name in empty}  # in their order
        results.diverged = np.array(saved["diverged"])
        results.stopped = np.array(self._manifest.get("stopped", results.stopped))
        return saved["states"]

    def save(self, results: TrialResults, running: Sequence[RunningBatch], layout: dict[str, int]) -> None:
        # keep everything, atomically: also the batches under way; `layout` holds `lanes` and `at_once`
        if self._folder is None:
            return
        manifest = {
            "finished": results.finished,
            "rounds": results.rounds if running else 0,
            "seconds": results.seconds,
            **layout,
            "metrics": list(results.metrics),
            "stopped": results.stopped.tolist(),
            "running": [
                [b.settings.tolist(), b.seeds.tolist()] for b in (current.batch for current in running)
            ],
        }
        states = [current.states for current in running]
        tree = {"metrics": results.metrics, "diverged": results.diverged, "states": states}
        self._folder.save(tree, manifest)

    def how_to_resume(self, done: int, total: int) -> str:
        folder = None if self._folder is None else self._folder.hold.folder
        return how_to_resume(folder, f"stopped after {100 * done // total} % of the sweep")


_SHARE = 8  # states may take an eighth of the memory that is free: a batch that runs has its own twice, and gradients


class SweepRounds(Rounds):
    """The rounds of all batches, or of as many as fit the memory; when they are done, of those that follow.

    On a CPU as many run at once as there are cores, each in a thread: their arrays are small, and XLA alone keeps one
    core busy with them. Trials that diverge are left out at once, and their batches with them. `store` keeps what is
    finished; `trials` are without clients that have no loss, once that was looked at.
    """

    def __init__(
        self,
        trials: Trials,
        options: SweepOptions,
        store: SweepStore,
        progress: Callable[[Progress], None] | None,
    ) -> None:
        prepared = trials.prepared
        self.rounds, self.eval_every, self.trials = prepared.rounds, prepared.eval_every, trials
        shape = (len(trials.methods), len(trials.seeds), len(trials.evaluated))
        self.results = TrialResults(shape, prepared.dtype)
        self._selection, self._search, self._store = options.selection, options.search, store
        self._progress = progress
        self._evaluated = trials.evaluated.tolist()
        self._stops = options.search.stops(shape[0], self.rounds, self.eval_every)
        self._batches, self._notes = trials.batches(store.trials or options.parallel_trials, self._stops)
        self._at_once = store.at_once or self._batches_in_memory()
        self._running: list[RunningBatch] = []
        self._is_compiled = False

    def finish(self, units: Units | None = None, shared: Any = None, run_batch: Any = None) -> None:
        # all batches, from where the store is; on workers by `run_batch`, given what these share
        results, clock, begun = self.results, CompileClock(), Stopwatch(0.0)
        with Interruptible(self._store.where) as interrupt:
            self._restore()
            before = results.seconds
            self._seconds = lambda: before + begun.seconds
            if units is not None:
                self._finish_elsewhere(units, shared, run_batch)
            with clock:
                while self._next_numbers:
                    loop(self, clock, lambda: interrupt.stop_requested)
                    results.finished, results.rounds = results.finished + self._next_numbers, 0
                    self._running = []
                    if interrupt.stop_requested and self._trial_rounds < self._all_trial_rounds:
                        self.save()
                        raise Interrupted(self.how_to_resume())
            self.save()
        where = self._store.where
        for left in where.glob("batch-*") if where else ():  # of workers: they began again here
            shutil.rmtree(left, ignore_errors=True)

    def _finish_elsewhere(self, units: Units, shared: Any, run_batch: Any) -> None:
        # those that were under way here begin again there
        if self._stops:
            raise InvalidInput("executor: halving compares the trials of all batches: leave one of them out")
        if len(self._batches) == 1:
            self._notes += ("all trials are one unit, on one worker: smaller parallel_trials make more",)
        results, self._running, self.results.rounds = self.results, [], 0
        lock, doing, where = threading.Lock(), dict[int, int](), self._store.where
        digest = units.share(f"the sweep on {self.trials.prepared.task.name}", shared)

        def run(number: int) -> None:
            batch, name = self._batches[number], f"batch {number + 1}"
            folder = None if where is None else where.absolute() / f"batch-{number + 1}"

            def tell(at: Progress) -> None:
                with lock:
                    doing[number] = at.round
                    self.report(sum(doing.values()), f"{name} {at.remark}")

            # waits for the worker: outside the lock, so that batches run side by side
            found, lost = units.run(name, partial(run_batch, batch, folder, number), digest, tell, folder)
            with lock:
                try:
                    # the reply comes from another process: its form is looked at before it is kept
                    metrics, diverged, notes = found
                    results.put(batch, range(results.shape[2]), metrics)
                    results.diverged[np.ix_(batch.settings, batch.seeds)] = diverged
                except MALFORMED as error:
                    raise InvalidInput(f"{name}: the worker's reply is no batch's: {error}") from None
                doing.pop(number, None)
                results.finished.append(number)
                self._notes = tuple(dict.fromkeys((*self._notes, *notes, *lost)))
                if self._store.due:
                    self.save()
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)

        left = [number for number in range(len(self._batches)) if number not in results.finished]
        try:
            each_in_threads(run, left, Units.threads)
        except Interrupted:
            raise Interrupted(self.how_to_resume()) from None
        finally:
            if results.finished:
                self.save()

    def _restore(self) -> None:
        # put results and batches where the store left them
        results = self.results
        results.finished, results.rounds, results.seconds = self._store.done
        if results.rounds:
            self._running = [self.trials.begin(batch) for batch in self._store.running or self._together]
        states = self._store.restore(results, [current.states for current in self._running])
        self._running = [replace(current, states=s) for current, s in zip(self._running, states, strict=True)]
        if results.finished or results.rounds:
            self._leave_out_nonfinite_clients()

    def _start(self) -> list[RunningBatch]:
        # the batches that run next, at their start
        return [self.trials.begin(batch) for batch in self._together]

    @property
    def _next_numbers(self) -> list[int]:
        # of the batches that run at once now
        left = (number for number in range(len(self._batches)) if number not in self.results.finished)
        return list(islice(left, self._at_once))

    @property
    def _together(self) -> Sequence[TrialBatch]:
        return [self._batches[number] for number in self._next_numbers]

    @property
    def done(self) -> int:
        return self.results.rounds

    def begin(self) -> str:
        # evaluate the initial models, where the batches are at their start
        results, self._is_compiled = self.results, False
        if not results.rounds:
            self._running = self._start()
            self._evaluate(0, 1)
            losses = results.metrics["train_loss"][..., 0]
            first = [losses[np.ix_(b.settings, b.seeds)] for b in self._together]
            if not results.finished and not all(np.isfinite(x).all() for x in first):
                self._leave_out_nonfinite_clients()
                self._evaluate(0, 1)
            self._selection.check(results.metrics)
            for current in self._running:
                current.next_methods(results.metrics, 1)  # refuses a rate that reacts to what is not measured
        if results.finished == self._store.done[0]:  # later batches run the program of the first
            tell_compiling(self._progress, self.trials.prepared.label)
        if not self._trial_rounds:
            self.report()
        return ""

    def advance(self, rounds: int) -> int:
        # the first call compiles, which is done once: no threads
        threads = batches_at_once() if self._is_compiled else 1
        self._next = self._evaluated.index(self.next_evaluation)
        metrics = self.results.metrics
        ahead = partial(RunningBatch.advance, rounds=rounds, metrics=metrics, evaluations=self._next)
        self._running, self._is_compiled = each_in_threads(ahead, self._running, threads), True
        return rounds

    def record(self, logs: int) -> None:
        # note which trials have diverged, and go on with the others; where all have, no round is left
        results, running = self.results, self._running
        results.rounds += logs
        for current in running:
            results.diverged[np.ix_(current.batch.settings, current.batch.seeds)] = current.failed
        if all((current.failed > 0).all() for current in running):
            results.rounds = self.rounds
        if any((current.failed > 0).any() for current in running):
            self._running = in_fewest_batches(running)

    def evaluate(self) -> str:
        self._evaluate(self._next, batches_at_once())
        if self.results.rounds in self._stops:
            self._go_on_with(self._stops[self.results.rounds])
        if self.results.rounds == self.rounds:
            for current in self._running:
                self.results.end(current.batch, self.rounds)
        return ""

    def _go_on_with(self, count: int) -> None:
        # the best settings so far, of those that have not diverged with any seed; the others stop
        results, upto, rule = self.results, self._next + 1, self._selection
        seen = results.metrics[rule.metric][..., :upto]
        score = rule.so_far(np.array(self._evaluated[:upto]), seen, self.rounds)
        order = np.argsort(score, kind="stable")[: np.isfinite(score).sum()]
        results.stopped[order[count:]] = results.rounds
        self._running = in_fewest_batches(self._running, order[:count].tolist())
        if not len(order):
            results.rounds = self.rounds

    def due(self, over: bool) -> bool:
        # whether enough time has passed since the last saving; batches that are done wait for the next one
        return self._store.due

    def save(self) -> None:
        self.results.seconds = self._seconds()
        lanes = len(self._batches[0].settings) * len(self._batches[0].seeds)
        layout = {"lanes": lanes, "at_once": self._at_once}
        self._store.save(self.results, self._running, layout)

    def report(self, elsewhere: int = 0, remark: str = "") -> None:
        if self._progress is not None:
            diverged = int((self.results.diverged > 0).sum())
            label, done = self.trials.prepared.label, self._trial_rounds + elsewhere
            of = {"diverged": diverged, "notes": self._notes, "remark": remark}
            self._progress(Progress(label, done, self._all_trial_rounds, {}, **of))

    @property
    def notes(self) -> tuple[str, ...]:
        stopped = self.results.stopped[self.results.stopped >= 0]
        saved = int((self.rounds - stopped).sum()) * self.results.shape[1]
        searched = self._search.notes(saved, self._all_trial_rounds)
        return tuple(dict.fromkeys((*self._notes, *self.trials.prepared.remarks, *searched)))

    def how_to_resume(self) -> str:
        return self._store.how_to_resume(self._trial_rounds, self._all_trial_rounds)

    @property
    def _trial_rounds(self) -> int:
        before = sum(self._batches[number].trials for number in self.results.finished) * self.rounds
        return before + sum(b.trials for b in self._together) * self.done

    @property
    def _all_trial_rounds(self) -> int:
        return sum(b.trials for b in self._batches) * self.rounds

    def _leave_out_nonfinite_clients(self) -> None:
        # go on without clients that have no loss (see `nonfinite_clients`), those that run included
        self.trials = self.trials.without_nonfinite_clients()
        self._running = [replace(current, trials=self.trials) for current in self._running]

    def _evaluate(self, evaluation: int, threads: int) -> None:
        values = each_in_threads(RunningBatch.evaluate, self._running, threads)
        for current, found in zip(self._running, values, strict=True):
            self.results.put(current.batch, [evaluation], {name: x[..., None] for name, x in found.items()})

    def _batches_in_memory(self) -> int:
        # how many batches lie in memory together: all, where their states are little
        trials = sum(len(batch.settings) * len(batch.seeds) for batch in self._batches)
        states = trials * trees.nbytes(self.trials.prepared.state)
        if self._stops:  # all settings are compared
            check_memory([Need("the states of all trials", states, "fewer trials, or no halving")], 0)
            return len(self._batches)
        return len(self._batches) if _SHARE * states < free_bytes() else batches_at_once()


def in_fewest_batches(running: Sequence[RunningBatch], best: Sequence[int] = ()) -> list[RunningBatch]:
    # the trials that have not diverged, of the best settings if there are such, in batches of the same shape; one
    # batch stays where all have
    alike: dict[Any, list[RunningBatch]] = {}
    for current in running:
        program = jax.tree.structure((current.algorithms, current.diagnostics))
        alike.setdefault((program, tuple(current.batch.seeds.tolist())), []).append(current)
    packed = [batch for group in alike.values() for batch in _packed(group, best)]
    return packed or [running[0]]


def _packed(group: list[RunningBatch], best: Sequence[int]) -> list[RunningBatch]:
    # the same of batches of one program and the same seeds: columns move, which changes none of their bits
    columns = np.flatnonzero([_live_columns(current, best) for current in group])
    width = len(group[0].batch.settings)
    needed = -(-len(columns) // width)
    if not needed or (needed == len(group) and not len(best)):
        return group if needed else []
    filled = np.pad(columns, (0, needed * width - len(columns)), mode="edge").reshape(needed, width)
    return [group[0].with_columns(group, some) for some in filled]


def _live_columns(current: RunningBatch, best: Sequence[int]) -> np.ndarray:
    # which columns hold a trial that goes on; a setting that fills a batch up counts once
    settings = current.batch.settings
    first = np.isin(np.arange(len(settings)), np.unique(settings, return_index=True)[1])
    return first & (current.failed < 0).any(axis=1) & (np.isin(settings, best) if len(best) else True)
