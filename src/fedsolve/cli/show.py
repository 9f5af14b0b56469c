"""`fedsolve show`: how a run, a comparison or a sweep stands, and where its page and plots are."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from fedsolve.cli.configuration.config import CONFIG, Config, load
from fedsolve.cli.configuration.prepare import Prepared
from fedsolve.cli.configuration.trust import imports_document, imports_lines
from fedsolve.cli.configuration.typed import AsJson, names_of
from fedsolve.cli.console import emit, emit_json, emit_table, say
from fedsolve.cli.folders import FLOWER, command_of, document, how_to_resume, print_result, run_folders
from fedsolve.cli.progress import Lines
from fedsolve.config.references import is_reference
from fedsolve.core.errors import Interrupted, InvalidInput, unknown
from fedsolve.engine.results import Result, Results
from fedsolve.engine.running_page import Standing, standing
from fedsolve.engine.scheduler import Finish, MethodRuns, run_one
from fedsolve.folders.files import held_within
from fedsolve.folders.run_folder import RUN
from fedsolve.report.table import result_rows
from fedsolve.report.trackers import tracker
from fedsolve.results.history import History, over_seeds
from fedsolve.results.metrics import summary
from fedsolve.results.record_files import read_history
from fedsolve.results.sweep import SUMMARY

_SECONDS_BETWEEN = 2.0
_PATIENCE = 30.0
"""Between the runs of a method nothing may run for a while, and before the first."""


class Shown(NamedTuple):
    """What the table of runs shows besides what it always has."""

    metrics: Sequence[str] | None
    target: float | None


def follow_command(folder: Path, as_json: bool, metrics: str | None, target: float | None) -> None:
    """Print how it stands whenever that changes, until it has ended, or nothing has run there for a while.

    Raises:
        Interrupted: Ctrl-C; what runs goes on.
    """
    before, ran = "", time.monotonic()
    try:
        while True:
            running = bool(held_within(folder))  # looked at first: what ends meanwhile is shown as ended
            with contextlib.redirect_stdout(io.StringIO()) as now:
                over = show_command(folder, as_json, metrics, target)
            if now.getvalue() != before:
                before = now.getvalue()
                show_command(folder, as_json, metrics, target)
            ran = time.monotonic() if running else ran
            if not running and (over or time.monotonic() - ran > _PATIENCE):
                return
            time.sleep(_SECONDS_BETWEEN)
    except KeyboardInterrupt:
        raise Interrupted("no longer followed; what runs goes on") from None


def show_command(
    folder: Path, as_json: bool, metrics: str | None = None, target: float | None = None
) -> bool:
    """Print how a run, a comparison or a sweep stands; of runs with the metrics and the target that are typed.

    Returns:
        Whether it has ended.
    """
    shown = Shown(names_of(metrics), target)
    if not (folder / CONFIG).is_file():
        if (history := read_history(folder)) is not None:  # a run on a real federation
            _show_record(folder, history, as_json, shown)
            return True
        raise InvalidInput(f"{folder} holds no run: it has no {CONFIG}")
    config = load(folder)
    if config.sweep is not None:
        from fedsolve.cli.sweep_result import show_sweep

        if metrics is not None or target is not None:
            raise InvalidInput(f"{folder} holds a sweep: --metrics and --target are for runs and comparisons")
        show_sweep(config, folder, as_json)
        return (folder / SUMMARY).exists()
    standings = [
        standing(name, label, place, config.task, config.run.rounds)
        for label, places in run_folders(folder, config).items()
        for name, place in places.items()
    ]
    over = all(s.status in ("finished", "diverged") for s in standings)
    if as_json:
        about = _document(folder, config.task, config.run.rounds, standings, shown)
        emit_json(about | imports_document(config))
        return over
    histories = [s.history for s in standings if s.history is not None]
    title = f"{config.task}, {config.run.rounds} rounds"
    print_result(histories, _lines(config, folder, standings), folder, title, *shown)
    return over


def _lines(config: Config, folder: Path, standings: list[Standing]) -> list[str]:
    """What is said below the table: runs that are not finished and how they go on, what has no name, and files."""
    lines = [_line(s, config.run.rounds) for s in standings if s.status != "finished"]
    statuses = {s.status for s in standings}
    if statuses & {"unfinished", "waiting"} and "running" not in statuses:
        demo = (folder / FLOWER).is_dir()
        again = "a demo cannot be resumed: start a new one with `fedsolve federate demo`"
        in_python = "resume with resume=True in the Python program that began it"
        how = in_python if config.unnamed else how_to_resume(command_of(config), folder)
        lines.append(again if demo else how)
    if config.unnamed:
        lines.append("by Python, as objects that have no names in a configuration:")
        lines += [f"  {what}: {words}" for what, words in config.unnamed.items()]
    return lines + imports_lines(config)


def _show_record(folder: Path, history: History, as_json: bool, shown: Shown) -> None:
    """A finished record alone, as a deployment leaves it."""
    rounds = int(history.evaluations["round"][-1])
    if as_json:
        standings = [Standing(history.label, "finished", history)]
        emit_json(_document(folder, history.task, rounds, standings, shown))
    else:
        print_result([history], [], folder, f"{history.task}, {rounds} rounds", *shown)


def _line(of: Standing, rounds: int) -> str:
    if of.status == "diverged":
        return f"{of.label}: diverged: {of.message}"
    return f"{of.label}: {of.status}, {of.done} of {rounds} rounds"


def _document(
    folder: Path, task: str, rounds: int, standings: list[Standing], shown: Shown
) -> dict[str, Any]:
    methods = [
        {
            "label": s.label,
            "status": s.status,
            "rounds": s.done,
            "result": None if s.history is None else result_rows([s.history], shown.target, shown.metrics)[0],
            "error": s.message or None,
        }
        for s in standings
    ]
    statuses = {s.status for s in standings}
    status = "finished" if statuses == {"finished"} else "running" if "running" in statuses else "unfinished"
    return document(status, folder, task, rounds, methods=methods)


# One method of a configuration, run in its folder with one seed or several.


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


# `fedsolve list` and `fedsolve cite`: what there is, with one line on each and its paper, and BibTeX.


_JAX = "bradbury2018jax"
_LAST = {
    "geometries": "Operations",
    "schedules": "Parameters",
    "communication": "Sum enough",
}  # what the last column is; else the paper


def _geometries() -> list[dict[str, Any]]:
    from fedsolve.geometry import GEOMETRIES
    from fedsolve.geometry.blocks import OPERATIONS

    return [
        {
            "name": name,
            "summary": _summary(cls),
            "citation": "",
            "operations": [operation for operation in OPERATIONS if hasattr(cls, operation)],
            "last": ", ".join(operation for operation in OPERATIONS if hasattr(cls, operation)),
            "parameters": _parameters(cls),
        }
        for name, cls in GEOMETRIES.items()
    ]


def _schedules() -> list[dict[str, Any]]:
    from fedsolve.config.schedule_names import SCHEDULES, OptaxFunction

    rows = []
    for name, made_by in SCHEDULES.items():
        if isinstance(made_by, OptaxFunction):
            summary = f"optax.{made_by.function}: {made_by.summary}"
            parameters = list(made_by.signature())
        else:
            summary, parameters = _summary(made_by), _parameters(made_by)
        row = {"name": name, "summary": summary, "citation": "", "parameters": parameters}
        rows.append(row | {"last": ", ".join(parameters)})
    return rows


def _experiments() -> list[dict[str, Any]]:
    from fedsolve.cli.reproduce import time_of
    from fedsolve.studies.reproduce import PROGRAMS, entries, find, repository

    rows = []
    if repository() is None:
        say(
            f"the studies of the papers are in {PROGRAMS}/ of fedsolve's repository: list them in a clone of it"
        )
    for name in entries():
        try:
            found = find(name)
        except InvalidInput as error:  # of another distribution: it hides no one else's
            say(f"left out: {error}")
            continue
        summary = " ".join(
            filter(None, (found.summary.rstrip("."), f"({time_of(found)})" * bool(time_of(found))))
        )
        rows.append({"name": name, "summary": summary, "citation": found.citation, "minutes": found.minutes})
    return rows


def _algorithms() -> list[dict[str, Any]]:
    from fedsolve.cli.configuration.prepare import resolve_settings
    from fedsolve.config.build import own_arguments
    from fedsolve.config.catalogue import ALGORITHMS, WRAPPERS

    rows = [
        {
            "name": name,
            "summary": entry.summary,
            "citation": entry.citation,
            "settings": resolve_settings(name, {}),
        }
        for name, entry in ALGORITHMS.items()
    ]
    for name, entry in WRAPPERS.items():
        row = {"name": f"{name}+X", "summary": f"{entry.summary}, around any method X, as {name}+FedAdam"}
        settings = {k: a.default for k, a in own_arguments(entry).items() if not a.is_needed}
        rows.append({**row, "citation": entry.citation, "settings": settings})
    return rows


def _communication() -> list[dict[str, Any]]:
    from fedsolve.deploy.communication import examples, payload

    rows = []
    for name, algorithm in examples().items():
        found = payload(algorithm)
        row = {
            "name": name,
            "summary": found.summary,
            "citation": "",
            "last": f"no: {found.not_a_sum}" if found.not_a_sum else "yes",
            "sum_is_enough": not found.not_a_sum,
            "down": [f._asdict() for f in found.down],
            "up": [f._asdict() for f in found.up],
        }
        rows.append(row)
    return rows


def _tasks() -> list[dict[str, Any]]:
    from fedsolve.cli.configuration.prepare import task_defaults
    from fedsolve.tasks.catalogue import TASKS

    return [
        {
            "name": name,
            "summary": entry.summary,
            "citation": entry.citation,
            "options": task_defaults(name),
        }
        for name, entry in TASKS.items()
    ]


def _partitions() -> list[dict[str, Any]]:
    from fedsolve.data.partitions import PARTITIONS

    return [
        {
            "name": name,
            "summary": cls.summary,
            "citation": cls.citation,
            "parameters": _parameters(cls),
        }
        for name, cls in PARTITIONS.items()
    ]


def _summary(cls: Any) -> str:
    return (cls.__doc__ or "").strip().splitlines()[0]


def _parameters(cls: Any) -> list[str]:
    return [f.name for f in dataclasses.fields(cls)]


KINDS: dict[str, Callable[[], list[dict[str, Any]]]] = {
    "algorithms": _algorithms,
    "tasks": _tasks,
    "partitions": _partitions,
    "geometries": _geometries,
    "schedules": _schedules,
    "experiments": _experiments,
    "communication": _communication,
}
"""What can be listed, and its rows."""


def complete_kind(incomplete: str) -> list[str]:
    """The kinds that begin so, for a shell."""
    return [kind for kind in KINDS if kind.startswith(incomplete)]


def list_(
    kind: Annotated[
        str,
        typer.Argument(metavar="KIND", help=f"One of {', '.join(KINDS)}.", autocompletion=complete_kind),
    ],
    as_json: AsJson = False,
) -> None:
    """List all names of one kind, such as methods, tasks or partitions, one per line."""
    kind = {"travels": "communication"}.get(kind, kind)  # its former name
    if kind not in KINDS:
        raise unknown("list", kind, KINDS)
    from fedsolve.config.catalogue import short

    rows = KINDS[kind]()
    if as_json:
        emit_json([{k: v for k, v in row.items() if k != "last"} | _paper(row["citation"]) for row in rows])
        return
    emit_table(
        ("Name", "What it is", _LAST.get(kind, "Paper")),
        [(r["name"], r["summary"], r["last"] if kind in _LAST else short(r["citation"])) for r in rows],
    )


def _paper(key: str) -> dict[str, str]:
    from fedsolve.config.catalogue import short, title

    return {"paper": short(key), "title": title(key)} if key else {}


def cite(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="TOML file, or the folder of a run.")],
) -> None:
    """Print the BibTeX entries for a run: its methods, task, partition and JAX."""
    from fedsolve.cli.configuration.config import load
    from fedsolve.cli.configuration.trust import references_of
    from fedsolve.config.catalogue import BIBTEX

    loaded = load(config)
    emit("\n\n".join(BIBTEX[key] for key in keys_of(loaded)))
    if own := [f"the {kind} {reference}" for reference, kind in references_of(loaded).items()]:
        say(
            f"note: your own code is not imported, and no paper of it is known: {', '.join(own)}; add its BibTeX"
        )


def keys_of(config: Config) -> list[str]:
    """Citation keys of what a configuration uses: its methods, task, partition, and JAX.

    Raises:
        InvalidInput: an unknown method, task or partition.
    """
    from fedsolve.cli.configuration.prepare import task_defaults
    from fedsolve.config.build import citations
    from fedsolve.data.partitions import as_partition
    from fedsolve.tasks.catalogue import entry

    keys = [key for method in config.method for key in citations(method.name)]
    options = config.task_options
    if not is_reference(config.task):  # the user's own code is not imported to print papers
        keys.append(entry(config.task).citation)
        options = task_defaults(config.task) | options
    partition: Any = options.get("partition")
    if partition is not None:
        keys.append(as_partition(partition).citation)
    return [key for key in dict.fromkeys([*keys, _JAX]) if key]
