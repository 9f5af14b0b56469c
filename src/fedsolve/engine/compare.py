"""Several methods on one task, side by side: what `fedsolve compare` does, from Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Unpack, overload

from fedsolve.config.signatures import takes
from fedsolve.config.weighting import different_objectives, with_weighting
from fedsolve.core.algorithm import Algorithm, name_of
from fedsolve.core.errors import Interrupted, InvalidInput, shown
from fedsolve.core.types import Weighting
from fedsolve.engine.compute.processes import check_alone
from fedsolve.engine.options import RunKeywords, shows_options
from fedsolve.engine.outcomes.several_methods import Results
from fedsolve.engine.outcomes.several_seeds import Seeds
from fedsolve.engine.prepare import check_all_begin
from fedsolve.engine.progress import Progress, progress_to
from fedsolve.engine.records.configuration import writing_config
from fedsolve.engine.result import Result
from fedsolve.engine.run import begin_on_cores, check_callbacks, check_outside, save_results, seeds_of
from fedsolve.engine.running.in_turn import running
from fedsolve.engine.running.method_runs import MethodRuns
from fedsolve.engine.running.page_so_far import page_of_methods
from fedsolve.folders.run_folder import RUN, how_to_resume, occupied
from fedsolve.results.callbacks import CallbacksOfMethod, CallbacksOfMethodAndSeed
from fedsolve.results.record_files import method_folders
from fedsolve.tasks.task import Task


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

    Returns:
        The `Result` of each method, or its `Seeds`, by label. A run that diverged has no model, and its `failure` says
        why. Where methods weigh clients differently, `notes` says which minimise which objective.

    Raises:
        InvalidInput: arguments that do not fit, two methods of one label, a method that cannot have `weighting`,
            or a folder that holds other runs.
        Diverged: all of them diverged.
        Interrupted: Ctrl-C, after the state was saved in `out`.
    """
    begin_on_cores(options)
    check_alone("a comparison")
    methods = _labelled(algorithms)
    if weighting is not None:
        methods = {label: with_weighting(label, method, weighting) for label, method in methods.items()}
    check_outside(out, None)
    chosen, given = seeds_of(seeds, options)
    made = _callbacks(callbacks, seeds is not None)
    folders = [None] * len(methods) if out is None else method_folders(Path(out), list(methods))
    begun = [folder is not None and any(folder.glob(f"**/{RUN.file}")) for folder in folders]
    if resume and not any(begun):
        raise InvalidInput(f"resume = True, and out = {shown(out)} holds nothing to resume")
    if out is not None and any(begun) and not resume:
        raise occupied(Path(out), "comparison")
    check_all_begin(methods.values(), task, given)
    found: list[Result | Seeds] = []
    seeds_of_each = None if seeds is None else chosen
    runs = [
        MethodRuns(
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
        writing_config(out, methods, task, given, seeds_of_each),
        page_of_methods(out, runs, title, task, given),
        running(runs, task, given) as finish,
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
    """The methods by label."""
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
    """What makes the callbacks of a run, from its label and, where the user's function takes it, its seed; checked."""
    if callbacks is None:
        return lambda label, seed: ()
    names = ("label", "seed") if by_seed else ("label",)
    if not takes(callbacks, names):
        raise InvalidInput(
            f"callbacks = {shown(callbacks)} must be a function of {' and '.join(names)} that makes those of each "
            f"run, such as callbacks=lambda {', '.join(names)}: [...]"
        )
    return lambda *of: check_callbacks(callbacks(*of[: len(names)]))
