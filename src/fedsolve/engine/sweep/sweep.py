"""A sweep: every setting of a grid with every seed, as one compiled program that runs trials side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from fedsolve.core.algorithm import Algorithm
from fedsolve.engine.compute.processes import check_alone
from fedsolve.engine.prepared_run import PreparedRun
from fedsolve.engine.progress import SweepProgress, progress_to
from fedsolve.engine.records.fingerprint import arrays_digest, code_digest
from fedsolve.engine.records.identity import describe, digest
from fedsolve.engine.run import check_outside
from fedsolve.engine.sweep.sweep_options import SweepOptions
from fedsolve.engine.sweep.sweep_run import SweepRounds
from fedsolve.engine.sweep.sweep_setup import prepare_trials, request_sweep
from fedsolve.engine.sweep.sweep_store import SweepStore, TrialResults
from fedsolve.engine.sweep.sweep_trials import Trials
from fedsolve.folders.interrupt import Interruptible
from fedsolve.results.sweep import SENT, Sweep
from fedsolve.tasks.task import Task


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
    requested = request_sweep(make, task, grid, options)
    axes, methods = requested.axes, requested.methods
    with jax.enable_x64(options.run.dtype == "float64"):
        work = prepare_trials(requested, options, label)
        prepared = work.prepared
        identity = _identity(prepared, axes, methods, options)
        if out is not None:
            identity |= prepared.digests()
            identity |= {
                "held_out": arrays_digest(requested.task.validation),
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

            run = SweepRounds(work, batches, options.selection, store, tell, found)
            run.finish(interrupt)
    notes = tuple(dict.fromkeys((*notes, *run.work.prepared.remarks)))
    return _result(prepared, axes, options, work, found, notes)


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
