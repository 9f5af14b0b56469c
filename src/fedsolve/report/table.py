"""Tables of results for the terminal, LaTeX, notebooks and pages, and several runs as rows of one.

The rows are computed once, as plain numbers; a column only says how its number is written. Seeds of one method are
one row: the mean, and beside it the standard deviation.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from rich import box
from rich.table import Table
from rich.text import Text

from fedsolve.core.errors import InvalidInput, check_range, shown, unknown
from fedsolve.core.metric_direction import higher_is_better
from fedsolve.report.style import (
    count_text,
    distinct_names,
    human_bytes,
    human_time,
    number_writer,
    plus_minus,
)
from fedsolve.results.history import History, group_by_seed, mean_and_deviation
from fedsolve.results.metrics import AVERAGED, describe

Row = dict[str, Any]
"""A result: column key -> str, int, float or None (never reached, or not measured); `deviations` by column key."""
_MOST_OWN = 5
"""Columns of the user's own metrics, where none are asked for."""
_COUNTS = ("_tp", "_fp", "_tn", "_fn")
_PARTS = ("test", "validation", "train")
_WHOLE = 24
"""Cells up to so many characters are not broken in a terminal."""
_COLUMN = 32
"""Characters that fit in a column of a page: a longer cell is broken."""
_WITHIN = re.compile(r" (?=[±…%])|(?<=[±…]) |(?<=\w) (?=-?[\d.][\d.e+-]*(?:,|$))")
"""Spaces within `1 ± 0.2 %` and `1 … 2`, and within each of `client_lr 0.1, server_lr 1`."""
_SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    **{c: "\\" + c for c in "&%$#_{}"},
}
_POWER = re.compile(r"(-?[\d.]+|\([-\d.]+ ± [\d.]+\))e(-?\d+)")


class Cell(NamedTuple):
    """A cell as it is shown, and the value by which a page sorts it; None comes last."""

    text: str
    value: Any


@dataclass(frozen=True)
class ResultTable:
    """A table, and what renders it.

    The caption says what it is to who does not see it, the note how it is read. A cell is a `Cell`, or plain text, a
    number or None, which is shown as '-'.
    """

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[Cell | str | float | int | None]]
    note: str = ""

    @property
    def cells(self) -> list[list[Cell]]:
        return [
            [v if isinstance(v, Cell) else Cell("-" if v is None else str(v), v) for v in r]
            for r in self.rows
        ]

    @property
    def texts(self) -> list[list[str]]:
        return [[cell.text for cell in row] for row in self.cells]

    def rich(self, title: str = "") -> Table:
        # for a terminal, the note below it
        table = narrow_table(self.head, self.texts, title)
        table.caption, table.caption_justify = self.note or None, "left"
        return table

    def latex(self) -> str:
        # LaTeX text for a preamble with `booktabs`; the note is a comment above it
        head, *lines = (f"{' & '.join(map(latex, row))} \\\\" for row in (self.head, *self.texts))
        columns = f"l{'r' * (len(self.head) - 1)}"
        above = [f"% {self.note}"] * bool(self.note) + [rf"\begin{{tabular}}{{{columns}}}", r"\toprule"]
        return "\n".join([*above, head, r"\midrule", *lines, r"\bottomrule", r"\end{tabular}", ""])

    def notebook(self, caption: str, last: tuple[str, Sequence[str]] | None = None) -> str:
        # HTML without scripts or styles; `last` is the title of a further column, and its cells as HTML
        head = "".join(f"<th>{html.escape(title)}</th>" for title in (*self.head, *(last or ())[:1]))
        more = [f"<td>{cell}</td>" for cell in last[1]] if last else [""] * len(self.rows)
        rows = ("".join(f"<td>{html.escape(text)}</td>" for text in row) for row in self.texts)
        body = "".join(f"<tr>{row}{cell}</tr>" for row, cell in zip(rows, more, strict=True))
        return (
            f"<table><caption>{html.escape(caption)}</caption>"
            f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        )

    def html(self, keys: Sequence[str] = ()) -> str:
        # for a page, sortable, the note above it; `keys` are drawn line samples, one before each row's name
        buttons = (f'<th scope="col"><button type="button">{html.escape(h)}</button></th>' for h in self.head)
        lines = []
        for i, (name, *row) in enumerate(self.cells):
            cells = (f'<td{long_class(t)} data-value="{_sort_key(v)}">{_unbroken(t)}</td>' for t, v in row)
            key = keys[i] if keys else ""
            first = f'<th scope="row" data-value="{_sort_key(name.value)}">{key}{html.escape(name.text)}</th>'
            lines.append(f"<tr>{first}{''.join(cells)}</tr>")
        body, caption = "\n".join(lines), html.escape(self.caption)
        note = f'<p class="help">{html.escape(self.note)}</p>\n' if self.note else ""
        return (
            f'{note}<div class="scroll" tabindex="0" role="region" aria-label="{caption}">'
            f'<table class="sortable"><caption class="unseen">{caption}</caption>\n'
            f"<thead><tr>{''.join(buttons)}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>"
        )


