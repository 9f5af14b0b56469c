"""Jobs on a SuperLink, submitted, followed and shown; and the status of a federation's clients."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from fedsolve.cli.console import emit, emit_json, emit_rich, emit_table, say
from fedsolve.cli.federation.demo import follow
from fedsolve.cli.federation.local import FlowerCommands
from fedsolve.cli.folders import new_folder, report_files
from fedsolve.core.errors import FedsolveError, Interrupted, InvalidInput
from fedsolve.deploy.evaluation_job import ANALYSIS, ANALYSIS_FILE, EVALUATE, STATISTICS, STATISTICS_FILE, Job
from fedsolve.deploy.flower import check_flower
from fedsolve.deploy.run_log import FAILED, read_reason
from fedsolve.deploy.site_names import numbered
from fedsolve.deploy.statistics_job import SCHEMA_FILE, read_statistics, statistics_document, statistics_lines
from fedsolve.deploy.status import STATUS, ClientStatus, FederationStatus, read_status
from fedsolve.folders.files import Interruptible, is_locked
from fedsolve.folders.untrusted import read_user_toml
from fedsolve.report.style import human_time, number_writer
from fedsolve.report.table import narrow_table
from fedsolve.results.clients import ClientMetrics, read_client_metrics
from fedsolve.results.history import History
from fedsolve.results.metrics import describe
from fedsolve.results.record_files import HISTORY, MODEL, read_history
from fedsolve.stats.estimates import load as load_analysis

T = TypeVar("T")
_LARGEST = 2**20  # bytes of an app's pyproject.toml


@dataclass(frozen=True)
class Submitted:
    """Where a job is submitted and what else its run is told."""

    app: Path
    superlink: str  # name of the SuperLink in Flower's configuration, '' for its default
    run_config: str  # further configuration, as `flwr run --run-config` takes it
    out: Path | None  # the run's folder; None for the next free one in `runs`


def evaluate_command(submitted: Submitted, model: Path, metrics: str | None, as_json: bool) -> None:
    """Let the connected clients measure a saved model, and print what they measured."""
    if not model.exists():
        raise InvalidInput(f"{model}: no such file or folder; give the folder of a run, or a model's file")
    if model.is_dir() and not (model / MODEL).is_file():
        raise InvalidInput(f"{model} has no {MODEL}: give the folder of a finished run, or a model's file")
    config = {"model": str(model.absolute())} | ({} if metrics is None else {"client-metrics": metrics})
    folder, history = _run(submitted, EVALUATE, config, read_history)
    measured = {
        part: found
        for part in ("train", "validation")
        for found in read_client_metrics(folder, validation=part == "validation").values()
    }
    if as_json:
        emit_json(evaluation_document(folder, history, measured))
    else:
        for part, clients in measured.items():
            title = history.words() if part == "train" else "on validation examples"
            emit_rich(_metrics_table(history, clients, part, title))
            emit_rich(_clients_table(clients, part))
        emit("\n".join(f"{kind:8} {path}" for kind, path in report_files(folder).items()))


def questions_command(
    asked: Mapping[str, str],
    min_clients: int,
    min_rows: int,
    secure: bool,
    as_json: bool,
    ratios: bool = False,
    **where: Any,
) -> None:
    """Print statistics of the clients' columns, or a model or a curve over their rows."""
    # `asked` has the `columns` or the `analysis`, as a run's configuration has it; with `ratios` coefficients are
    # printed as exp(coefficient); `where` is of `Submitted`.
    job, name = (ANALYSIS, ANALYSIS_FILE) if "analysis" in asked else (STATISTICS, STATISTICS_FILE)
    config = {**asked, "min-clients": min_clients, "min-rows": min_rows}
    config |= {"secure": True} if secure else {}
    Job.of({"job": job, **config})  # refuses here what the server would
    folder, _ = _run(Submitted(**where), job, config, lambda folder: (folder / name).exists() or None)
    show_without_run(folder, as_json, ratios)


