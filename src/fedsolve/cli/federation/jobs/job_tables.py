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


def _numbers_table(columns: Mapping[str, NumberStatistics]) -> Any:
    heads = ["column", "clients", "rows", "missing", "mean", "deviation", "median", "±", "from", "to"]
    cells = []
    for name, column in columns.items():
        counts = (column.clients, column.rows, column.missing)
        ends = (column.minimum[0], column.maximum[1])
        numbers = (column.mean, column.deviation, *column.quantile(0.5), *ends)
        cells.append([name, *(f"{n:,}" for n in counts), *map(number_words, numbers)])
    return narrow_table(heads, cells)
