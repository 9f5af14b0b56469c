"""`fedsolve run`: one method on one task, into a folder that can be resumed and run again."""

from __future__ import annotations

import contextlib
import dataclasses
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fedsolve.cli.configuration.config import Config
from fedsolve.cli.configuration.prepare import Prepared, prepare
from fedsolve.cli.configuration.requests import Request, RunRequest
from fedsolve.cli.configuration.trust import trust_words
from fedsolve.cli.terminal.console import emit, emit_json, emit_rich, say
from fedsolve.cli.terminal.folders import command_of, new_folder, run_folders, save_config, undone_if_refused
from fedsolve.cli.terminal.outputs import report_files, write_report
from fedsolve.cli.terminal.progress import ProgressDisplay, open_display
from fedsolve.cli.watch.commands import watched
from fedsolve.core.errors import Diverged, Interrupted
from fedsolve.engine.compute.processes import is_first
from fedsolve.engine.multi_seed import run_seeds
from fedsolve.engine.records.identity import provenance
from fedsolve.engine.result import Result, Results
from fedsolve.engine.run import run_one
from fedsolve.folders.lock import locked
from fedsolve.folders.run_folder import RUN
from fedsolve.report.table import result_rows, result_table
from fedsolve.report.trackers import Tracker, tracker
from fedsolve.results.metrics import summary
from fedsolve.results.seeds import over_seeds


@contextlib.contextmanager
def begun(request: Request, config: Config, stem: str, what: str = "") -> Iterator[Path]:
    """The folder of what is begun within, with its configuration; as it was found if that is refused.

    Args:
        request: what was typed: the folder to write or to go on in, and whether words are printed.
        config: the resolved configuration.
        stem: the name of a new folder in `runs`, without its number.
        what: what is begun, in words that are printed; '' for none.

    Raises:
        InvalidInput: the folder holds a run already, or cannot be made.
    """
    folder = request.resume or new_folder(request.out, stem, command_of(config))
    with undone_if_refused(folder, fresh=request.out is None and request.resume is None):
        with locked(folder):
            save_config(folder, config, provenance())
        if what and not request.as_json:
            say(f"{what}, into {folder}")
        yield folder


def run_command(config: Config, request: RunRequest) -> int:
    """Run or continue a configuration of one method; write its folder and print its result.

    Returns:
        The exit code: 3 if a seed diverged; where all did, `Diverged` is raised.
    """
    track = request.track or ()
    check_trackers(track)
    prepared = prepare(config)
    config = prepared.config
    method = config.method[0]
    if not is_first():
        return _follow(prepared, request.resume)
    what = f"{method.shown} on {config.task}"
    with (
        begun(request, config, f"{config.task}-{method.shown}", what) as folder,
        watched(folder, request.watch),
        open_display([method.shown], rounds_of(prepared)) as display,
    ):
        try:
            results = run_method(prepared, 0, folder, display, track)
            results.check_alive()
        except (Interrupted, KeyboardInterrupt):
            how = how_to_resume("run", folder, config)
            raise Interrupted(f"interrupted {where(display)}; {how}") from None
    histories, failures = results.histories, list(results.failures)
    write_report(folder, config, prepared.task, histories, failures, results.runs[0].timeline)
    notes = [*failures, *dict.fromkeys(note for h in histories for note in h.notes)]
    if request.as_json:
        emit_json(
            {
                "status": "diverged" if failures else "finished",
                "folder": str(folder),
                "task": config.task,
                "rounds": config.run.rounds,
                "result": result_rows(histories)[0],
                "notes": notes,
                "files": report_files(folder),
            }
        )
    else:
        emit_rich(result_table(histories))
        print_notes_and_files(notes, folder)
    return Diverged.exit_code if failures else 0


def _follow(prepared: Prepared, resume: Path | None) -> int:
    """What the other processes of a run do: its rounds, and nothing of what is written and printed."""
    goes_on = resume is not None and (resume / RUN.file).exists()
    run_one(
        prepared.algorithms[0],
        prepared.task,
        prepared.options,
        out=resume,
        resume=goes_on,
        label=None,
        progress=None,
    )
    return 0


def run_method(
    prepared: Prepared, index: int, folder: Path, display: ProgressDisplay, track: Sequence[str] = ()
) -> Results:
    """Run one method of a configuration in its folder, from its checkpoints if it has some, and record it."""
    method, algorithm = prepared.config.method[index], prepared.algorithms[index]
    label = method.shown
    display.begin(label)
    places = run_folders(folder, prepared.config.model_copy(update={"method": [method]}))[label].values()
    resume = any((place / RUN.file).exists() for place in places)
    task, options = prepared.task, prepared.options

    def tracked(seed: int) -> list[Tracker]:
        return [tracker(name, folder) for name in track]

    if prepared.seeds is not None:
        runs = run_seeds(
            algorithm, task, options, prepared.seeds,
            out=folder, resume=resume, label=label, progress=display, callbacks_of=tracked,
        )  # fmt: skip
    else:
        try:
            runs = (
                run_one(
                    algorithm, task, options, out=folder, resume=resume, label=label, progress=display,
                    callbacks=tracked(options.seed),
                ),
            )  # fmt: skip
        except Diverged as error:
            runs = (Result(None, error.history, failure=str(error)),)
    results = Results(tuple(_with_settings(run, prepared.settings(method)) for run in runs))
    for run, place in zip(results.runs, places, strict=True):
        run.save(place)
    if results.failures:
        diverged = "diverged" if len(runs) == 1 else f"{len(results.failures)} of {len(runs)} seeds diverged"
        display.end(label, diverged, done=False)
    else:
        (method_found,) = over_seeds(results.histories)
        final: dict[str, Any] = {name: x[-1] for name, x in method_found.history.evaluations.items()}
        display.end(label, f"finished, {summary(final)}")
    return results


def _with_settings(run: Result, settings: dict[str, Any]) -> Result:
    """A run whose record has the configuration's settings, with its own seed."""
    own = settings | {"seed": run.history.settings["seed"]}
    return dataclasses.replace(run, history=dataclasses.replace(run.history, settings=own))


def check_trackers(names: Sequence[str]) -> None:
    """Raise `InvalidInput` for a tracker that there is not, or whose package is missing, before anything runs."""
    for name in names:
        tracker(name, Path())


def rounds_of(prepared: Prepared) -> int:
    """Rounds of a method, of all its seeds together."""
    return prepared.options.rounds * len(prepared.seeds or (0,))


def where(display: ProgressDisplay) -> str:
    """How far the current method is, in words."""
    if display.last is None:
        return "before its first round ended"
    return f"after round {display.last.round} of {display.last.rounds}"


def how_to_resume(command: str, folder: Path, config: Config | None = None) -> str:
    """The command that continues a run or a comparison; with the configuration that ran, what it has to trust."""
    trusted = "" if config is None else trust_words(config, folder)
    return f"resume with: fedsolve {command} --resume {shlex.quote(str(folder))}{trusted}"


def print_notes_and_files(notes: list[str], folder: Path) -> None:
    """Remarks on the result, and where its page and plots are."""
    lines = [f"note: {note}" for note in notes]
    lines += [f"{kind:8} {path}" for kind, path in report_files(folder).items()]
    emit("\n".join(lines))
