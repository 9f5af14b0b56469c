"""A run of one method on one task, with one seed or several."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Unpack, overload

from fedsolve.config.signatures import accepts
from fedsolve.config.weighting import different_objectives, with_weighting
from fedsolve.core.algorithm import Algorithm, name_of
from fedsolve.core.errors import Diverged, Interrupted, InvalidInput, check_path, shown
from fedsolve.core.types import Weighting
from fedsolve.core.xla.compiler import make_cores_devices
from fedsolve.engine.compute.sharding import check_alone, is_first
from fedsolve.engine.compute.workers import open_units
from fedsolve.engine.load import with_start
from fedsolve.engine.options import RunKeywords, RunOptions, shows_options
from fedsolve.engine.prepare import check_all_begin
from fedsolve.engine.progress import Progress, progress_to
from fedsolve.engine.results import Result, Results, Seeds
from fedsolve.engine.running_page import in_folder
from fedsolve.engine.scheduler import RunPlan, run_concurrently, run_single, scheduled_runs
from fedsolve.engine.sweep_grid import check_seeds
from fedsolve.folders.run_folder import RUN, how_to_resume, occupied_error
from fedsolve.report.page import PAGE, write_page
from fedsolve.results.callbacks import (
    Callback,
    CallbacksOfMethod,
    CallbacksOfMethodAndSeed,
    CallbacksOfSeed,
    check_callbacks,
)
from fedsolve.results.record_files import method_folders
from fedsolve.tasks.task import Task


@overload
def run(
    algorithm: Algorithm,
    task: Task,
    *,
    seeds: None = None,
    out: str | Path | None = None,
    resume: bool = False,
    label: str | None = None,
    progress: Callable[[Progress], None] | bool | None = None,
    callbacks: Sequence[Callback] = (),
    **options: Unpack[RunKeywords],
) -> Result: ...


@overload
def run(
    algorithm: Algorithm,
    task: Task,
    *,
    seeds: int | Sequence[int],
    out: str | Path | None = None,
    resume: bool = False,
    label: str | None = None,
    progress: Callable[[Progress], None] | bool | None = None,
    callbacks: CallbacksOfSeed | Sequence[Callback] = (),
    executor: Any = None,
    **options: Unpack[RunKeywords],
) -> Seeds: ...


@shows_options(swept=False)
def run(
    algorithm: Algorithm,
    task: Task,
    *,
    seeds: int | Sequence[int] | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    label: str | None = None,
    progress: Callable[[Progress], None] | bool | None = None,
    callbacks: Sequence[Callback] | CallbacksOfSeed = (),
    executor: Any = None,
    **options: Unpack[RunKeywords],
) -> Result | Seeds:
    """Train a model with one method on one task, as one compiled program.

    Args:
        algorithm: the method, such as `FedAvg(client_lr=0.1)`.
        task: the problem, such as `fs.tasks.digits()`.
        **options: those of a run, as `fedsolve.engine.options.RunOptions` has them.
        seeds: number of seeds (0, 1, ...), or a list of seeds, in place of `seed`. The runs share the compiled program,
            and each has the same bits as a run with its seed alone.
        out: folder for the record, the model, a page, a configuration that `fedsolve show` reads, and checkpoints, with
            which an interrupted run can be resumed; each of several seeds has its own subfolder.
        resume: continue from the checkpoint in `out`; the result has the same bits as an uninterrupted run. Arguments
            must be as before, except that `rounds` may grow. `eval_every` may change unless a schedule that reacts or a
            callback that may end the run depends on it; changes of it and of callbacks are noted in the record.
        label: the method's name in tables; default its name.
        progress: None for a line with rate and time left in a terminal, a bar in a notebook (with `fedsolve[notebook]`)
            and nothing elsewhere; True for lines elsewhere too; False for nothing; or a function, called with a
            `fedsolve.engine.progress.Progress` after each compiled call.
        callbacks: called in order after each evaluation, also of the initial model, such as
            `fs.callbacks.EarlyStopping`. A string that one returns ends the run and is recorded as the reason.
            A resumed run calls them for the last stored evaluation. With `seeds` a function of the seed that
            makes those of its run, such as `lambda seed: [fs.trackers.TensorBoard("board")]`.
        executor: what runs the seeds on other processes or machines, as `fs.Workers` takes it, such as
            `processes:4`; None runs them here. Callbacks are then called on the workers, which have copies of them.

    Returns:
        The final model, the evaluations and the log of every round; with `seeds`, those of each as `Seeds`.

    Raises:
        InvalidInput: arguments that do not fit, unusable data, or a checkpoint of another run.
        Diverged: a round in which every client's update was not finite; of several seeds, in all of them.
        Interrupted: Ctrl-C, after the state was saved in `out`.
        Unavailable: a run was lost with its worker more than `retries` times.
    """
    begin_on_cores(options)
    check_outside(task, out, label)
    if executor is not None and seeds is None:
        raise InvalidInput("executor runs several seeds: give seeds, or leave it out")
    callbacks_of = callbacks_by_seed(callbacks, seeds is not None)
    chosen, given = seeds_of(seeds, options)
    task, given = with_start(task, given, out, resume)
    name = name_of(algorithm) if isinstance(algorithm, Algorithm) else ""
    method = RunPlan(
        algorithm=algorithm,
        seeds=None if seeds is None else chosen,
        callbacks_of=callbacks_of,
        out=None if out is None else Path(out),
        resume=resume,
        label=label,
    )
    with (
        in_folder(out, [method], f"{label or name} on {task.name}", task, given),
        progress_to(progress, label or name) as tell,
    ):
        if seeds is None:
            try:
                results = run_single(method, task, given, tell)
            except Diverged as error:
                if out is not None and is_first():
                    Result(None, error.history, failure=str(error)).save(out)
                raise
        else:
            with open_units(executor, out) as units, run_concurrently([method], task, given, units) as finish:
                results = Seeds(finish(tell))
    save_results(results, out, f"{results.label} on {task.name}")
    return results


def begin_on_cores(options: RunKeywords) -> None:
    """Let each core of a CPU be a device where the options leave the devices to the layout: before JAX begins."""
    if options.get("devices") is None and options.get("mesh") is None:
        make_cores_devices()


def save_results(results: Result | Seeds | Results, out: str | Path | None, title: str) -> None:
    """Write records, models and a page into the folder of finished runs, if there is one: process 0 of several."""
    if out is not None and is_first():
        results.save(out)
        notes = () if isinstance(results, Result) else results.failures
        notes += results.notes if isinstance(results, Results) else ()
        write_page(Path(out) / PAGE, results.histories, title=title, notes=notes)
    if not isinstance(results, Result):
        results.check_alive()


def seeds_of(seeds: int | Sequence[int] | None, options: RunKeywords) -> tuple[tuple[int, ...], RunOptions]:
    """The seeds of some runs, and their options; without `seeds` the one of the options."""
    given = RunOptions(**options)
    if seeds is None:
        return (given.seed,), given
    if "seed" in options:
        raise InvalidInput("give seed or seeds, not both")
    return check_seeds(seeds), given


def check_outside(task: object, out: object, label: object) -> None:
    if not isinstance(task, Task):
        raise InvalidInput(f"task must be one such as fs.tasks.digits(), not {shown(task)}")
    if out is not None:
        check_path("out", out)
    if out == "":  # as a path it would be the current folder
        raise InvalidInput("out = '' is empty: give a folder, or leave it out")
    if label is not None and not isinstance(label, str):
        raise InvalidInput(f"label = {shown(label)} must be text")


def callbacks_by_seed(callbacks: object, several: bool) -> CallbacksOfSeed:
    """The callbacks of each seed's run, checked; of several seeds from a function of the seed."""
    if several and callable(callbacks):
        if not accepts(callbacks, ["seed"]):
            raise InvalidInput(f"callbacks = {shown(callbacks)} must be a function of the seed")
        return lambda seed: check_callbacks(callbacks(seed))
    checked = check_callbacks(callbacks)
    if several and checked:
        raise InvalidInput(
            "with seeds each run needs its own callbacks: give a function of the seed that makes them, such as "
            "callbacks=lambda seed: [...]"
        )
    return lambda seed: checked


