"""Jobs are submitted as runs of an app on a SuperLink, followed until they end, and shown."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from fedsolve.cli.federation.flower_commands import FlowerCommands
from fedsolve.cli.federation.following import follow
from fedsolve.cli.federation.jobs.job_tables import (
    evaluation_document,
    print_evaluation,
    print_statistics,
    statistics_document,
)
from fedsolve.cli.terminal.console import emit_json, say
from fedsolve.cli.terminal.folders import new_folder
from fedsolve.core.errors import FedsolveError, Interrupted, InvalidInput
from fedsolve.data.column_statistics.report import Statistics
from fedsolve.deploy.flower import check_flower
from fedsolve.deploy.jobs.job import EVALUATE, STATISTICS, STATISTICS_FILE, Job
from fedsolve.deploy.jobs.statistics_file import read_statistics
from fedsolve.deploy.run_log import FAILED
from fedsolve.folders.interrupt import Interruptible
from fedsolve.folders.user_text import read_user_text
from fedsolve.results.clients import read_client_metrics
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
        emit_json(evaluation_document(folder, history, measured))
    else:
        print_evaluation(folder, history, measured)


def statistics_command(
    submitted: Submitted, columns: str, min_clients: int, min_rows: int, secure: bool, as_json: bool
) -> None:
    """Print statistics of the clients' columns.

    Raises:
        InvalidInput: columns that are none, no such app, or Flower does not take the run.
        Unavailable: the run failed; its reason.
        Interrupted: Ctrl-C; the run is stopped.
    """
    config = {"columns": columns, "min-clients": min_clients, "min-rows": min_rows}
    config |= {"secure": True} if secure else {}
    Job.of({"job": STATISTICS, **config})  # refuses here what the server would

    def look(folder: Path) -> Statistics | None:
        path = folder / STATISTICS_FILE
        return read_statistics(path) if path.exists() else None

    folder, found = _run(submitted, STATISTICS, config, look)
    if as_json:
        emit_json(statistics_document(folder, found))
    else:
        print_statistics(folder, found)


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
        content = tomllib.loads(read_user_text(path, _LARGEST))
        config = content["tool"]["flwr"]["app"].get("config", {})
    except OSError as error:
        raise InvalidInput(f"{path}: {error.strerror}; give the folder of an app with --app") from None
    except (ValueError, KeyError, AttributeError, TypeError):
        raise InvalidInput(f"{path} describes no Flower app: give the folder of an app with --app") from None
    defaults = {"job": '"train"', "model": '""', "columns": '""', "min-clients": "3", "min-rows": "10"}
    defaults |= {"secure": "false"}
    if missing := sorted(needed - set(config)):
        lines = "; ".join(f"{name} = {defaults.get(name, '...')}" for name in missing)
        raise InvalidInput(f"{path} lacks, below [tool.flwr.app.config]: {lines}: add what is missing")
