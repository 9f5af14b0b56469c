"""A sweep: every setting of a grid with every seed, as one compiled program that runs trials side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

import jax

from fedsolve.core.algorithm import Algorithm
from fedsolve.engine.compute.processes import check_alone
from fedsolve.engine.options import RunOptions, SweepKeywords, shows_options
from fedsolve.engine.progress import SweepProgress, progress_to
from fedsolve.engine.run import check_outside
from fedsolve.engine.sweep.grid import SweepOptions, by_name, check_seeds, selection_of
from fedsolve.engine.sweep.sweep_result import Sweep
from fedsolve.engine.sweep.sweep_rounds import SweepRounds
from fedsolve.engine.sweep.sweep_setup import prepare_trials, request_sweep
from fedsolve.engine.sweep.sweep_store import SweepStore
from fedsolve.geometry.diagnostics.diagnostic import Diagnostic
from fedsolve.results.sweep import SENT, Selection
from fedsolve.tasks.task import Task


@shows_options(swept=True, renamed={"lanes": "parallel_trials"})
def sweep(
    algorithm: str | Callable[..., Algorithm],
    task: Task,
    grid: Mapping[str, Sequence[Any]],
    *,
    seeds: int | Sequence[int] = 1,
    select: Selection | str | None = None,
    validation: float | None = None,
    diagnostics: Sequence[Diagnostic] | None = None,
    parallel_trials: int | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    label: str | None = None,
    progress: Callable[[SweepProgress], None] | bool | None = None,
    **options: Unpack[SweepKeywords],
) -> Sweep:
    """Run every setting of a grid with every seed, and select the best setting.

    Each trial (a setting with a seed) is the run that `fedsolve.run` would do alone, to rounding. Settings see the
    same cohorts, shuffles and start; seeds do not. A trial that diverges is marked, and changes no other.

    Args:
        algorithm: a name of the catalogue, or a function of the grid's axes that gives the method.
        task: the problem.
        grid: axis -> values; all combinations are run, the last axis fastest.
        **options: those of a run, as `fedsolve.engine.options.RunOptions` has them, without seed and devices.
        seeds: how many (0, 1, ...), or which.
        select: how the best setting is chosen, such as "train_loss:100" or a name of
            `fedsolve.results.sweep.SELECTIONS`; by default the least training loss, its mean over the last tenth of
            the rounds.
        validation: share of every client's examples, in (0, 1), that is held out of training and evaluated as
            `validation_loss` and so on; None holds out nothing.
        diagnostics: instead of the task's and the method's.
        parallel_trials: trials side by side in one program; default what fits the memory and is fast; at least 1.
        out: folder that keeps what is finished, so that the sweep can be interrupted and resumed.
        resume: continue what `out` holds.
        label: the method's name in tables.
        progress: as `fedsolve.run` takes it, by default a line in a terminal and a bar in a notebook; a function is
            called with a `SweepProgress`.

    Returns:
        All evaluations of all trials, metrics of shape (settings, seeds, evaluations), and the best setting
        (`Sweep.best_settings`).

    Raises:
        InvalidInput: an unknown axis (the nearest match is named), a value that the method refuses, a selection
            whose metric is not measured, arguments that do not fit, a folder that keeps another sweep, more than
            `fedsolve.engine.sweep.grid.MOST_TRIALS` settings x seeds.
        Interrupted: Ctrl-C, after what is done was kept in `out`.
    """
    run = RunOptions(**options)
    plan = SweepOptions(
        run=run,
        seeds=check_seeds(seeds),
        selection=selection_of(select, run.rounds),
        validation=validation,
        diagnostics=diagnostics,
        parallel_trials=parallel_trials,
    )
    make = by_name(algorithm) if isinstance(algorithm, str) else algorithm
    return run_sweep(make, task, grid, plan, out=out, resume=resume, label=label, progress=progress)


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
    with jax.enable_x64(options.run.dtype == "float64"):
        trials = prepare_trials(requested, label)
        prepared = trials.prepared
        identity = requested.identity(trials, with_digests=out is not None)
        with (
            progress_to(progress, prepared.label) as tell,
            SweepStore.at(out, identity, resume) as store,
        ):
            rounds = SweepRounds(trials, options, store, tell)
            rounds.finish()
    settings = {k: v for k, v in prepared.settings.items() if k not in ("algorithm", "seed")}
    sizes = prepared.traffic.up
    return Sweep(
        label=prepared.label,
        task=prepared.task.name,
        grid=requested.axes,
        seeds=options.seeds,
        rounds=trials.evaluated,
        metrics=rounds.results.metrics,
        diverged=rounds.results.diverged,
        selection=options.selection,
        settings=settings | {"validation": options.validation, SENT: sizes[0] if len(sizes) == 1 else None},
        seconds=rounds.results.seconds,
        notes=(*rounds.notes, *options.selection.notes(options.run.rounds)),
    )
