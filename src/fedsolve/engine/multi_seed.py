"""One method with one seed or several: one compiled program, run for each with its own start, cohorts and shuffles.

On a CPU as many seeds run at once as there are cores, each in a thread: XLA alone keeps one core busy with most
problems. Each has the bits of the run with its seed alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypedDict, Unpack

import jax

from fedsolve.core.algorithm import Algorithm
from fedsolve.core.errors import Diverged, Interrupted
from fedsolve.engine.compute.keys import run_key, start_params
from fedsolve.engine.compute.layout import batches_at_once
from fedsolve.engine.compute.processes import check_alone, is_first, several
from fedsolve.engine.compute.round import start
from fedsolve.engine.loop import CompileClock
from fedsolve.engine.options import RunOptions
from fedsolve.engine.prepare import prepare
from fedsolve.engine.prepared_run import PreparedRun
from fedsolve.engine.progress import Progress, tell_compiling
from fedsolve.engine.result import Result
from fedsolve.engine.run_rounds import run_rounds
from fedsolve.folders.interrupt import Interruptible
from fedsolve.folders.run_folder import RUN, occupied, saved_in
from fedsolve.folders.store import read_manifest
from fedsolve.results.callbacks import Callback, CallbacksOfSeed, Evaluated, notify_ended
from fedsolve.results.record_files import seed_folder
from fedsolve.tasks.task import Task


class Where(TypedDict):
    """Where runs are kept, whether they are resumed, what they are called, and what is told how far they are."""

    out: Path | None
    resume: bool
    label: str | None
    progress: Callable[[Progress], None] | None


def run_method(
    algorithm: Algorithm,
    task: Task,
    options: RunOptions,
    seeds: Sequence[int] | None,
    callbacks_of: CallbacksOfSeed,
    **where: Unpack[Where],
) -> tuple[Result, ...]:
    """The run with the seed of the options, or those with each of some seeds; one that diverged says why."""
    if seeds is not None:
        return run_seeds(algorithm, task, options, seeds, callbacks_of=callbacks_of, **where)
    try:
        return (run_one(algorithm, task, options, callbacks=callbacks_of(options.seed), **where),)
    except Diverged as error:
        return (Result(None, error.history, failure=str(error)),)


def run_one(
    algorithm: Algorithm,
    task: Task,
    options: RunOptions,
    *,
    out: str | Path | None,
    resume: bool,
    label: str | None,
    progress: Callable[[Progress], None] | None,
    callbacks: Sequence[Callback] = (),
) -> Result:
    """The run with one seed; of its folder it writes the checkpoints alone.

    Of several processes the first one writes, tells and calls back.
    """
    if not is_first():
        progress, callbacks = None, ()
    result: Result | None = None
    try:
        with jax.enable_x64(options.dtype == "float64"), CompileClock() as clock:
            prepared = prepare(algorithm, task, _on_devices_of(out if resume else None, options), label)
            result = run_rounds(prepared, out, resume, clock, lambda: False, progress, callbacks)
        return result
    finally:
        notify_ended(callbacks, result)


def run_seeds(
    algorithm: Algorithm,
    task: Task,
    options: RunOptions,
    seeds: Sequence[int],
    callbacks_of: CallbacksOfSeed = lambda seed: (),
    **where: Unpack[Where],
) -> tuple[Result, ...]:
    """The runs with each seed, in order, checkpoints in `out/seed-S`; one that diverged has no model and says why.

    When resuming, a seed without a checkpoint begins anew.

    Raises:
        InvalidInput: as `fedsolve.run`.
        Interrupted: Ctrl-C, after each run's state was saved.
    """
    check_alone("a run with several seeds")
    out, resume, label = where["out"], where["resume"], where["label"]
    folders = [None if out is None else seed_folder(out, seed) for seed in seeds]
    begun = [folder is not None and (folder / RUN.file).exists() for folder in folders]
    if out is not None and ((any(begun) and not resume) or (out / RUN.file).exists()):
        raise occupied(out, "run with seeds" if any(begun) else "run with one seed")
    clock = CompileClock()
    with jax.enable_x64(options.dtype == "float64"), clock, Interruptible() as interrupt:
        options = _on_devices_of(next((f for f in folders if resume and f), None), options)
        prepared = prepare(algorithm, task, replace(options, seed=seeds[0]), label)

        def with_seed(seed: int) -> PreparedRun:
            if prepared.timed is None and prepared.stream is None:
                return _with_seed(prepared, seed)
            return prepare(algorithm, task, replace(options, seed=seed), label)  # with cohorts of its own

        runs = _SeedRuns(prepared, with_seed, seeds, clock, interrupt, where["progress"], callbacks_of)
        # one at a time where each takes several devices, or as much memory as it may
        alone = prepared.program.mesh.size > 1 or prepared.stream is not None
        at_once = 1 if alone else batches_at_once()
        with ThreadPoolExecutor(at_once) as pool:
            resumed = [resume and (known or not any(begun)) for known in begun]
            results = list(pool.map(runs.run, seeds, folders, resumed))
    if None in results:
        saved = "nothing was saved: give out=FOLDER to resume" if out is None else saved_in(out)
        raise Interrupted(
            f"stopped with {len(seeds) - results.count(None)} of {len(seeds)} seeds done; {saved}"
        )
    return tuple(result for result in results if result is not None)


def _on_devices_of(folder: str | Path | None, options: RunOptions) -> RunOptions:
    """The options of a run that goes on in a folder: on as many devices as it had, where none are given."""
    given = options.devices is not None or options.mesh is not None or several()
    if folder is None or given or not (path := Path(folder) / RUN.file).exists():
        return options
    had = read_manifest(path)["identity"]
    return options if "mesh" in had else replace(options, devices=min(had["devices"], len(jax.devices())))


@dataclass
class _SeedRuns:
    """The runs of one program under way."""

    prepared: PreparedRun
    with_seed: Callable[[int], PreparedRun]
    seeds: Sequence[int]
    clock: CompileClock
    interrupt: Interruptible
    progress: Callable[[Progress], None] | None
    callbacks_of: CallbacksOfSeed
    compiled: threading.Event = field(default_factory=threading.Event)
    latest: dict[int, Progress] = field(default_factory=dict)
    over: set[int] = field(default_factory=set)
    """Seeds whose runs have ended, with all rounds or before."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    ended: bool = False
    """Whether one of them was interrupted or failed: the others need not go on."""

    def run(self, seed: int, out: Path | None, resume: bool) -> Result | None:
        """One of them; None if it was interrupted. All but the first wait until that has compiled the program."""
        first = seed == self.prepared.identity["seed"]
        if not first:
            self.compiled.wait()
        callbacks: Sequence[Callback] = ()
        result: Result | None = None
        try:
            with jax.enable_x64(self.prepared.identity["dtype"] == "float64"):  # each thread has its own
                if not self._asked():
                    callbacks = self.callbacks_of(seed)
                    prepared = self.prepared if first else self.with_seed(seed)
                    one_by_one = [self._alone(callback) for callback in callbacks]
                    progress = _SeedProgress(self, seed)
                    result = run_rounds(prepared, out, resume, self.clock, self._asked, progress, one_by_one)
            return result
        except Interrupted:
            self.ended = True
            return None
        except Diverged as error:
            return Result(None, error.history, failure=str(error))
        except Exception:
            self.ended = True
            raise
        finally:
            self.compiled.set()
            with self.lock:
                self.over.add(seed)
                notify_ended(callbacks, result)

    def _alone(self, callback: Callback) -> Callback:
        """A callback that waits for those of the other seeds: what it writes to may be the same for all."""

        def call(at: Evaluated) -> str | None:
            with self.lock:
                return callback(at)

        return call

    def _asked(self) -> bool:
        return self.ended or self.interrupt.asked

    def tell(self, seed: int, at: Progress) -> None:
        """One of them has come further."""
        self.compiled.set()
        with self.lock:
            self.latest[seed] = at
            if self.progress is not None:
                done = {seed: each.round for seed, each in self.latest.items()}
                by_seed = tuple(at.rounds if s in self.over else done.get(s, 0) for s in self.seeds)
                first = next((s for s, n in zip(self.seeds, by_seed, strict=True) if n < at.rounds), seed)
                self.progress(replace(self.latest.get(first, at), by_seed=by_seed))


@dataclass(frozen=True)
class _SeedProgress:
    """The progress of one of several runs."""

    runs: _SeedRuns
    seed: int

    def __call__(self, at: Progress) -> None:
        self.runs.tell(self.seed, at)

    def compiling(self, label: str) -> None:
        """Say it of the first run, whose program the others share."""
        if not self.runs.compiled.is_set():
            tell_compiling(self.runs.progress, label)


def _with_seed(prepared: PreparedRun, seed: int) -> PreparedRun:
    """The same run with another seed: its start and its key."""
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
