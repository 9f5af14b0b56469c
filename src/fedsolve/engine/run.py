"""A run of one method on one task, with one seed or several."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Unpack, overload

from fedsolve.config.signatures import takes
from fedsolve.core.algorithm import Algorithm, name_of
from fedsolve.core.errors import InvalidInput, check_path, shown
from fedsolve.core.xla.compiler import make_cores_devices
from fedsolve.engine.compute.processes import is_first
from fedsolve.engine.options import RunKeywords, RunOptions, shows_options
from fedsolve.engine.outcomes.several_methods import Results
from fedsolve.engine.outcomes.several_seeds import Seeds
from fedsolve.engine.progress import Progress, progress_to
from fedsolve.engine.records.configuration import writing_config
from fedsolve.engine.result import Result
from fedsolve.engine.running.in_turn import running
from fedsolve.engine.running.method_runs import MethodRuns
from fedsolve.engine.running.page_so_far import page_of_methods
from fedsolve.engine.sweep.grid import check_seeds
from fedsolve.report.page import PAGE, write_page
from fedsolve.results.callbacks import Callback, CallbacksOfSeed, check_callbacks
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

    Returns:
        The final model, the evaluations and the log of every round; with `seeds`, those of each as `Seeds`.

    Raises:
        InvalidInput: arguments that do not fit, unusable data, or a checkpoint of another run.
        Diverged: a round in which every client's update was not finite; of several seeds, in all of them.
        Interrupted: Ctrl-C, after the state was saved in `out`.
    """
    begin_on_cores(options)
    check_outside(out, label)
    callbacks_of = callbacks_by_seed(callbacks, seeds is not None)
    chosen, given = seeds_of(seeds, options)
    name = name_of(algorithm) if isinstance(algorithm, Algorithm) else ""
    method = MethodRuns(
        algorithm=algorithm,
        seeds=None if seeds is None else chosen,
        callbacks_of=callbacks_of,
        out=None if out is None else Path(out),
        resume=resume,
        label=label,
    )
    with (
        writing_config(out, {label or name: algorithm}, task, given, method.seeds),
        page_of_methods(out, [method], f"{label or name} on {task.name}", task, given),
        progress_to(progress, label or name) as tell,
        running([method], task, given) as finish,
    ):
        runs = finish(tell)
        if seeds is None and runs[0].failure:
            if out is not None and is_first():
                runs[0].save(out)
            Seeds(runs).check_alive()
    results = runs[0] if seeds is None else Seeds(runs)
    save_results(results, out, f"{results.label} on {task.name}")
    return results


def begin_on_cores(options: RunKeywords) -> None:
    """Let each core of a CPU be a device where the options leave the devices to the layout: before JAX begins."""
    if options.get("devices") is None and options.get("mesh") is None:
        make_cores_devices()


def save_results(results: Result | Seeds | Results, out: str | Path | None, title: str) -> None:
    """Write records, models and a page into the folder of finished runs, if there is one: process 0 of several.

    Raises:
        InvalidInput: the folder cannot be written.
        Diverged: all runs of several diverged; their records are written.
    """
    if out is not None and is_first():
        results.save(out)
        notes = () if isinstance(results, Result) else results.failures
        notes += results.notes if isinstance(results, Results) else ()
        write_page(Path(out) / PAGE, results.histories, title=title, notes=notes)
    if not isinstance(results, Result):
        results.check_alive()


def seeds_of(seeds: int | Sequence[int] | None, options: RunKeywords) -> tuple[tuple[int, ...], RunOptions]:
    """The seeds of some runs, and their options; without `seeds` the one of the options.

    Raises:
        InvalidInput: both are given, or what is no seed.
    """
    given = RunOptions(**options)
    if seeds is None:
        return (given.seed,), given
    if "seed" in options:
        raise InvalidInput("give seed or seeds, not both")
    return check_seeds(seeds), given


def check_outside(out: object, label: object) -> None:
    """Raise `InvalidInput` unless a run's folder and its label can be used."""
    if out is not None:
        check_path("out", out)
    if out == "":  # as a path it would be the current folder
        raise InvalidInput("out = '' is empty: give a folder, or leave it out")
    if label is not None and not isinstance(label, str):
        raise InvalidInput(f"label = {shown(label)} must be text")


def callbacks_by_seed(callbacks: object, several: bool) -> CallbacksOfSeed:
    """The callbacks of each seed's run, checked: those of one run as they are, of several from a function of the seed.

    Raises:
        InvalidInput: what is given does not fit.
    """
    if several and callable(callbacks):
        if not takes(callbacks, ["seed"]):
            raise InvalidInput(f"callbacks = {shown(callbacks)} must be a function of the seed")
        return lambda seed: check_callbacks(callbacks(seed))
    checked = check_callbacks(callbacks)
    if several and checked:
        raise InvalidInput(
            "with seeds each run needs its own callbacks: give a function of the seed that makes them, such as "
            "callbacks=lambda seed: [...]"
        )
    return lambda seed: checked
