"""Making a sweep ready: the methods of its grid checked, and what its trials share prepared as one run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax

from fedsolve.core.algorithm import Algorithm
from fedsolve.core.errors import InvalidInput, shown
from fedsolve.engine.checks.rates import check_rates
from fedsolve.engine.compute.cast import cast
from fedsolve.engine.preparation.placed import in_run
from fedsolve.engine.preparation.requested import check_methods, choose_sampling
from fedsolve.engine.prepare import prepare
from fedsolve.engine.simulated_time import with_versions
from fedsolve.engine.sweep.grid import build_methods, check_grid, check_size
from fedsolve.engine.sweep.sweep_options import SweepOptions
from fedsolve.engine.sweep.sweep_trials import Trials
from fedsolve.tasks.task import Task

_MOST_EVALUATIONS = 5 * 10**7  # of all trials: a column of 200 MB a metric


@dataclass(frozen=True)
class RequestedSweep:
    """A sweep whose grid is checked.

    Attributes:
        task: with examples held out where the options say so.
        axes: the grid.
        methods: of each setting, as the user's function built them.
        trials: settings times seeds.
    """

    task: Task
    axes: dict[str, tuple[Any, ...]]
    methods: Sequence[Algorithm]
    trials: int


def request_sweep(
    make: Callable[..., Algorithm], task: Task, grid: Mapping[str, Sequence[Any]], options: SweepOptions
) -> RequestedSweep:
    """The method that `make` gives at every setting of the grid.

    Raises:
        InvalidInput: a grid, a task or a method that cannot be used.
    """
    if not isinstance(task, Task):
        raise InvalidInput(f"task must be one such as fs.tasks.digits(), not {shown(task)}")
    axes = check_grid(grid)
    trials = check_size([len(values) for values in axes.values()], len(options.seeds))
    methods = build_methods(make, axes)
    _check_clock(options, methods)
    trained = task if options.validation is None else task.hold_out(options.validation)
    check_methods(methods, choose_sampling(options.run, trained), trained)
    return RequestedSweep(trained, axes, methods, trials)


def prepare_trials(requested: RequestedSweep, options: SweepOptions, label: str | None) -> Trials:
    """What the trials share, made ready with the first method and seed, and the method of each setting.

    Raises:
        InvalidInput: as `prepare`; rates that a run cannot use; more evaluations than a table holds.
    """
    first = replace(options.run, seed=options.seeds[0], devices=1, residency="device")
    for method in requested.methods:
        check_rates(cast(method, first.dtype), first.rounds)
    prepared = prepare(requested.methods[0], requested.task, first, label)
    _check_evaluations(requested.trials, prepared.rounds, prepared.eval_every)
    trained = [
        with_versions(in_run(method, requested.task, prepared.dtype), prepared.timed)
        for method in requested.methods
    ]
    return Trials.of(prepared, trained, options.seeds, options.diagnostics)


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


def _check_evaluations(trials: int, rounds: int, every: int) -> None:
    """Refuse a table of metrics that no memory holds."""
    evaluations = trials * (2 + (rounds - 1) // every)
    if evaluations > _MOST_EVALUATIONS:
        raise InvalidInput(
            f"{trials:,} runs are evaluated {evaluations:,} times in {rounds:,} rounds each, more than "
            f"{_MOST_EVALUATIONS:,}: evaluate less often (eval_every = {every}) or take fewer values"
        )