def latex(text: str) -> str:
    """Text as LaTeX that prints it as it is, powers of ten as such.

    >>> latex("90 % of FedAvg_2"), latex("3.2e-9")
    ('90 \\\\% of FedAvg\\\\_2', '$3.2 \\\\times 10^{-9}$')
    """
    if power := _POWER.fullmatch(text):
        return rf"${power[1].replace('±', chr(92) + 'pm')} \times 10^{{{power[2]}}}$"
    return re.sub(r"[\\~^±&%$#_{}]", lambda match: _SPECIAL[match[0]], text)


def long_class(text: str) -> str:
    # the class of what is too long for a column of a page
    return ' class="long"' if len(text) > _COLUMN else ""


def _unbroken(text: str) -> str:
    # on a narrow page numbers stay with what belongs to them
    return _WITHIN.sub("\u00a0", html.escape(text))


def _sort_key(value: object) -> str:
    # nothing, and numbers that are not finite, come last
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return ""
    return html.escape(str(value))


@dataclass(frozen=True)
class Column:
    """A column of the result table: its key in a row, its head, how a value is written, and a deviation's scale."""

    key: str
    title: str
    show: Callable[[Any], str]
    scale: float = 1.0

    def text(self, row: Row) -> str:
        # the cell of `row`, with ± the standard deviation over seeds; '-' where there is no value
        value, deviation = row.get(self.key), row.get("deviations", {}).get(self.key)
        if value is None:
            return "-"
        if deviation is None or not math.isfinite(deviation):
            return self.show(value)
        return plus_minus(self.scale * value, self.scale * deviation)


def result_columns(
    histories: Sequence[History], target: float | None = None, metrics: Sequence[str] | None = None
) -> list[Column]:
    """The columns that these runs fill; arguments as those of `result_rows`."""
    # By default: the headline's final and best value, the final training loss, the user's own metrics
    # (`own_metrics`), data sent, time, and dropped updates if there are any. With `metrics` their final values alone.
    key = headline(histories)
    check_range("target", target, optional=True)
    names = chosen_metrics(histories, metrics)
    columns = [Column("method", "Method", str)]
    columns += [Column("task", "Task", str)] * (len({h.task for h in histories}) > 1)
    if metrics is None:
        columns += [_metric_column(how, key) for how in ("final", "best")]
        columns += [_metric_column("final", "train_loss")] * (key != "train_loss")
    columns += [_metric_column("final", name) for name in names]
    if target is not None:
        text = target_text(names[0] if metrics else key, target)
        columns.append(Column("rounds_to_target", f"Rounds to {text}", count_text))
        if any("time" in h.evaluations for h in histories):
            columns.append(Column("time_to_target", f"Simulated time to {text}", human_time))
    if metrics is not None:
        return columns
    columns += [Column("bytes_up", "Sent up", human_bytes), Column("bytes_down", "Sent down", human_bytes)]
    columns.append(Column("seconds", "Time", human_time))
    dropped = any(h.total("dropped") for h in histories)
    return columns + [Column("dropped", "Dropped updates", count_text)] * dropped