# Several methods on one task, side by side: what `fedsolve compare` does, from Python.


@overload
def compare(
    algorithms: Mapping[str, Algorithm] | Sequence[Algorithm],
    task: Task,
    *,
    weighting: Weighting | None = None,
    seeds: None = None,
    out: str | Path | None = None,
    resume: bool = False,
    progress: Callable[[Progress], None] | bool | None = None,
    callbacks: CallbacksOfMethod | None = None,
    executor: Any = None,
    **options: Unpack[RunKeywords],
) -> Results: ...


@overload
def compare(
    algorithms: Mapping[str, Algorithm] | Sequence[Algorithm],
    task: Task,
    *,
    weighting: Weighting | None = None,
    seeds: int | Sequence[int],
    out: str | Path | None = None,
    resume: bool = False,
    progress: Callable[[Progress], None] | bool | None = None,
    callbacks: CallbacksOfMethodAndSeed | None = None,
    executor: Any = None,
    **options: Unpack[RunKeywords],
) -> Results: ...


@shows_options(swept=False)
def compare(
    algorithms: Mapping[str, Algorithm] | Sequence[Algorithm],
    task: Task,
    *,
    weighting: Weighting | None = None,
    seeds: int | Sequence[int] | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    progress: Callable[[Progress], None] | bool | None = None,
    callbacks: CallbacksOfMethod | CallbacksOfMethodAndSeed | None = None,
    executor: Any = None,
    **options: Unpack[RunKeywords],
) -> Results:
    """Run several methods on one task, with the same seeds.

    On a CPU as many runs at once as there are cores, where the examples take at most 64 MB.

    Args:
        algorithms: the methods, under the labels that tables show, or as a list under their names.
        task: the problem.
        **options: those of a run, as `fedsolve.engine.options.RunOptions` has them.
        weighting: client weights for all methods, `uniform` or by `examples`, so that all minimise the same
            objective; None for each method's own.
        seeds: how many (0, 1, ...), or which, in place of `seed`.
        out: folder for a page of all, and in it a folder for each method with what `fedsolve.run` leaves there.
        resume: continue what `out` holds; methods and seeds that it lacks begin.
        progress: as `fedsolve.run` takes it: by default a line in a terminal and a bar in a notebook. It is told of one
            method after another; of one that ran meanwhile the latest.
        callbacks: a function of a method's label that makes those of its run, as `fedsolve.run` takes them, such as
            `lambda label: [fs.trackers.MLflow()]`; with `seeds` a function of label and seed.
        executor: what runs methods and seeds on other processes or machines, as `fs.Workers` takes it, such as
            `processes:4`; None runs them here. Callbacks are then called on the workers, which have copies of them.

    Returns:
        The `Result` of each method, or its `Seeds`, by label. A run that diverged has no model, and its `failure` says
        why. Where methods weigh clients differently, `notes` says which minimise which objective.

    Raises:
        InvalidInput: arguments that do not fit, two methods of one label, a method that cannot have `weighting`,
            or a folder that holds other runs.
        Diverged: all of them diverged.
        Interrupted: Ctrl-C, after the state was saved in `out`.
        Unavailable: a run was lost with its worker more than `retries` times.
    """
    begin_on_cores(options)
    check_alone("a comparison")
    methods = _labelled(algorithms)
    if weighting is not None:
        methods = {label: with_weighting(label, method, weighting) for label, method in methods.items()}
    check_outside(task, out, None)
    chosen, given = seeds_of(seeds, options)
    task, given = with_start(task, given, out, resume)
    made = _callbacks(callbacks, seeds is not None)
    folders = [None] * len(methods) if out is None else method_folders(Path(out), list(methods))
    begun = [folder is not None and any(folder.glob(f"**/{RUN.file}")) for folder in folders]
    if resume and not any(begun):
        raise InvalidInput(f"resume = True, and out = {shown(out)} holds nothing to resume")
    if out is not None and any(begun) and not resume:
        raise occupied_error(Path(out), "comparison")
    check_all_begin(methods.values(), task, given)
    found: list[Result | Seeds] = []
    seeds_of_each = None if seeds is None else chosen
    runs = [
        RunPlan(
            algorithm=algorithm,
            seeds=seeds_of_each,
            callbacks_of=partial(made, label),
            out=folder,
            resume=goes_on,
            label=label,
        )
        for (label, algorithm), folder, goes_on in zip(methods.items(), folders, begun, strict=True)
    ]
    title = f"{', '.join(methods)} on {task.name}"
    with (
        in_folder(out, runs, title, task, given),
        open_units(executor, out) as units,
        scheduled_runs(runs, task, given, units) as finish,
    ):
        for label in methods:
            with progress_to(progress, label) as tell:
                try:
                    of_method = finish(tell)
                except Interrupted:
                    done = f"{label} interrupted, {len(found)} of {len(methods)} methods ended"
                    raise Interrupted(how_to_resume(out, done)) from None
            found.append(of_method[0] if seeds_of_each is None else Seeds(of_method))
    results = Results(found, tuple(different_objectives(methods, "weighting='uniform'")))
    save_results(results, out, title)
    return results


