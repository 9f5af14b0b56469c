"""Sweeps by name: the engine sweeps a function that makes a method, and this finds it in the catalogue."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

from fedsolve.config.build import arguments, build
from fedsolve.core.algorithm import Algorithm
from fedsolve.core.errors import InvalidInput, shown
from fedsolve.engine.options import RunOptions, SweepKeywords, shows_options
from fedsolve.engine.progress import SweepProgress
from fedsolve.engine.sweep.grid import check_seeds
from fedsolve.engine.sweep.sweep import run_sweep
from fedsolve.engine.sweep.sweep_options import SweepOptions
from fedsolve.geometry.diagnostics.diagnostic import Diagnostic
from fedsolve.results.sweep import Selection, Sweep
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
    """Run every setting of a grid with every seed, and choose the best.

    Each trial (a setting with a seed) is the run that `fedsolve.run` would do alone, to rounding. Settings see the
    same cohorts, shuffles and start; seeds do not. A trial that diverges is marked, and changes no other.

    Args:
        algorithm: a name of the catalogue, or a function of the grid's axes that gives the method.
        task: the problem.
        grid: axis -> values; all combinations are run, the last axis fastest.
        **options: those of a run, as `fedsolve.engine.options.RunOptions` has them, without seed and devices.
        seeds: how many (0, 1, ...), or which.
        select: how the best setting is chosen, such as "train_loss:100" or a name of
            `fedsolve.results.sweep.SELECTIONS`; default "training-loss".
        validation: share of every client's examples, in (0, 1), that is held out of training and evaluated as
            `validation_loss` and so on; None holds out nothing.
        diagnostics: instead of the task's and the method's.
        parallel_trials: trials side by side in one program; default what fits the memory and is fast; at least 1.
        out: folder that keeps what is finished, so that the sweep can be interrupted and resumed.
        resume: continue what `out` holds.
        label: the method's name in tables.
        progress: True for a line on standard error, or a function, called with a `SweepProgress`.

    Returns:
        All evaluations of all trials, metrics of shape (settings, seeds, evaluations), and the best setting
        (`Sweep.best_settings`).

    Raises:
        InvalidInput: an unknown axis (the nearest match is named), a value that the method refuses, a selection
            whose metric is not measured, arguments that do not fit, a folder that keeps another sweep, more than
            `fedsolve.engine.sweep.grid.MOST_TRIALS` settings x seeds.
        Interrupted: Ctrl-C, after what is done was kept in `out`.
    """
    plan = SweepOptions(
        run=RunOptions(**options),
        seeds=check_seeds(seeds),
        selection=_selection(select),
        validation=validation,
        diagnostics=diagnostics,
        parallel_trials=parallel_trials,
    )
    make = by_name(algorithm) if isinstance(algorithm, str) else algorithm
    return run_sweep(make, task, grid, plan, out=out, resume=resume, label=label, progress=progress)


def _selection(select: Selection | str | None) -> Selection:
    if isinstance(select, Selection):
        return select
    if select is not None and not isinstance(select, str):
        raise InvalidInput(f"select = {shown(select)} must be text such as 'train_loss:100'")
    return Selection.parse(select or "training-loss")


def by_name(name: str) -> Callable[..., Algorithm]:
    """The function that makes a method of the catalogue, whose signature has the method's settings.

    Raises:
        InvalidInput: an unknown name (the nearest match is named).
    """
    known = arguments(name)

    def make(**settings: Any) -> Algorithm:
        return build(name, settings)

    parameters = [inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY) for key in known]
    make.__name__ = name
    make.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportFunctionMemberAccess]
    return make
