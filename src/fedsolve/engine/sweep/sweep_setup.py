"""Making a sweep ready: the methods of its grid, and what its trials share, prepared as one run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax

from fedsolve.core.algorithm import Algorithm
from fedsolve.core.errors import InvalidInput, shown
from fedsolve.engine.checks.rates import check_rates
from fedsolve.engine.compute.cast import cast
from fedsolve.engine.compute.keys import in_run
from fedsolve.engine.preparation.requested import check_methods, choose_sampling
from fedsolve.engine.prepare import prepare
from fedsolve.engine.records.fingerprint import arrays_digest, code_digest
from fedsolve.engine.records.identity import describe, digest
from fedsolve.engine.simulated_time import with_versions
from fedsolve.engine.sweep.grid import SweepOptions, build_methods, check_grid, check_size
from fedsolve.engine.sweep.trials import Trials
from fedsolve.tasks.task import Task

_MOST_EVALUATIONS = 5 * 10**7  # of all trials: a column of 200 MB a metric


@dataclass(frozen=True)
class RequestedSweep:
    """A sweep whose grid is checked.

    Attributes:
        task: with examples held out where the options say so.
        axes: the grid.
        methods: of each setting, as the user's function built them.
        options: all else.
    """

    task: Task
    axes: dict[str, tuple[Any, ...]]
    methods: Sequence[Algorithm]
    options: SweepOptions

    def identity(self, trials: Trials, with_digests: bool) -> dict[str, Any]:
        """What a folder must share with the sweep that continues it; its digests decide the bits of results, too."""
        prepared, options = trials.prepared, self.options
        identity = {
            **prepared.identity,
            "algorithm": prepared.label,
            "grid": describe(self.axes),
            "methods": digest(describe(self.methods)),
            "seed": list(options.seeds),
            "rounds": prepared.rounds,
            "eval_every": prepared.eval_every,
            "validation": options.validation,
        }
        if with_digests:
            identity |= prepared.digests()
            identity["held_out"] = arrays_digest(self.task.validation)
            identity["own_measures"] = code_digest(options.diagnostics)
        return identity


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
    check_size([len(values) for values in axes.values()], len(options.seeds))
    methods = build_methods(make, axes)
    _check_clock(options, methods)
    trained = task if options.validation is None else task.hold_out(options.validation)
    check_methods(methods, choose_sampling(options.run, trained), trained)
    return RequestedSweep(trained, axes, methods, options)


def prepare_trials(requested: RequestedSweep, label: str | None) -> Trials:
    """What the trials share, made ready with the first method and seed, and the method of each setting.

    Raises:
        InvalidInput: as `prepare`; rates that a run cannot use; more evaluations than a table holds.
    """
    task, options = requested.task, requested.options
    first = replace(options.run, seed=options.seeds[0], devices=1, residency="device")
    for method in requested.methods:
        check_rates(cast(method, first.dtype), first.rounds)
    prepared = prepare(requested.methods[0], task, first, label)
    trials = len(requested.methods) * len(options.seeds)
    _check_evaluations(trials, prepared.rounds, prepared.eval_every)
    steps = prepared.program.work.equal_steps
    cast_methods = [in_run(m.with_steps(steps), task, prepared.dtype) for m in requested.methods]
    methods = [with_versions(m, prepared.timed) for m in cast_methods]
    given = options.diagnostics
    measured = [(*task.diagnostics, *m.diagnostics()) if given is None else tuple(given) for m in methods]
    diagnostics = tuple(cast(d, prepared.dtype) for d in measured)
    return Trials(prepared, tuple(methods), diagnostics, options.seeds)


def _check_clock(options: SweepOptions, methods: Sequence[Algorithm]) -> None:
    """Refuse trials that would not share their cohorts and times, which are worked out once for all of them."""
    if options.run.systems is None:
        return
    if len(options.seeds) > 1:
        raise InvalidInput(
            f"systems and {len(options.seeds)} seeds: cohorts and times differ by seed; run a sweep for each seed"
        )
    if len({jax.tree.structure(method) for method in methods}) > 1:
        raise InvalidInput(
            "systems: the settings of a sweep with simulated time may differ in numbers only, since other settings "
            "may change the bytes and the order of events: run a sweep for each of them"
        )


def _check_evaluations(trials: int, rounds: int, every: int) -> None:
    """Refuse a table of metrics that no memory holds."""
    evaluations = trials * (2 + (rounds - 1) // every)
    if evaluations > _MOST_EVALUATIONS:
        raise InvalidInput(
            f"{trials:,} runs are evaluated {evaluations:,} times in {rounds:,} rounds each, more than "
            f"{_MOST_EVALUATIONS:,}: evaluate less often (eval_every = {every}) or take fewer values"
        )