def _labelled(algorithms: object) -> dict[str, Algorithm]:
    if isinstance(algorithms, Mapping):
        methods = dict(algorithms)
    elif isinstance(algorithms, Sequence) and not isinstance(algorithms, str):
        names = [name_of(a) if isinstance(a, Algorithm) else shown(a) for a in algorithms]
        for name in names:
            if names.count(name) > 1:
                raise InvalidInput(f"two methods are called {name}: give them as {{label: method}}")
        methods = dict(zip(names, algorithms, strict=True))
    else:
        raise InvalidInput(f"algorithms = {shown(algorithms)} must be methods by label, or a list of them")
    if len(methods) < 2:
        raise InvalidInput("nothing to compare: give at least two methods, or use fs.run")
    for label, method in methods.items():
        if not isinstance(label, str) or not label.strip():
            raise InvalidInput(f"a method is called {shown(label)}: a label must be text")
        if not isinstance(method, Algorithm):
            raise InvalidInput(f"{label}: {shown(method)} is not a method such as FedAvg(client_lr=0.1)")
    return methods


def _callbacks(callbacks: object, by_seed: bool) -> CallbacksOfMethodAndSeed:
    # what makes the callbacks of a run, from its label and, where the user's function takes it, its seed;
    # checked
    if callbacks is None:
        return lambda label, seed: ()
    names = ("label", "seed") if by_seed else ("label",)
    if not accepts(callbacks, names):
        raise InvalidInput(
            f"callbacks = {shown(callbacks)} must be a function of {' and '.join(names)} that makes those of each "
            f"run, such as callbacks=lambda {', '.join(names)}: [...]"
        )
    return lambda *of: check_callbacks(callbacks(*of[: len(names)]))
