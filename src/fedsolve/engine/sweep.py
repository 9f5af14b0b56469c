"""A sweep: settings of a grid or at random with every seed, as one compiled program that runs trials side by side."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Unpack

import jax

from fedsolve.config.build import build
from fedsolve.core.algorithm import Algorithm
from fedsolve.core.errors import InvalidInput
from fedsolve.engine.checks.methods import check_rates
from fedsolve.engine.compute.casting import cast, in_run
from fedsolve.engine.compute.sharding import check_alone
from fedsolve.engine.compute.workers import Tell, open_units
from fedsolve.engine.identity import arrays_digest, code_digest, describe, digest
from fedsolve.engine.load import with_start
from fedsolve.engine.options import RunOptions, SweepKeywords, shows_options
from fedsolve.engine.prepare import prepare
from fedsolve.engine.progress import Progress, progress_to
from fedsolve.engine.resolve import check_methods, choose_sampling
from fedsolve.engine.run import check_outside
from fedsolve.engine.simulated_time import with_versions
from fedsolve.engine.sweep_grid import (
    Search,
    SweepOptions,
    build_methods,
    check_grid,
    check_seeds,
    selection_of,
)
from fedsolve.engine.sweep_result import Sweep
from fedsolve.engine.sweep_rounds import SweepRounds, SweepStore
from fedsolve.engine.sweep_trials import TrialBatch, Trials
from fedsolve.folders.run_folder import SWEEP
from fedsolve.geometry.diagnostics import Diagnostic
from fedsolve.report.sweep_page import write_sweep_page
from fedsolve.results.sweep import SENT, Selection
from fedsolve.tasks.task import Task

_MOST_EVALUATIONS = 5 * 10**7  # of all trials: a column of 200 MB a metric


def _identity(
    trials: Trials, task: Task, axes: Mapping[str, Any], methods: Sequence[Algorithm], options: SweepOptions
) -> dict[str, Any]:
    # what a folder must share with the sweep that continues it; all of it decides the bits of results
    prepared = trials.prepared
    return {
        **prepared.identity,
        "algorithm": prepared.label,
        "grid": describe(axes),
        "search": describe(options.search),
        "methods": digest(describe(methods)),
        "seed": list(options.seeds),
        "rounds": prepared.rounds,
        "eval_every": prepared.eval_every,
        "validation": options.validation,
        **prepared.digests(),
        "held_out": arrays_digest(task.validation),
        "own_measures": code_digest(options.diagnostics),
    }


def _prepare_trials(methods: Sequence[Algorithm], task: Task, options: SweepOptions) -> Trials:
    # what trials share is made ready once, with the first method and seed: settings differ in the method alone
    first = replace(options.run, seed=options.seeds[0], devices=1, residency="device")
    for method in methods:
        check_rates(cast(method, first.dtype), first.rounds)
    prepared = prepare(methods[0], task, first, options.label)
    options.search.stops(len(methods), prepared.rounds, prepared.eval_every)
    _check_evaluations(len(methods) * len(options.seeds), prepared.rounds, prepared.eval_every)
    steps = prepared.program.work.equal_steps
    cast_methods = [in_run(m.with_steps(steps), task, prepared.dtype) for m in methods]
    in_time = [with_versions(m, prepared.timed) for m in cast_methods]
    given = options.diagnostics
    measured = [(*task.diagnostics, *m.diagnostics()) if given is None else tuple(given) for m in in_time]
    diagnostics = tuple(cast(d, prepared.dtype) for d in measured)
    return Trials(prepared, tuple(in_time), diagnostics, options.seeds)


def _check_clock(options: SweepOptions, methods: Sequence[Algorithm]) -> None:
    # refuse trials that would not share their cohorts and times, which are worked out once for all of them
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
    # refuse a table of metrics that no memory holds
    evaluations = trials * (2 + (rounds - 1) // every)
    if evaluations > _MOST_EVALUATIONS:
        raise InvalidInput(
            f"{trials:,} runs are evaluated {evaluations:,} times in {rounds:,} rounds each, more than "
            f"{_MOST_EVALUATIONS:,}: evaluate less often (eval_every = {every}) or take fewer values"
        )


@shows_options(swept=True, renamed={"lanes": "parallel_trials"})
def sweep(
    algorithm: str | Callable[..., Algorithm],
    task: Task,
    grid: Mapping[str, Sequence[Any]],
    *,
    search: Literal["grid", "random"] = "grid",
    trials: int | None = None,
    search_seed: int = 0,
    halving: int | None = None,
    seeds: int | Sequence[int] = 1,
    select: Selection | str | None = None,
    validation: float | None = None,
    diagnostics: Sequence[Diagnostic] | None = None,
    parallel_trials: int | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    label: str | None = None,
    progress: Callable[[Progress], None] | bool | None = None,
    executor: Any = None,
    **options: Unpack[SweepKeywords],
) -> Sweep:
    """Run settings of a grid, or drawn at random, with every seed, and select the best setting.

    Each trial (a setting with a seed) is the run that `fedsolve.run` would do alone, to rounding. Settings see the
    same cohorts, shuffles and start; seeds do not. A trial that diverges is marked, and changes no other.

    Args:
        algorithm: a name of the catalogue, or a function of the grid's axes that gives the method.
        task: the problem.
        grid: axis -> values; all combinations are run, the last axis fastest. A random search draws from the values,
            or from a range as text: "0:0.9" uniform, "1e-3:1:log" log-uniform, "1:8:int" and "1:64:logint" integers,
            each between its ends and with them, numbers to 6 digits.
        **options: those of a run, as `fedsolve.engine.options.RunOptions` has them, without seed and devices.
        search: "grid" for all combinations, or "random" for `trials` different settings, which depend on chance.
        trials: number of settings of a random search, at least 1.
        search_seed: at least 0; a random search draws from it alone, and repeats bit for bit with it.
        halving: factor eta, at least 2, of successive halving (Jamieson and Talwalkar 2016); None runs all to the end.
            Stop k of K = floor(log_eta n) is the first evaluation after at least rounds / eta^(K - k + 1) rounds: of n
            settings floor(n / eta^k) go on, the best by `select` (its mean over the same share of the rounds so far,
            and over seeds), none that diverged. Those that come to the end, of which `best` is one, have the bits of a
            sweep without halving and with as many `parallel_trials`.
        seeds: how many (0, 1, ...), or which.
        select: how the best setting is chosen, such as "train_loss:100" or a name of
            `fedsolve.results.sweep.SELECTIONS`; by default the least training loss, its mean over the last tenth of
            the rounds.
        validation: share of every client's examples, in (0, 1), that is held out of training and evaluated as
            `validation_loss` and so on; None holds out nothing.
        diagnostics: instead of the task's and the method's.
        parallel_trials: trials side by side in one program; default what fits the memory and is fast, with halving at
            most the settings after the second stop; at least 1.
        out: folder that keeps what is finished, so that the sweep can be interrupted and resumed; at the end what
            `Sweep.save` writes and a page, if pyarrow is installed.
        resume: continue what `out` holds.
        label: the method's name in tables.
        progress: as `fedsolve.run` takes it, by default a line in a terminal and a bar in a notebook; a function is
            called with a `Progress`.
        executor: what runs the trials on other processes or machines, as `fs.Workers` takes it, such as
            `processes:4`: all that run side by side, `parallel_trials`, are one unit of work. None runs them here.

    Returns:
        All evaluations of all trials, metrics of shape (settings, seeds, evaluations), and the best setting
        (`Sweep.best_settings`).

    Raises:
        InvalidInput: an unknown axis (the nearest match is named), a value that the method refuses, no such range, a
            selection whose metric is not measured, arguments that do not fit, a folder that keeps another sweep, more
            than `fedsolve.engine.sweep_grid.MOST_TRIALS` settings x seeds.
        Interrupted: Ctrl-C, after what is done was kept in `out`.
        Unavailable: trials were lost with their worker more than `retries` times.
    """
    check_outside(task, out, label)
    task, run = with_start(task, RunOptions(**options), out, resume)
    plan = SweepOptions(
        run=run,
        seeds=check_seeds(seeds),
        search=Search(kind=search, trials=trials, seed=search_seed, halving=halving),
        selection=selection_of(select, run.rounds),
        validation=validation,
        diagnostics=diagnostics,
        parallel_trials=parallel_trials,
        label=label,
    )
    make = (lambda **settings: build(algorithm, settings)) if isinstance(algorithm, str) else algorithm
    found = run_sweep(make, task, grid, plan, out=out, resume=resume, progress=progress, executor=executor)
    if out is not None and importlib.util.find_spec("pyarrow"):
        found.save(out)
        write_sweep_page(out, found, draw=importlib.util.find_spec("matplotlib") is not None)
    return found


def run_sweep(
    make: Callable[..., Algorithm],
    task: Task,
    grid: Mapping[str, Sequence[Any]],
    options: SweepOptions,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    progress: Callable[[Progress], None] | bool | None = None,
    executor: Any = None,
) -> Sweep:
    """Run the method that `make` gives at every setting of the grid, with every seed; see `fedsolve.sweep`."""
    check_alone("a sweep")
    check_outside(task, out, options.label)
    axes = check_grid(grid, len(options.seeds), options.search)
    methods = build_methods(make, axes, options.search.kind)
    _check_clock(options, methods)
    # before any trial: settings are chosen by examples that no trial trains on
    task = task if options.validation is None else task.hold_out(options.validation)
    check_methods(methods, choose_sampling(options.run, task), task)
    with jax.enable_x64(options.run.dtype == "float64"):
        trials = _prepare_trials(methods, task, options)
        prepared = trials.prepared
        # it takes a digest of all data, which only a sweep that can go on needs
        identity = {} if out is None else _identity(trials, task, axes, methods, options)
        with (
            progress_to(progress, prepared.label) as tell,
            SweepStore.at(out, identity, resume) as store,
            open_units(executor, out) as units,
        ):
            rounds = SweepRounds(trials, options, store, tell)
            rounds.finish(units, _Batches(methods, task, options, identity), run_batch)
    settings = {k: v for k, v in prepared.settings.items() if k not in ("algorithm", "seed")}
    sizes = prepared.traffic.up
    return Sweep(
        label=prepared.label,
        task=prepared.task.name,
        grid=axes,
        seeds=options.seeds,
        rounds=trials.evaluated,
        metrics=rounds.results.metrics,
        diverged=rounds.results.diverged,
        selection=options.selection,
        settings=settings | {"validation": options.validation, SENT: sizes[0] if len(sizes) == 1 else None},
        seconds=rounds.results.seconds,
        notes=(*rounds.notes, *options.selection.notes(options.run.rounds)),
        search=options.search.record(grid),
        stopped=rounds.results.stopped,
    )


# A batch of trials on a worker.


@dataclass(frozen=True)
class _Batches:
    # what the batches of a sweep have in common; each worker makes the trials ready once
    methods: Sequence[Algorithm]
    task: Task
    options: SweepOptions
    identity: dict[str, Any]

    @cached_property
    def trials(self) -> Trials:
        trials = _prepare_trials(self.methods, self.task, self.options)
        return trials.without_nonfinite_clients()


def run_batch(batch: TrialBatch, folder: Path | None, number: int, shared: _Batches, tell: Tell) -> Any:
    # a unit: a sweep of one batch; one that was lost goes on from its checkpoint
    options = replace(shared.options, parallel_trials=len(batch.settings) * len(batch.seeds))
    resume = folder is not None and (folder / SWEEP.file).exists()
    with jax.enable_x64(shared.options.run.dtype == "float64"):
        identity = {**shared.identity, "batch": number}
        with SweepStore.at(folder, identity, resume) as store:
            rounds = SweepRounds(shared.trials.of(batch), options, store, tell)
            rounds.finish()
    return rounds.results.metrics, rounds.results.diverged, rounds.trials.prepared.remarks
