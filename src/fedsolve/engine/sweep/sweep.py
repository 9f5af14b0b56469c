"""A sweep: every setting of a grid with every seed, as one compiled program that runs trials side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax

from fedsolve.core.algorithm import Algorithm
from fedsolve.core.checks import check_integer
from fedsolve.core.errors import InvalidInput, shown
from fedsolve.engine.checks.rates import check_rates
from fedsolve.engine.compute.cast import cast
from fedsolve.engine.compute.processes import check_alone
from fedsolve.engine.options import RunOptions
from fedsolve.engine.preparation.placed import in_run
from fedsolve.engine.preparation.requested import check_methods, choose_sampling
from fedsolve.engine.prepare import prepare
from fedsolve.engine.prepared_run import PreparedRun
from fedsolve.engine.progress_line import progress_to
from fedsolve.engine.records.fingerprint import arrays_digest, code_digest
from fedsolve.engine.records.identity import describe, digest
from fedsolve.engine.run import check_outside
from fedsolve.engine.simulated_time import with_versions
from fedsolve.engine.sweep.grid import build_methods, check_grid, check_size
from fedsolve.engine.sweep.sweep_run import SweepRun
from fedsolve.engine.sweep.sweep_store import SweepStore, TrialResults
from fedsolve.engine.sweep.sweep_trials import Trials
from fedsolve.folders.interrupt import Interruptible
from fedsolve.geometry.diagnostics.diagnostic import Diagnostic
from fedsolve.results.selection import Selection
from fedsolve.results.sweep import SENT, Sweep
from fedsolve.tasks.task import Task

_MOST_EVALUATIONS = 5 * 10**7  # of all trials: a column of 200 MB a metric


@dataclass(frozen=True)
class SweepProgress:
    """Where a sweep stands.

    Attributes:
        label: the method's name.
        done, total: rounds of trials (a setting with a seed); those that diverged count as done.
        diverged: trials that have diverged so far.
        notes: remarks, such as that the grid runs in parts.
    """

    label: str
    done: int
    total: int
    diverged: int
    notes: tuple[str, ...] = ()

    def line(self) -> tuple[str, int, int, str]:
        """Label, rounds done and to do of all trials, and all else in words."""
        return self.label, self.done, self.total, f"{self.diverged} diverged" if self.diverged else ""


@dataclass(frozen=True, kw_only=True)
class SweepOptions:
    """The options of a sweep besides its method, task and grid.

    Attributes:
        run: of every trial; its seed and devices are not looked at.
        seeds: of the trials of each setting.
        selection: how the best setting is chosen.
        validation: share of every client's examples that is held out of training; None holds out nothing.
        diagnostics: instead of the task's and the method's.
        parallel_trials: trials side by side in one program; None for what fits the memory and is fast.

    Raises:
        InvalidInput: diagnostics that are none, or parallel_trials below 1.
    """

    run: RunOptions
    seeds: tuple[int, ...]
    selection: Selection
    validation: float | None = None
    diagnostics: Sequence[Diagnostic] | None = None
    parallel_trials: int | None = None

    def __post_init__(self) -> None:
        given = self.diagnostics
        listed = isinstance(given, tuple | list) and all(isinstance(d, Diagnostic) for d in given)
        if given is not None and not listed:
            raise InvalidInput(
                f"diagnostics = {shown(given)} must be a list of diagnostics of fedsolve.diagnostics"
            )
        if self.parallel_trials is not None:
            check_integer("parallel_trials", self.parallel_trials, 1)


def run_sweep(
    make: Callable[..., Algorithm],
    task: Task,
    grid: Mapping[str, Sequence[Any]],
    options: SweepOptions,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    label: str | None = None,
    progress: Callable[[SweepProgress], None] | bool | None = None,
) -> Sweep:
    """Run the method that `make` gives at every setting of the grid, with every seed; see `fedsolve.sweep`."""
    check_alone("a sweep")
    check_outside(out, label)
    if not isinstance(task, Task):
        raise InvalidInput(f"task must be one such as fs.tasks.digits(), not {shown(task)}")
    axes = check_grid(grid)
    trials = check_size([len(values) for values in axes.values()], len(options.seeds))
    methods = build_methods(make, axes)
    _check_clock(options, methods)
    if options.validation is not None:
        task = task.hold_out(options.validation)
    check_methods(methods, choose_sampling(options.run, task), task)
    with jax.enable_x64(options.run.dtype == "float64"):
        first = replace(options.run, seed=options.seeds[0], devices=1, residency="device")
        for method in methods:
            check_rates(cast(method, first.dtype), first.rounds)
        prepared = prepare(methods[0], task, first, label)
        _check_evaluations(trials, prepared)
        trained = [with_versions(in_run(method, task, prepared.dtype), prepared.timed) for method in methods]
        work = Trials.of(prepared, trained, options.seeds, options.diagnostics)
        identity = _identity(prepared, axes, methods, options)
        if out is not None:
            identity |= prepared.digests()
            identity |= {
                "held_out": arrays_digest(task.validation),
                "own_measures": code_digest(options.diagnostics),
            }
        found = TrialResults((len(methods), len(options.seeds), len(work.evaluated)), prepared.dtype)
        with (
            progress_to(progress, prepared.label) as tell_user,
            SweepStore.at(out, identity, resume) as store,
            Interruptible(store.where) as interrupt,
        ):
            batches, notes = work.batches(store.trials or options.parallel_trials)

            def tell(done: int, total: int, diverged: int) -> None:
                if tell_user is not None:
                    tell_user(SweepProgress(prepared.label, done, total, diverged, notes))

            run = SweepRun(work, batches, options.selection, store, tell, found)
            run.finish(interrupt)
    notes = tuple(dict.fromkeys((*notes, *run.work.prepared.remarks)))
    return _result(prepared, axes, options, work, found, notes)


def _check_clock(options: SweepOptions, methods: Sequence[Algorithm]) -> None:
    """Refuse trials that would not share their cohorts and times, which are worked out once for all of them."""
    if options.run.systems is None:
        return
    if len(options.seeds) > 1:
        raise InvalidInput(
            f"systems and {len(options.seeds)} seeds: cohorts and times differ by seed, so give a sweep one seed each"
        )
    if len({jax.tree.structure(method) for method in methods}) > 1:
        raise InvalidInput(
            "systems: settings of a sweep on a clock differ in numbers alone, since others may differ in their bytes "
            "and their order of events: give each a sweep of its own"
        )


def _check_evaluations(trials: int, prepared: PreparedRun) -> None:
    """Refuse a table of metrics that no memory holds."""
    rounds, every = prepared.rounds, prepared.eval_every
    evaluations = trials * (2 + (rounds - 1) // every)
    if evaluations > _MOST_EVALUATIONS:
        raise InvalidInput(
            f"{trials:,} runs are evaluated {evaluations:,} times in {rounds:,} rounds each, more than "
            f"{_MOST_EVALUATIONS:,}: evaluate less often (eval_every = {every}) or take fewer values"
        )


def _identity(
    prepared: PreparedRun, axes: Mapping[str, Any], methods: Sequence[Algorithm], options: SweepOptions
) -> dict[str, Any]:
    """What a folder must share with the sweep that continues it."""
    return {
        **prepared.identity,
        "algorithm": prepared.label,
        "grid": describe(axes),
        "methods": digest(describe(methods)),
        "seed": list(options.seeds),
        "rounds": prepared.rounds,
        "eval_every": prepared.eval_every,
        "validation": options.validation,
    }


def _result(
    prepared: PreparedRun,
    axes: dict[str, tuple[Any, ...]],
    options: SweepOptions,
    work: Trials,
    found: TrialResults,
    notes: tuple[str, ...],
) -> Sweep:
    settings = {k: v for k, v in prepared.settings.items() if k not in ("algorithm", "seed")}
    sizes = prepared.traffic.up
    return Sweep(
        label=prepared.label,
        task=prepared.task.name,
        grid=axes,
        seeds=options.seeds,
        rounds=work.evaluated,
        metrics=found.metrics,
        diverged=found.diverged,
        selection=options.selection,
        settings=settings | {"validation": options.validation, SENT: sizes[0] if len(sizes) == 1 else None},
        seconds=found.seconds,
        notes=notes,
    )