def result_rows(
    histories: Sequence[History], target: float | None = None, metrics: Sequence[str] | None = None
) -> list[Row]:
    """One row of plain numbers per method: accuracies as fractions, bytes, seconds."""
    # Of several seeds it has the means, and as `deviations` the sample standard deviations of what is measured.
    # `rounds_to_target` counts to the target, a fraction or a loss, of the first of `metrics` (as `chosen_metrics`
    # takes them) or else of the headline; without one there is no such entry.
    key = headline(histories)
    check_range("target", target, optional=True)
    names = chosen_metrics(histories, metrics)
    aimed = names[0] if metrics else key
    methods = group_by_seed(histories)
    rows: list[Row] = []
    for name, method in zip(distinct_names([m.history for m in methods]), methods, strict=True):
        of_runs = [_of_run(h, key, names, aimed, target) for h in method.runs]
        row: Row = {"method": name, "task": method.history.task, "seed": method.history.settings.get("seed")}
        if not method.several:
            rows.append(row | of_runs[0])
            continue
        statistics = {k: _mean([r[k] for r in of_runs]) for k in of_runs[0]}
        row |= {k: mean for k, (mean, _) in statistics.items()}
        spread = {k: deviation for k, (_, deviation) in statistics.items() if k.startswith(_WITH_DEVIATION)}
        rows.append(row | {"seeds": len(method.runs), "deviations": spread})
    return rows


_WITH_DEVIATION = ("final_", "best_", "rounds_to_target", "time_to_target")


def own_metrics(histories: Sequence[History]) -> list[str]:
    # the user's own metrics: those of the test set that are no loss and no accuracy, five at most.
    #
    # Where nothing is tested they are those of the validation examples. Bounds such as `auc_error` and confusion counts
    # are left out.
    names = dict.fromkeys(name for h in histories for name in h.evaluations)
    part = "test_" if any(name.startswith("test_") for name in names) else "validation_"
    bounds = {f"{name}_error" for name in names}
    own = [
        name
        for name in names
        if name.startswith(part)
        and name not in bounds
        and not name.endswith((AVERAGED, *_COUNTS))
        and not {"loss", "accuracy"} & set(name.split("_"))
    ]
    return own[:_MOST_OWN]


def chosen_metrics(histories: Sequence[History], metrics: Sequence[str] | None) -> list[str]:
    # the columns that `metrics` names, each in full or as what follows `test_`, `validation_` or `train_`.
    #
    # None stands for `own_metrics`.
    if metrics is None:
        return own_metrics(histories)
    listed = not isinstance(metrics, str) and isinstance(metrics, Sequence)
    if not listed or not metrics or not all(isinstance(name, str) for name in metrics):
        raise InvalidInput(f"metrics = {shown(metrics)} must be a list of names, such as ['test_auc']")
    known = dict.fromkeys(name for h in histories for name in h.evaluations)
    return [full_name(name, known) for name in metrics]


def full_name(name: str, known: Iterable[str]) -> str:
    # the column that a name means: itself, or the first of `test_`, `validation_` and `train_` with it
    columns = list(known)
    for full in (name, *(f"{part}_{name}" for part in _PARTS)):
        if full in columns:
            return full
    raise unknown("metric", name, columns)


def _metric_column(how: str, key: str) -> Column:
    # the final or the best value of a metric
    metric = describe(key)
    return Column(f"{how}_{key}", metric_head(how, key), number_writer(key), metric.scale)


def _of_run(h: History, key: str, names: Sequence[str], aimed: str, target: float | None) -> Row:
    # what is measured of one run, and when its metric `aimed` was as good as the target
    row: Row = {f"best_{key}": h.best(key) if key in h.evaluations else None}
    row |= {f"final_{k}": h.final(k) if k in h.evaluations else None for k in (key, "train_loss", *names)}
    row |= {name: h.total(name) for name in ("bytes_up", "bytes_down", "dropped")}
    if "time" in h.evaluations:
        row["time"] = h.final("time")
    row |= {"seconds": h.seconds, "compile_seconds": h.compile_seconds}
    if target is not None:
        has = aimed in h.evaluations
        row |= {"target": target, "rounds_to_target": h.rounds_to(aimed, target) if has else None}
        if "time" in h.evaluations:
            row["time_to_target"] = h.time_to(aimed, target) if has else None
    return row


