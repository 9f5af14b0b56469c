"""What finished runs have in common for a reader: data frame, CSV, LaTeX and a notebook's table of them."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedsolve.folders.files import write_atomically
from fedsolve.report.markup import text
from fedsolve.report.style import LIGHT, context, line_styles
from fedsolve.report.table import headline, result_columns, result_rows, spread_words
from fedsolve.results.frames import Part, csv_text, frame, stacked
from fedsolve.results.history import History
from fedsolve.results.metrics import describe, wants_log
from fedsolve.results.seeds import over_seeds

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    **{c: "\\" + c for c in "&%$#_{}"},
}
_WIDTH, _HEIGHT = 120, 24
_MOST_POINTS = 120
"""More evaluations than pixels are not drawn."""


class Records(ABC):
    """One finished run or several, by their histories."""

    @property
    @abstractmethod
    def histories(self) -> tuple[History, ...]:
        """The record of each run."""

    def frame(self, part: Part = "evaluations") -> Any:
        """All evaluations or all rounds as a data frame of pandas, or of polars where only that is installed.

        Its columns are `method`, `seed` and those of the record: `round`, `train_loss`, ...

        Raises:
            InvalidInput: neither is installed, or another part than "evaluations" or "rounds".
        """
        return frame(stacked(self.histories, part))

    def to_csv(self, path: str | Path, part: Part = "evaluations") -> Path:
        """Write what `frame` has as a CSV file, atomically; numbers read back exactly.

        Raises:
            InvalidInput: the file cannot be written, or another part than "evaluations" or "rounds".
        """
        return write_atomically(path, csv_text(stacked(self.histories, part)))

    def to_latex(self, target: float | None = None) -> str:
        """The table of results as LaTeX text, for a preamble with `\\usepackage{booktabs}`.

        Args:
            target: what the column "Rounds to" counts to, a fraction or a loss; by default an accuracy of 0.9.

        Raises:
            InvalidInput: `target` is no finite number.
        """
        return latex_table(self.histories, target)

    def _repr_html_(self) -> str:
        return html_table(self.histories)


def latex_table(histories: Sequence[History], target: float | None = None) -> str:
    """The columns of the terminal's table as a `tabular`; the preamble needs `\\usepackage{booktabs}`.

    Args:
        histories: the runs, a row each.
        target: as in `fedsolve.report.table.result_rows`.

    Raises:
        InvalidInput: no histories.
    """
    columns = result_columns(histories, target)
    rows = [[column.text(row) for column in columns] for row in result_rows(histories, target)]
    head, *body = ([*map(latex, row)] for row in ([c.title for c in columns], *rows))
    lines = [f"{' & '.join(row)} \\\\" for row in body]
    spread = spread_words(histories)
    return "\n".join(
        [
            *([f"% {spread}"] if spread else []),
            rf"\begin{{tabular}}{{l{'r' * (len(columns) - 1)}}}",
            r"\toprule",
            f"{' & '.join(head)} \\\\",
            r"\midrule",
            *lines,
            r"\bottomrule",
            r"\end{tabular}",
            "",
        ]
    )


def latex(text: str) -> str:
    """Text as LaTeX that prints it as it is.

    >>> latex("90 % of FedAvg_2")
    '90 \\\\% of FedAvg\\\\_2'
    """
    return re.sub(r"[\\~^±&%$#_{}]", lambda found: _SPECIAL[found[0]], text)


def html_table(histories: Sequence[History]) -> str:
    """The table of results with a curve of the headline metric in each row, as HTML of one element."""
    columns, rows = result_columns(histories), result_rows(histories)
    metric, styles = headline(histories), line_styles(histories)
    head = "".join(f"<th>{text(title)}</th>" for title in (*(c.title for c in columns), "By round"))
    body = []
    for row, method in zip(rows, over_seeds(histories), strict=True):
        cells = "".join(f"<td>{text(column.text(row))}</td>" for column in columns)
        curve = sparkline(method.history, metric, LIGHT[styles[method.history.label].colour])
        body.append(f"<tr>{cells}<td>{curve}</td></tr>")
    return (
        f"<table><caption>{text(f'{context(histories)}. {spread_words(histories)}')}</caption>"
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"
    )


def sparkline(history: History, metric: str, colour: str) -> str:
    """A metric by round as a small SVG plot; '' if the run has fewer than two values of it."""
    values = np.asarray(history.evaluations.get(metric, ()), float)
    rounds = history.evaluations["round"][: len(values)]
    if wants_log(metric, [values]):
        values = np.log(np.where(values > 0, values, np.nan))
    rounds, values = rounds[np.isfinite(values)], values[np.isfinite(values)]
    if len(values) < 2:
        return ""
    drawn = np.unique(np.linspace(0, len(values) - 1, _MOST_POINTS).round().astype(int))
    x = 2 + (_WIDTH - 4) * rounds[drawn] / rounds[-1]
    y = 2 + (_HEIGHT - 4) * (values.max() - values[drawn]) / (np.ptp(values) or 1.0)
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True))
    return (
        f'<svg width="{_WIDTH}" height="{_HEIGHT}" role="img" aria-label="{text(describe(metric).title)} by round">'
        f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/></svg>'
    )
