"""Several runs as rows of results: for the terminal, for JSON, and for the page.

The rows are computed once, as plain numbers; a column only says how its number is written. Seeds of one method are
one row: the mean, and beside it the standard deviation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from fedsolve.core.checks import check_range
from fedsolve.core.errors import InvalidInput
from fedsolve.report.style import distinct_names
from fedsolve.results.history import History
from fedsolve.results.metrics import describe
from fedsolve.results.seeds import mean_and_deviation, over_seeds

Row = dict[str, Any]
"""A result: column key -> str, int, float or None (never reached, or not measured); `deviations` by column key."""
ACCURACY_TARGET = 0.9


@dataclass(frozen=True)
class Column:
    """A column of the result table: its key in a row, its head, and how a value is written."""

    key: str
    title: str
    show: Callable[[Any], str]

    def text(self, row: Row) -> str:
        """The cell of `row`, with ± the standard deviation over seeds; '-' where there is no value."""
        if row.get(self.key) is None:
            return "-"
        deviation = row.get("deviations", {}).get(self.key)
        beside = "" if deviation is None or not math.isfinite(deviation) else f" ± {self.show(deviation)}"
        return self.show(row[self.key]) + beside


def human_bytes(count: float) -> str:
    """A number of bytes with three digits in decimal units.

    >>> human_bytes(999), human_bytes(1_250_000)
    ('999 B', '1.25 MB')
    """
    size, units = float(count), ("B", "kB", "MB", "GB", "TB", "PB")
    for unit in units:
        if size < 999.5 or unit == units[-1]:
            return f"{int(size)} B" if unit == "B" else f"{size:#.3g} {unit}".replace(". ", " ")
        size /= 1000
    raise AssertionError("unreachable")


def result_columns(histories: Sequence[History], target: float | None = None) -> list[Column]:
    """The columns that these runs fill: accuracies if any run has them, else losses; dropped if any."""
    key = headline(histories)
    metric = describe(key)
    many = len({h.task for h in histories}) > 1
    columns = [Column("method", "Method", str)]
    columns += [Column("task", "Task", str)] * many
    columns += [
        Column(f"{how}_{key}", _head(how, metric.label), number_writer(key)) for how in ("final", "best")
    ]
    columns += [Column("final_train_loss", "Final training loss", number_writer("train_loss"))] * (
        key != "train_loss"
    )
    goal = _target(histories, target)
    if goal is not None:
        target_text = f"{goal * metric.scale:g}{' %' if metric.unit == '%' else ''}"
        columns.append(Column("rounds_to_target", f"Rounds to {target_text}", _count))
        if any("time" in h.evaluations for h in histories):
            columns.append(
                Column("time_to_target", f"Simulated time to {target_text} (s)", lambda v: f"{v:,.0f}")
            )
    columns += [Column("bytes_up", "Sent up", human_bytes), Column("bytes_down", "Sent down", human_bytes)]
    columns.append(Column("seconds", "Time (s)", lambda v: f"{v:.1f}"))
    dropped = any(h.total("dropped") for h in histories)
    return columns + [Column("dropped", "Dropped updates", _count)] * dropped


def result_rows(histories: Sequence[History], target: float | None = None) -> list[Row]:
    """One row of plain numbers per method: accuracies as fractions, bytes, seconds.

    Of several seeds it has the means, and as `deviations` the standard deviations of what is measured.
    `target` is what `rounds_to_target` counts to: a fraction, or a loss where no run has an accuracy.
    None means an accuracy of 0.9, or no such entry where there is none.
    """
    key = headline(histories)
    goal = _target(histories, target)
    methods = over_seeds(histories)
    rows: list[Row] = []
    for name, method in zip(distinct_names([m.history for m in methods]), methods, strict=True):
        of_runs = [_measured(h, key, goal) for h in method.runs]
        row: Row = {"method": name, "task": method.history.task, "seed": method.history.settings.get("seed")}
        if not method.several:
            rows.append(row | of_runs[0])
            continue
        statistics = {k: _mean([r[k] for r in of_runs]) for k in of_runs[0]}
        row |= {k: mean for k, (mean, _) in statistics.items()}
        spread = {
            k: deviation for k, (_, deviation) in statistics.items() if k in _WITH_DEVIATION or key in k
        }
        rows.append(row | {"seeds": len(method.runs), "deviations": spread})
    return rows


_WITH_DEVIATION = ("final_train_loss", "rounds_to_target", "time_to_target")


def _measured(h: History, key: str, goal: float | None) -> Row:
    """What is measured of one run."""
    has = key in h.evaluations
    row: Row = {f"final_{key}": h.final(key) if has else None, f"best_{key}": h.best(key) if has else None}
    row["final_train_loss"] = h.final("train_loss")
    if goal is not None:
        row |= {"target": goal, "rounds_to_target": h.rounds_to(key, goal) if has else None}
        if "time" in h.evaluations:
            row["time_to_target"] = h.time_to(key, goal) if has else None
    row |= {name: h.total(name) for name in ("bytes_up", "bytes_down", "dropped")}
    if "time" in h.evaluations:
        row["time"] = h.final("time")
    return row | {"seconds": h.seconds, "compile_seconds": h.compile_seconds}


def _mean(values: Sequence[float | None]) -> tuple[float | None, float | None]:
    """Mean and standard deviation over seeds; None if a seed has no value."""
    known = [v for v in values if v is not None]
    return mean_and_deviation(known) if len(known) == len(values) else (None, None)


def result_table(histories: Sequence[History], target: float | None = None, title: str = "") -> Table:
    """The results as a rich table; `target` as in `result_rows`."""
    columns = result_columns(histories, target)
    cells = [[column.text(row) for column in columns] for row in result_rows(histories, target)]
    table = narrow_table([column.title for column in columns], cells, title)
    table.caption, table.caption_justify = spread_words(histories) or None, "left"
    return table


def spread_words(histories: Sequence[History]) -> str:
    """What ± means in the table of these runs, and bands beside it; '' if no method has several seeds."""
    counts = {len(m.runs) for m in over_seeds(histories) if m.several}
    which = f"{max(counts)} seeds" if len(counts) == 1 else "the seeds"
    return f"Mean ± standard deviation over {which}; bands in plots are their range." if counts else ""


_WHOLE = 24
"""Cells up to so many characters are not broken."""


def narrow_table(heads: Sequence[str], cells: Sequence[Sequence[str]], title: str = "") -> Table:
    """A rich table that 80 columns hold if they can: heads break between words alone, short cells nowhere."""
    table = Table(
        title=title or None, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0)
    )
    for i, head in enumerate(heads):
        words = [*head.split(), *(row[i] for row in cells if len(row[i]) <= _WHOLE)]
        table.add_column(
            Text(head), justify="left" if i == 0 else "right", overflow="fold", min_width=max(map(len, words))
        )
    for row in cells:
        table.add_row(*map(Text, row))
    return table


def headline(histories: Sequence[History]) -> str:
    """The metric by which runs are compared: test accuracy if any run has it, else test loss, else training loss."""
    if not histories:
        raise InvalidInput("no histories to show: give at least one")
    names = ("test_accuracy", "test_loss", "train_loss")
    return next(name for name in names if any(name in h.evaluations for h in histories))


def show_number(value: float) -> str:
    """A loss or another number with four digits; 'diverged' stands for one that is not finite.

    >>> show_number(0.123456), show_number(float("nan"))
    ('0.1235', 'diverged')
    """
    if not math.isfinite(value):
        return "diverged"
    return f"{value:.4f}" if value == 0 or 1e-3 <= abs(value) < 1e4 else f"{value:.3e}"


def number_writer(key: str) -> Callable[[float], str]:
    """How a metric's value is written: accuracies in per cent, the rest by `show_number`."""
    if describe(key).unit != "%":
        return show_number
    return lambda v: f"{100 * v:.2f}" if math.isfinite(v) else "diverged"


def _count(value: float) -> str:
    """A count, or a mean of counts with one decimal."""
    return f"{value:.1f}".removesuffix(".0")


def _target(histories: Sequence[History], target: float | None) -> float | None:
    check_range("target", target, optional=True)
    return ACCURACY_TARGET if target is None and headline(histories) == "test_accuracy" else target


def _head(how: str, label: str) -> str:
    return f"{how.capitalize()} {label[0].lower()}{label[1:]}".replace(" (mean per example)", "")