def _mean(values: Sequence[float | None]) -> tuple[float | None, float | None]:
    # mean and standard deviation over seeds; None if a seed has no value
    known = [v for v in values if v is not None]
    return mean_and_deviation(known) if len(known) == len(values) else (None, None)


def result_table(
    histories: Sequence[History], target: float | None = None, metrics: Sequence[str] | None = None
) -> ResultTable:
    # the results, a method a row; `target` and `metrics` as in `result_rows`
    columns = result_columns(histories, target, metrics)
    rows = [
        [Cell(column.text(row), row.get(column.key)) for column in columns]
        for row in result_rows(histories, target, metrics)
    ]
    heads = [column.title for column in columns]
    counts = {len(m.runs) for m in group_by_seed(histories) if m.several}
    which = f"{max(counts)} seeds" if len(counts) == 1 else "the seeds"
    spread = f"Mean ± sample standard deviation (n - 1) over {which}." if counts else ""
    return ResultTable("Results of each method", heads, rows, spread)


def narrow_table(heads: Sequence[str], cells: Sequence[Sequence[str]], title: str = "") -> Table:
    # a rich table that 80 columns hold if they can: heads break between words alone, short cells nowhere
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
    # the metric by which runs are compared: test accuracy if any run has it, else test loss, else training loss
    if not histories:
        raise InvalidInput("no histories to show: give at least one")
    names = ("test_accuracy", "test_loss", "train_loss")
    return next(name for name in names if any(name in h.evaluations for h in histories))


def outcome(histories: Sequence[History]) -> str:
    # how the runs ended, in one sentence: what the best of them reached, and which diverged
    rows, keys = result_rows(histories), list(dict.fromkeys((headline(histories), "train_loss")))
    show = {column.key: column.show for column in result_columns(histories)}
    names = {key: (title := describe(key).title)[0].lower() + title[1:] for key in keys}

    def value(key: str, row: Row) -> str:
        unit = "\N{NO-BREAK SPACE}%" if describe(key).unit == "%" else ""
        return show[f"final_{key}"](row[f"final_{key}"]) + unit

    alive = [r for r in rows if all((v := r[f"final_{k}"]) is not None and math.isfinite(v) for k in keys)]
    lost = ", ".join(str(row["method"]) for row in rows if row not in alive)
    if not alive:
        return f"{lost} diverged."
    if len(rows) == 1:
        reached = [f"a {names[key]} of {value(key, alive[0])}" for key in keys]
        sentence = f"{alive[0]['method']} has {' and '.join(reached)}"
    else:
        words, before = [], ""
        for key in keys:
            most = higher_is_better(key)
            best = (max if most else min)(row[f"final_{key}"] for row in alive)
            first = [row for row in alive if row[f"final_{key}"] == best]
            *others, last = [str(row["method"]) for row in first]
            who = f"{', '.join(others)} and {last} have" if others else f"{last} has"
            who = who if len(first) < 5 else f"{len(first)} methods have"
            what = f"the {'highest' if most else 'lowest'} {names[key]}, {value(key, first[0])}"
            words.append(what if who == before else f"{who} {what}")
            before = who
        sentence = ", and ".join(words)
    ends = {int(h.evaluations["round"][-1]) for h in histories}
    when = f"After {max(ends):,} rounds" if len(ends) == 1 else "At the end"
    seeds = {row["seeds"] for row in rows if "seeds" in row}
    means = f" (means of {max(seeds)} seeds)" if len(seeds) == 1 else " (means over seeds)" if seeds else ""
    return f"{when} {sentence}{means}{f'; {lost} diverged' if lost else ''}."


def target_text(key: str, target: float) -> str:
    # a target as a head says it, accuracies in per cent
    metric = describe(key)
    return f"{target * metric.scale:g}{' %' if metric.unit == '%' else ''}"


def metric_head(how: str, key: str) -> str:
    """The head of a metric's column, such as 'Final test loss'; without `how` the metric's label.

    >>> metric_head("final", "test_loss"), metric_head("", "test_accuracy"), metric_head("final", "test_auc")
    ('Final test loss', 'Test accuracy (%)', 'Final test AUC')
    """
    label = describe(key).label.replace(" (mean per example)", "")
    return f"{how.capitalize()} {label[0].lower()}{label[1:]}" if how else label
