"""Runs at once, each in a thread: of several seeds, and of several methods, as many as a CPU has cores.

XLA alone keeps one core busy with most problems. The seeds of a method share its compiled program. A run that takes
several devices, or as much memory as it may, runs alone. Each run has the bits of the run alone. With an executor a
thread waits for its run on a worker.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import jax

from fedsolve.core import trees
from fedsolve.core.algorithm import Algorithm, name_of
from fedsolve.core.errors import Diverged, Interrupted, InvalidInput, shown
from fedsolve.core.xla.host_calls import CALLS
from fedsolve.data.stored import StoredData
from fedsolve.engine.compute.casting import run_key, start_params
from fedsolve.engine.compute.layout import batches_at_once
from fedsolve.engine.compute.round import start
from fedsolve.engine.compute.sharding import check_alone, is_first, several
from fedsolve.engine.compute.workers import Units
from fedsolve.engine.loop import CompileClock, loop, open_rounds, run_rounds
from fedsolve.engine.options import RunOptions
from fedsolve.engine.prepare import PreparedRun, prepare
from fedsolve.engine.progress import Progress, tell_compiling
from fedsolve.engine.results import Result
from fedsolve.folders.files import Interruptible
from fedsolve.folders.run_folder import RUN, how_to_resume, occupied_error, read_manifest
from fedsolve.results.callbacks import Callback, CallbacksOfSeed, Evaluated, notify_ended
from fedsolve.results.record_files import seed_folder
from fedsolve.tasks.task import Task

# What is run of a method: the record that a call makes of each, and the devices of a run that goes on.


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """What is run of a method."""

    # Without `seeds` it is the one of the options; each of several has a folder of its own in `out`. With `resume`
    # the runs go on from their checkpoints, and those of several seeds without one begin.

    algorithm: Algorithm
    seeds: Sequence[int] | None = None
    callbacks_of: CallbacksOfSeed = lambda seed: ()
    out: Path | None = None
    resume: bool = False
    label: str | None = None

    @property
    def name(self) -> str:
        return self.label or name_of(self.algorithm)


WaitForResults = Callable[[Callable[[Progress], None] | None], tuple[Result, ...]]
"""Called for one method after another with what is told its progress: waits for its runs, and returns them."""


def on_devices_of(folder: Path | None, options: RunOptions) -> RunOptions:
    """The options of a run that goes on in a folder: on as many devices as it had, where none are given."""
    given = options.devices is not None or options.mesh is not None or several()
    if folder is None or given or not (path := folder / RUN.file).exists():
        return options
    had = read_manifest(path)["identity"]
    return options if "mesh" in had else replace(options, devices=min(had["devices"], len(jax.devices())))


class MethodProgress:
    """The progress of a method's runs, shown when it is the method's turn."""

    # Of several seeds it is that of the first that has not ended, with the rounds of each. `lock` is held while it is
    # shown. `compiled` is set when one of them has told progress, `ended` when all have ended.

    def __init__(self, seeds: Sequence[int] | None, lock: threading.Lock) -> None:
        self._seeds, self._lock = seeds, lock
        self.compiled, self.ended = threading.Event(), threading.Event()
        self._latest: dict[int, Progress] = {}
        self._over: set[int] = set()  # with all rounds, or where a callback or divergence ended them
        self._left = 1 if seeds is None else len(seeds)
        self._kept: Progress | None = None
        self._compiling: str | None = None
        self._shown_by: Callable[[Progress], None] | None = None

    def attach(self, shown_by: Callable[[Progress], None] | None) -> None:
        with self._lock:
            self._shown_by = shown_by
            if self._kept is not None:
                self._show(self._kept)
            elif self._compiling is not None:
                tell_compiling(shown_by, self._compiling)

    def finish(self, seed: int, over: bool) -> None:
        """The run with a seed has ended, and the lock is held; one that is `over`, not interrupted, counts as done."""
        self._left -= 1
        if not self._left:
            self.ended.set()
        if not over or self._seeds is None:
            return
        self._over.add(seed)
        at = self._latest.get(seed)
        if at is not None and at.round < at.rounds:
            self._update(at)

    def update(self, seed: int, at: Progress) -> None:
        self.compiled.set()
        with self._lock:
            self._latest[seed] = at
            self._update(at)

    def _update(self, at: Progress) -> None:
        if self._seeds is not None:
            done = {seed: each.round for seed, each in self._latest.items()}
            by_seed = tuple(at.rounds if s in self._over else done.get(s, 0) for s in self._seeds)
            left = [s for s, n in zip(self._seeds, by_seed, strict=True) if n < at.rounds]
            longest = max(self._latest.values(), key=lambda each: each.round)
            at = replace(self._latest.get(left[0], at) if left else longest, by_seed=by_seed)
        self._kept = at
        self._show(at)

    def compiling(self, label: str) -> None:
        # the seeds share their program: what the others wait for is told once
        if self.compiled.is_set():
            return
        with self._lock:
            self._compiling = label
            tell_compiling(self._shown_by, label)

    def _show(self, at: Progress) -> None:
        if self._shown_by is not None:
            self._shown_by(at)


@dataclass(frozen=True)
class SeedReporter:
    """The progress of one of several runs, which shows nothing itself."""

    method: MethodProgress
    seed: int

    def __call__(self, at: Progress) -> None:
        self.method.update(self.seed, at)

    def compiling(self, label: str) -> None:
        self.method.compiling(label)


class DeviceSlots:
    """Lets so many runs at the devices at once, or an exclusive one alone, in the order in which they come."""

    def __init__(self, runs: int) -> None:
        self._all = self._free = runs
        self._queue: list[object] = []
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def acquire(self, exclusive: bool) -> Iterator[None]:
        """Wait for a slot, or for all of them, and hold it within the block."""
        slots, me = self._all if exclusive else 1, object()
        with self._changed:
            # a queue, so that runs that take one slot never starve an exclusive one
            self._queue.append(me)
            self._changed.wait_for(lambda: self._queue[0] is me and self._free >= slots)
            self._queue.pop(0)
            self._free -= slots
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._free += slots
                self._changed.notify_all()


_SECONDS_ASLEEP = 0.2  # of who waits: a signal that another thread has taken is noticed then


@contextlib.contextmanager
def run_concurrently(
    methods: Sequence[RunPlan],
    task: Task,
    options: RunOptions,
    units: Units | None = None,
    *,
    in_turn: bool = False,
) -> Iterator[WaitForResults]:
    # every run has a thread at once; slots of the devices, and the methods before, hold it back; with
    # `in_turn` until these have ended
    check_alone("a run with several seeds" if len(methods) == 1 else "a comparison")
    at_once = batches_at_once()
    with Interruptible() as interrupt:
        shared = _Shared(task, options, interrupt, DeviceSlots(at_once), units, in_turn)
        jobs: list[_MethodJob] = []
        for method in methods:
            jobs.append(_MethodJob(shared, method, jobs[-1] if jobs else None))
        waiting = iter(jobs)
        # some wait for devices, or for their method's first run
        waiting_at_most = max((len(method.seeds or (0,)) for method in methods), default=1)
        with ThreadPoolExecutor(units.threads if units else at_once + waiting_at_most) as pool:
            try:
                for each in jobs:
                    each.begin(pool)
                yield lambda progress: next(waiting).finish(progress)
            finally:
                if units is None:  # on workers the others go on where one fails
                    shared.stopped = True
                    pool.shutdown(wait=False, cancel_futures=True)


@dataclass
class _Shared:
    # what the runs of a call share
    task: Task
    options: RunOptions
    interrupt: Interruptible
    slots: DeviceSlots
    units: Units | None
    in_turn: bool
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held while a callback or what shows progress is called: they may be the same for all."""
    stopped: bool = False
    """Whether one of them was interrupted, or nobody waits for them any more."""

    def __post_init__(self) -> None:
        self.digest = "" if self.units is None else self.units.share(f"the task {self.task.name}", self.task)