def show_without_run(folder: Path, as_json: bool, ratios: bool = False) -> bool:
    """Print the statistics or the analysis in a folder; whether it has any."""
    if (path := folder / ANALYSIS_FILE).exists():
        found = load_analysis(path)
        if as_json:
            emit_json({"status": "finished", "folder": str(folder), "result": found.as_plain()})
        else:
            emit(repr(found.summary(ratios=True) if ratios else found))
            emit(f"result   {path}")
    elif (path := folder / STATISTICS_FILE).exists():
        found = read_statistics(path)
        if as_json:
            about = {"status": "finished", "folder": str(folder)}
            emit_json({**about, **statistics_document(found), "files": _files(folder)})
        else:
            files = [f"{kind:10} {at}" for kind, at in _files(folder).items()]
            emit("\n".join([*statistics_lines(found), *files]))
    else:
        return False
    return True


def _run(
    submitted: Submitted, job: str, config: Mapping[str, Any], look: Callable[[Path], T | None]
) -> tuple[Path, T]:
    check_flower()
    _check_app(submitted.app, {"job", "out", *config})
    folder = new_folder(submitted.out, f"{submitted.app.absolute().name}-{job}", f"federate {job}").absolute()
    if look(folder) is not None:
        raise InvalidInput(f"{folder} holds a result already: choose another folder with --out")
    (folder / FAILED).unlink(missing_ok=True)  # of an earlier attempt
    commands, what = FlowerCommands(), f"the run of {submitted.app}"
    commands.connection = submitted.superlink
    say(f"{job}: {what}, into {folder}")
    with Interruptible() as interrupt:
        stopped = f"interrupted; {what} is stopped; nothing on the clients has changed"
        try:
            given = {"job": job, **config, "out": str(folder)}
            run = commands.submit(submitted.app, given, submitted.run_config)
        except FedsolveError:
            if interrupt.stop_requested:
                raise Interrupted("interrupted before Flower took the run") from None
            raise
        found = follow(commands, run, folder, lambda: look(folder), interrupt, what, stopped)
    return folder, found


def _check_app(app: Path, needed: set[str]) -> None:
    # Raise `InvalidInput` unless a folder holds an app whose configuration has what a job sets.
    path = app / "pyproject.toml"
    try:
        content = read_user_toml(path, _LARGEST)
        config = content["tool"]["flwr"]["app"].get("config", {})
    except OSError as error:
        raise InvalidInput(f"{path}: {error.strerror}; give the folder of an app with --app") from None
    except (ValueError, KeyError, AttributeError, TypeError):
        raise InvalidInput(f"{path} describes no Flower app: give the folder of an app with --app") from None
    defaults = {"job": '"train"', "model": '""', "columns": '""', "min-clients": "3", "min-rows": "10"}
    defaults |= {"secure": "false", "analysis": '""'}
    if missing := sorted(needed - set(config)):
        lines = "; ".join(f"{name} = {defaults.get(name, '...')}" for name in missing)
        raise InvalidInput(f"{path} lacks, below [tool.flwr.app.config]: {lines}: add what is missing")


Measured = Mapping[str, ClientMetrics]
"""What clients measured, by part of their examples."""


def _files(folder: Path) -> dict[str, str]:
    return {"statistics": str(folder / STATISTICS_FILE), "schema": str(folder / SCHEMA_FILE)}


def evaluation_document(folder: Path, history: History, measured: Measured) -> dict[str, Any]:
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


def _metrics_table(history: History, clients: ClientMetrics, part: str, title: str) -> Any:
    # A row for each metric: its mean over all examples, and how the clients' own are spread.
    heads = ["metric", "over all examples", "mean of clients", "10 %", "median", "90 %", "worst client"]
    cells = []
    for name in clients.metrics:
        known = clients.column(name)[~np.isnan(clients.column(name))]
        spread = [known.mean(), *np.percentile(known, [10, 50, 90])] if len(known) else [np.nan] * 4
        numbers = [history.evaluations.get(f"{part}_{name}", np.array([np.nan]))[-1], *spread]
        worst = [f"{_cell(name, value)} ({client})" for client, value in clients.worst(name)] or ["-"]
        cells.append([_with_percent(name), *(_cell(name, x) for x in numbers), *worst])
    return narrow_table(heads, cells, title)


