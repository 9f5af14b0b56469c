"""One method of a configuration, run in its folder with one seed or several."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from fedsolve.cli.configuration.prepare import Prepared
from fedsolve.cli.terminal.folders import run_folders
from fedsolve.cli.terminal.progress import Lines
from fedsolve.engine.results import Result, Results
from fedsolve.engine.scheduler import Finish, MethodRuns, run_one
from fedsolve.folders.run_folder import RUN
from fedsolve.report.trackers import tracker
from fedsolve.results.history import over_seeds
from fedsolve.results.metrics import summary


def runs_of(prepared: Prepared, index: int, folder: Path, track: Sequence[str] = ()) -> MethodRuns:
    """The runs of a method of a configuration, in its folder, from its checkpoints if it has some."""
    method = prepared.config.method[index]
    return MethodRuns(
        algorithm=prepared.algorithms[index],
        seeds=prepared.seeds,
        callbacks_of=lambda seed: [tracker(name, folder) for name in track],
        out=folder,
        resume=any((place / RUN.file).exists() for place in _places(prepared, index, folder)),
        label=method.shown,
    )


def finish_method(finish: Finish, prepared: Prepared, index: int, folder: Path, display: Lines) -> Results:
    """Wait for the runs of the method whose turn it is, show how far they are, and record them in its folder."""
    method = prepared.config.method[index]
    label = method.shown
    display.begin(label)
    runs = finish(display)
    results = Results(tuple(_with_settings(run, prepared.settings(method)) for run in runs))
    for run, place in zip(results.runs, _places(prepared, index, folder), strict=True):
        run.save(place)
    if results.failures:
        diverged = "diverged" if len(runs) == 1 else f"{len(results.failures)} of {len(runs)} seeds diverged"
        display.end(label, diverged, done=False)
    else:
        (method_found,) = over_seeds(results.histories)
        final: dict[str, Any] = {name: x[-1] for name, x in method_found.history.evaluations.items()}
        display.end(label, f"finished, {summary(final)}")
    return results


def _places(prepared: Prepared, index: int, folder: Path) -> Collection[Path]:
    """The folder of each run of a method."""
    method = prepared.config.method[index]
    return run_folders(folder, prepared.config.model_copy(update={"method": [method]}))[method.shown].values()


def _with_settings(run: Result, settings: dict[str, Any]) -> Result:
    """A run whose record has the configuration's settings, with its own seed."""
    own = settings | {"seed": run.history.settings["seed"]}
    return dataclasses.replace(run, history=dataclasses.replace(run.history, settings=own))


def check_trackers(names: Sequence[str]) -> None:
    """Raise `InvalidInput` for a tracker that there is not, or whose package is missing, before anything runs."""
    for name in names:
        tracker(name, Path())


def follow(prepared: Prepared, resume: Path | None) -> int:
    """What the other processes of a run do: its rounds, and nothing of what is written and printed."""
    goes_on = resume is not None and (resume / RUN.file).exists()
    method = MethodRuns(algorithm=prepared.algorithms[0], out=resume, resume=goes_on)
    run_one(method, prepared.task, prepared.options)
    return 0
