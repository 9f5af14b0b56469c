"""What the jobs of a federation found: as tables for people, as documents for programs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedsolve.cli.terminal.console import emit, emit_rich
from fedsolve.cli.terminal.outputs import report_files
from fedsolve.data.column_statistics.report import NumberStatistics, Statistics
from fedsolve.deploy.jobs.job import STATISTICS_FILE
from fedsolve.deploy.jobs.statistics_file import SCHEMA_FILE, number_words, summary_lines
from fedsolve.report.number_text import number_writer
from fedsolve.report.table import narrow_table
from fedsolve.results.clients import ClientMetrics
from fedsolve.results.history import History
from fedsolve.results.metrics import describe

Measured = Mapping[str, ClientMetrics]
"""What clients measured, by part of their examples."""


def print_evaluation(folder: Path, history: History, measured: Measured) -> None:
    """A row for each metric, a row for each client, and where the page and the model are."""
    for part, clients in measured.items():
        title = history.words() if part == "train" else "on validation examples"
        emit_rich(_metrics_table(history, clients, part, title))
        emit_rich(_clients_table(clients, part))
    emit("\n".join(f"{kind:8} {path}" for kind, path in report_files(folder).items()))


def print_statistics(folder: Path, found: Statistics) -> None:
    """A row for each column of numbers, and a line for each other column and for each reply that does not count."""
    numbers = {name: c for name, c in found.columns.items() if isinstance(c, NumberStatistics)}
    if numbers:
        emit_rich(_numbers_table(numbers))
    others = [line for line in summary_lines(found) if line.partition(":")[0] not in numbers]
    emit("\n".join([*others, *(f"{kind:10} {path}" for kind, path in _files(folder).items())]))


def statistics_document(folder: Path, found: Statistics) -> dict[str, Any]:
    """All of it as plain data."""
    columns = {name: vars(column) for name, column in found.columns.items()}
    about = {"status": "finished", "folder": str(folder), "columns": columns}
    return {**about, "unreported": dict(found.unreported), "notes": found.notes, "files": _files(folder)}


def _files(folder: Path) -> dict[str, str]:
    return {"statistics": str(folder / STATISTICS_FILE), "schema": str(folder / SCHEMA_FILE)}


def evaluation_document(folder: Path, history: History, measured: Measured) -> dict[str, Any]:
    """All of it as plain data."""
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
    """A row for each metric: its mean over all examples, and how the clients' own are spread."""
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
    """A value of a metric; '-' where there is none."""
    return "-" if np.isnan(value) else number_writer(f"train_{name}")(float(value))


def _with_percent(name: str) -> str:
    return f"{name} (%)" if describe(f"train_{name}").unit == "%" else name


def _numbers_table(columns: Mapping[str, NumberStatistics]) -> Any:
    heads = ["column", "clients", "rows", "missing", "mean", "deviation", "median", "±", "from", "to"]
    cells = []
    for name, column in columns.items():
        counts = (column.clients, column.rows, column.missing)
        ends = (column.minimum[0], column.maximum[1])
        numbers = (column.mean, column.deviation, *column.quantile(0.5), *ends)
        cells.append([name, *(f"{n:,}" for n in counts), *map(number_words, numbers)])
    return narrow_table(heads, cells)