class _MethodJob:
    # the runs of a method under way: one program, which the first of them makes
    def __init__(self, shared: _Shared, method: RunPlan, before: _MethodJob | None) -> None:
        # get ready, after the method `before`
        self._shared, self._method, self._before = shared, method, before
        self._seeds = (shared.options.seed,) if method.seeds is None else tuple(method.seeds)
        out = method.out
        self._folders = [
            out if out is None or method.seeds is None else seed_folder(out, s) for s in self._seeds
        ]
        self._begun = [folder is not None and (folder / RUN.file).exists() for folder in self._folders]
        self._check_free()
        self._clock, self._progress = CompileClock(), MethodProgress(method.seeds, shared.lock)
        self._prepared: PreparedRun | None = None  # of the first, until all have ended
        self._is_streamed = False
        self._failed = False
        self._futures: list[Future[Result | None]] = []

    def begin(self, pool: ThreadPoolExecutor) -> None:
        # let its runs begin, after those of the methods before
        with self._clock:
            context = copy_context()  # what its threads compile counts for its clock
        self._futures = [pool.submit(context.copy().run, self._run, i) for i in range(len(self._seeds))]

    def finish(self, progress: Callable[[Progress], None] | None) -> tuple[Result, ...]:
        # wait for its runs, and tell their progress meanwhile
        self._progress.attach(progress)
        while wait(self._futures, _SECONDS_ASLEEP).not_done:
            pass
        results = [future.result() for future in self._futures]
        if None not in results:
            return tuple(result for result in results if result is not None)
        done = len(results) - results.count(None)
        raise Interrupted(
            how_to_resume(self._method.out, f"stopped with {done} of {len(results)} seeds done")
        )

    def _check_free(self) -> None:
        # raise `InvalidInput` unless the folder is free, or holds runs with seeds that go on
        out, begun = self._method.out, any(self._begun)
        if out is None or self._method.seeds is None:  # of one run its checkpoints say so
            return
        if (begun and not self._method.resume) or (out / RUN.file).exists():
            raise occupied_error(out, "run with seeds" if begun else "run with one seed")

    def _run(self, place: int) -> Result | None:
        # the run with a seed; None if it was interrupted
        seed, options = self._seeds[place], self._shared.options
        callbacks: Sequence[Callback] = ()
        result: Result | None = None
        over = False
        try:
            if self._shared.units is not None:
                result = self._run_elsewhere(self._shared.units, place)
                over = True
                return result
            with jax.enable_x64(options.dtype == "float64"):  # each thread has its own
                prepared = self._first() if place == 0 else self._wait_for_the_first()
                if prepared is None:
                    return None
                # it takes several devices, or as much memory as it may
                exclusive = prepared.program.mesh.size > 1 or prepared.stream is not None
                with self._shared.slots.acquire(exclusive):
                    if self._asked():
                        return None
                    callbacks = self._method.callbacks_of(seed)
                    if place > 0 and prepared.timed is None and prepared.stream is None:
                        prepared = _reseeded(prepared, seed)
                    elif place > 0:
                        prepared = self._prepare(seed)  # with cohorts of its own
                    result = run_rounds(
                        prepared,
                        self._folders[place],
                        self._method.resume and (self._begun[place] or not any(self._begun)),
                        self._clock,
                        self._asked,
                        SeedReporter(self._progress, seed),
                        [self._one_by_one(callback) for callback in callbacks],
                    )
            over = True
            return result
        except Interrupted:
            self._shared.stopped = True
            return None
        except Diverged as error:
            over = True
            return Result(None, error.history, failure=str(error))
        except Exception:
            self._failed = True
            raise
        finally:
            self._progress.compiled.set()
            with self._shared.lock:
                notify_ended(callbacks, result)
                self._progress.finish(seed, over)
                if self._progress.ended.is_set():
                    self._prepared = None  # the data and the first state

    def _run_elsewhere(self, units: Units, place: int) -> Result:
        # the run with a seed on a worker, whose reply is looked at
        method, seed, task = self._method, self._seeds[place], self._shared.task
        folder, unit = self._folders[place], method.name
        unit += "" if method.seeds is None else f", seed {seed}"
        plan = replace(method, seeds=None, out=None if folder is None else folder.absolute())
        call = partial(run_on_worker, plan, replace(self._shared.options, seed=seed))
        tell = SeedReporter(self._progress, seed)
        result, lost = units.run(unit, call, self._shared.digest, tell, folder)
        history = result.history if isinstance(result, Result) else None
        said = None if history is None else (history.label, history.task, history.settings.get("seed"))
        if history is None or said != (method.name, task.name, seed):
            raise InvalidInput(f"{unit}: the worker's reply is of another run: {shown(result)}")
        inference = None if result.failure else task.inference
        return replace(result, inference=inference, history=replace(history, notes=(*history.notes, *lost)))

    def _first(self) -> PreparedRun | None:
        # the first run, made ready once the method before is compiled; None where it shall not begin
        before = self._before
        if before is not None:
            before._progress.compiled.wait()  # code of a user is traced by one thread at a time
            if before._is_streamed or self._shared.in_turn:
                before._progress.ended.wait()  # it takes as much memory as it may
        if self._asked():
            return None
        prepared = self._prepared = self._prepare(self._seeds[0])
        self._is_streamed = prepared.stream is not None
        return prepared

    def _wait_for_the_first(self) -> PreparedRun | None:
        # the first run, once it has compiled the program; None where no other shall begin
        self._progress.compiled.wait()
        return None if self._asked() else self._prepared

    def _prepare(self, seed: int) -> PreparedRun:
        method = self._method
        folder = self._folders[0] if method.resume else None
        options = replace(on_devices_of(folder, self._shared.options), seed=seed)
        return prepare(method.algorithm, self._shared.task, options, method.label)

    def _one_by_one(self, callback: Callback) -> Callback:
        # a callback that waits for those of the other runs
        def call(at: Evaluated) -> str | None:
            with self._shared.lock:
                return callback(at)

        return call

    def _asked(self) -> bool:
        return self._failed or self._shared.stopped or self._shared.interrupt.stop_requested


