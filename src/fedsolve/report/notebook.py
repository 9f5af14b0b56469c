"""Runs as a notebook shows them: the table of results, each row with a small curve. Nothing is fetched."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedsolve.report.markup import text
from fedsolve.report.style import LIGHT, context, line_styles
from fedsolve.report.table import headline, result_columns, result_rows, spread_words
from fedsolve.results.history import History
from fedsolve.results.metrics import describe, wants_log
from fedsolve.results.seeds import over_seeds

_WIDTH, _HEIGHT = 120, 24
_MOST_POINTS = 120
"""More evaluations than pixels are not drawn."""


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
    kept = np.unique(np.linspace(0, len(values) - 1, _MOST_POINTS).round().astype(int))
    x = 2 + (_WIDTH - 4) * rounds[kept] / rounds[-1]
    y = 2 + (_HEIGHT - 4) * (values.max() - values[kept]) / (np.ptp(values) or 1.0)
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True))
    return (
        f'<svg width="{_WIDTH}" height="{_HEIGHT}" role="img" aria-label="{text(describe(metric).title)} by round">'
        f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/></svg>'
    )