def _clients_table(clients: ClientMetrics, part: str) -> Any:
    cells = []
    for i, client in enumerate(clients.names):
        numbers = [_cell(name, values[i]) for name, values in clients.metrics.items()]
        cells.append([client, f"{int(clients.examples[i]):,}", *numbers])
    return narrow_table(["client", f"{part} examples", *map(_with_percent, clients.metrics)], cells)


def _cell(name: str, value: float) -> str:
    return "-" if np.isnan(value) else number_writer(f"train_{name}")(float(value))


def _with_percent(name: str) -> str:
    return f"{name} (%)" if describe(f"train_{name}").unit == "%" else name


# `fedsolve federate status`: the clients of a federation, by what the server wrote down of them.


_HEADS = ("client", "site", "connected", "last heard", "failures", "in a row", "last used round", "fedsolve", "Flower",
          "Python", "framework")  # fmt: skip
_NAMES = ("fedsolve", "flwr", "python", "framework")


def status_command(folder: Path, as_json: bool) -> None:
    runs = list(_runs(folder))
    if as_json:
        emit_json({"folder": str(folder), "runs": [run.document() for run in runs]})
        return
    for number, run in enumerate(runs):
        if number:
            emit("")
        _print(run)


class _Run(NamedTuple):
    """A run's folder, how the run stands, why it failed ('' if it did not), and its clients."""

    folder: Path
    state: str
    error: str
    clients: FederationStatus

    def document(self) -> dict[str, Any]:
        about = {"folder": str(self.folder), "status": self.state, "error": self.error or None}
        return about | self.clients.model_dump(mode="json")


def _runs(folder: Path) -> Iterator[_Run]:
    found = [folder / STATUS] if (folder / STATUS).exists() else sorted(folder.glob(f"*/{STATUS}"))
    if not found:
        raise InvalidInput(
            f"{folder} holds no run of a federation: no {STATUS} is in it or in a folder of it"
        )
    for path in found:
        clients = read_status(path)
        state, error = _state(path.parent, clients)
        yield _Run(path.parent, state, error, clients)


def _state(folder: Path, clients: FederationStatus) -> tuple[str, str]:
    # How a run stands, and why it failed.
    if is_locked(folder):
        return "running", ""
    if (folder / FAILED).exists():
        return "failed", read_reason(folder)
    history = folder / HISTORY  # of a run that went on and was interrupted it is older than the status
    is_newest = history.exists() and history.stat().st_mtime >= (folder / STATUS).stat().st_mtime
    return ("finished" if is_newest or clients.round >= clients.rounds > 0 else "interrupted"), ""


def _print(run: _Run) -> None:
    known = run.clients
    connected = sum(one.connected for one in known.clients)
    error = f" ({run.error})" if run.error else ""
    emit(
        f"{known.label} in {run.folder}: {run.state}{error}, {known.round} of {known.rounds} rounds, "
        f"{connected} of {len(known.clients)} clients connected"
    )
    emit_table(_HEADS, [_row(one) for one in known.clients], len(_HEADS))
    for one in known.clients:
        if one.last_cause is not None:
            emit(f"last failure of {one.site or numbered(one.client)}: {one.last_reason}")
    for reason in known.refused:
        emit(f"refused: {reason}")
    emit(
        "each client keeps a state: that after its last used round"
        if known.keeps_states
        else "clients keep no state between rounds"
    )


def _row(one: ClientStatus) -> tuple[str, ...]:
    heard = "never" if one.last_heard is None else f"{human_time(max(time.time() - one.last_heard, 0))} ago"
    counts = map(str, (one.failures, one.consecutive_failures, one.last_used_round or "none"))
    versions = (one.versions.get(name, "") for name in _NAMES)
    return (str(one.client), one.site, "yes" if one.connected else "no", heard, *counts, *versions)
