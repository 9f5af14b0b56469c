"""`fedsolve federate evaluate` and `fedsolve federate statistics`: runs of an app that train nothing."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from fedsolve.cli.federation.flower_commands import FlowerCommands
from fedsolve.cli.federation.following import follow
from fedsolve.cli.terminal.console import emit, emit_json, emit_rich, say
from fedsolve.cli.terminal.folders import new_folder
from fedsolve.cli.terminal.outputs import report_files
from fedsolve.core.errors import FedsolveError, Interrupted, InvalidInput
from fedsolve.data.column_statistics.report import Statistics
from fedsolve.deploy.flower import check_flower
from fedsolve.deploy.jobs.job import EVALUATE, STATISTICS, STATISTICS_FILE, Job
from fedsolve.deploy.jobs.statistics_file import SCHEMA_FILE, column_words, read_statistics
from fedsolve.deploy.run_log import FAILED
from fedsolve.folders.interrupt import Interruptible
from fedsolve.folders.untrusted import read_text
from fedsolve.report.number_text import number_writer
from fedsolve.report.table import narrow_table
from fedsolve.results.clients import ClientMetrics, read_client_metrics
from fedsolve.results.history import History
from fedsolve.results.record_files import read_history

T = TypeVar("T")
_LARGEST = 2**20  # bytes of an app's pyproject.toml


@dataclass(frozen=True)
class Submitted:
    """Where a job is submitted and what else its run is told.

    Attributes:
        app: folder of the app.
        connection: name of the SuperLink in Flower's configuration, '' for its default.
        run_config: further configuration, as `flwr run --run-config` takes it.
        out: the run's folder; None for the next free one in `runs`.
    """

    app: Path
    connection: str
    run_config: str
    out: Path | None


def evaluate_command(submitted: Submitted, model: Path, metrics: str | None, as_json: bool) -> None:
    """Let the connected clients measure a saved model, and print what they measured.

    Raises:
        InvalidInput: no such model or app, or Flower does not take the run.
        Unavailable: the run failed; its reason.
        Interrupted: Ctrl-C; the run is stopped.
    """
    if not model.exists():
        raise InvalidInput(f"{model}: no such file or folder; give the folder of a run, or a model's file")
    config = {"model": str(model.absolute())} | ({} if metrics is None else {"client-metrics": metrics})
    folder, history = _run(submitted, EVALUATE, config, read_history)
    measured = {
        part: found
        for part in ("train", "validation")
        for found in read_client_metrics(folder, validation=part == "validation").values()
    }
    if as_json:
        emit_json(_evaluation_document(folder, history, measured))
        return
    for part, clients in measured.items():
        title = f"{history.words()}" if part == "train" else "on validation examples"
        emit_rich(_metrics_table(history, clients, part, title))
        emit_rich(_clients_table(clients, part))
    emit("\n".join(f"{kind:8} {path}" for kind, path in report_files(folder).items()))


def statistics_command(
    submitted: Submitted, columns: str, min_clients: int, min_rows: int, as_json: bool
) -> None:
    """Print statistics of the clients' columns.

    Raises:
        InvalidInput: columns that are none, no such app, or Flower does not take the run.
        Unavailable: the run failed; its reason.
        Interrupted: Ctrl-C; the run is stopped.
    """
    config = {"columns": columns, "min-clients": min_clients, "min-rows": min_rows}
    Job.of({"job": STATISTICS, **config})  # refuses here what the server would

    def look(folder: Path) -> Statistics | None:
        path = folder / STATISTICS_FILE
        return read_statistics(path) if path.exists() else None

    folder, found = _run(submitted, STATISTICS, config, look)
    files = {"statistics": str(folder / STATISTICS_FILE), "schema": str(folder / SCHEMA_FILE)}
    if as_json:
        known = {name: vars(column) for name, column in found.columns.items()}
        about = {"status": "finished", "folder": str(folder), "columns": known}
        emit_json({**about, "unreported": dict(found.unreported), "notes": found.notes, "files": files})
        return
    cells = [
        [name, f"{column.clients:,}", f"{column.rows:,}", f"{column.missing:,}", column_words(column)]
        for name, column in found.columns.items()
    ]
    emit_rich(narrow_table(["column", "clients", "rows", "missing", "statistics"], cells))
    lines = [f"{name} is not reported: {why}" for name, why in found.unreported.items()]
    lines += [f"note: {note}" for note in found.notes]
    emit("\n".join([*lines, *(f"{kind:10} {path}" for kind, path in files.items())]))


def _run(
    submitted: Submitted, job: str, config: Mapping[str, Any], look: Callable[[Path], T | None]
) -> tuple[Path, T]:
    """Submit a job and follow it; its folder, and what it left there."""
    check_flower()
    _check_app(submitted.app, {"job", "out", *config})
    folder = new_folder(submitted.out, f"{submitted.app.absolute().name}-{job}", f"federate {job}").absolute()
    if look(folder) is not None:
        raise InvalidInput(f"{folder} holds a result already: choose another folder with --out")
    (folder / FAILED).unlink(missing_ok=True)  # of an earlier attempt
    commands, what = FlowerCommands(), f"the run of {submitted.app}"
    commands.connection = submitted.connection
    say(f"{job}: {what}, into {folder}")
    with Interruptible() as interrupt:
        stopped = f"interrupted; {what} is stopped; nothing on the clients has changed"
        try:
            given = {"job": job, **config, "out": str(folder)}
            run = commands.submit(submitted.app, given, submitted.run_config)
        except FedsolveError:
            if interrupt.asked:
                raise Interrupted("interrupted before Flower took the run") from None
            raise
        found = follow(commands, run, folder, lambda: look(folder), interrupt, what, stopped)
    return folder, found


def _check_app(app: Path, needed: set[str]) -> None:
    """Raise `InvalidInput` unless a folder holds an app whose configuration has what a job sets."""
    path = app / "pyproject.toml"
    try:
        content = tomllib.loads(read_text(path, _LARGEST))
        config = content["tool"]["flwr"]["app"].get("config", {})
    except OSError as error:
        raise InvalidInput(f"{path}: {error.strerror}; give the folder of an app with --app") from None
    except (ValueError, KeyError, AttributeError, TypeError):
        raise InvalidInput(f"{path} describes no Flower app: give the folder of an app with --app") from None
    defaults = {"job": '"train"', "model": '""', "columns": '""', "min-clients": "3", "min-rows": "10"}
    if missing := sorted(needed - set(config)):
        lines = "; ".join(f"{name} = {defaults.get(name, '...')}" for name in missing)
        raise InvalidInput(f"{path} lacks, below [tool.flwr.app.config]: {lines}: add what is missing")


def _metrics_table(history: History, clients: ClientMetrics, part: str, title: str) -> Any:
    """A row for each metric: its mean over all examples, and how the clients' own are spread."""
    heads = ["metric", "over all examples", "mean of clients", "10 %", "median", "90 %", "worst client"]
    cells = []
    for name in clients.metrics:
        write, deciles, worst = number_writer(f"train_{name}"), clients.deciles(name), clients.worst(name)
        overall = history.evaluations.get(f"{part}_{name}", np.array([np.nan]))[-1]
        numbers = [overall, np.nanmean(clients.column(name)), *deciles[[1, 5, 9]]]
        last = f"{write(worst[0][1])} ({worst[0][0]})" if worst else "-"
        cells.append([name, *("-" if np.isnan(x) else write(float(x)) for x in numbers), last])
    return narrow_table(heads, cells, title)


def _clients_table(clients: ClientMetrics, part: str) -> Any:
    writers = {name: number_writer(f"train_{name}") for name in clients.metrics}
    cells = [
        [
            name,
            f"{int(clients.examples[i]):,}",
            *(write(float(clients.metrics[m][i])) for m, write in writers.items()),
        ]
        for i, name in enumerate(clients.names)
    ]
    return narrow_table(["client", f"{part} examples", *writers], cells)


def _evaluation_document(
    folder: Path, history: History, measured: Mapping[str, ClientMetrics]
) -> dict[str, Any]:
    by_part = {
        part: {
            "clients": clients.names,
            "examples": clients.examples,
            "metrics": {
                name: {
                    "over_all_examples": history.evaluations.get(f"{part}_{name}", [None])[-1],
                    "by_client": values,
                    "deciles": clients.deciles(name),
                    "worst": clients.worst(name),
                }
                for name, values in clients.metrics.items()
            },
        }
        for part, clients in measured.items()
    }
    rounds = int(history.evaluations["round"][-1])
    about = {"status": "finished", "folder": str(folder), "method": history.label, "rounds": rounds}
    return {**about, **by_part, "files": report_files(folder)}