def _reseeded(prepared: PreparedRun, seed: int) -> PreparedRun:
    # the same run with another seed: its start and its key
    task = prepared.task
    params = start_params(task, seed, prepared.dtype)
    return replace(
        prepared,
        params=params,
        key=run_key(seed),
        state=start(prepared.algorithm, params, task.data.num_clients, prepared.program),
        options=replace(prepared.options, seed=seed),
        identity=prepared.identity | {"seed": seed},
    )


# The runs of methods, asked for one method after another; where the data are small, later methods run meanwhile.

_MOST_BYTES = 2**26  # of examples, which lie on the device once for each method that runs


@contextlib.contextmanager
def scheduled_runs(
    methods: Sequence[RunPlan], task: Task, options: RunOptions, units: Units | None = None
) -> Iterator[WaitForResults]:
    # the runs of each method, in order: what is called for each in turn, and gives the results with each of its
    # seeds; a run that diverged has no model and says why. What is under way when the block ends is asked to stop.
    is_small = not isinstance(task.data, StoredData) and trees.nbytes(task.data.examples) <= _MOST_BYTES
    if units is None and [method.seeds for method in methods] == [None]:
        yield lambda progress: (run_or_failure(methods[0], task, options, progress),)
    else:
        with run_concurrently(methods, task, options, units, in_turn=not is_small) as finish:
            yield finish


def run_or_failure(
    method: RunPlan, task: Task, options: RunOptions, progress: Callable[[Progress], None] | None
) -> Result:
    try:
        return run_single(method, task, options, progress)
    except Diverged as error:
        return Result(None, error.history, failure=str(error))


@CALLS.failing_plainly()
def run_single(
    method: RunPlan, task: Task, options: RunOptions, progress: Callable[[Progress], None] | None = None
) -> Result:
    """The run with the seed of the options; of its folder it writes the checkpoints alone."""
    # of several processes the first one writes, tells and calls back
    callbacks: Sequence[Callback] = method.callbacks_of(options.seed) if is_first() else ()
    result: Result | None = None
    try:
        with jax.enable_x64(options.dtype == "float64"), CompileClock() as clock:
            options = on_devices_of(method.out if method.resume else None, options)
            prepared = prepare(method.algorithm, task, options, method.label)
            told = progress if is_first() else None
            with open_rounds(prepared, method.out, method.resume, clock, told, callbacks) as (
                rounds,
                interrupt,
            ):
                result = rounds.finished(loop(rounds, clock, lambda: interrupt.stop_requested))
        return result
    finally:
        notify_ended(callbacks, result)


def run_on_worker(
    method: RunPlan, options: RunOptions, task: Task, tell: Callable[[Progress], None]
) -> Result:
    # a unit: the run with the seed of the options; one that was lost goes on from its checkpoint
    resume = method.out is not None and (method.out / RUN.file).exists()
    return replace(run_or_failure(replace(method, resume=resume), task, options, tell), inference=None)
