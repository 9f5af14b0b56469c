"""A sweep as a table for a paper and for a notebook: the settings, the best first."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedsolve.core.errors import InvalidInput, check_range, shown
from fedsolve.report.markup import text
from fedsolve.report.number_text import count_text, number_writer, plus_minus
from fedsolve.report.records import latex_table
from fedsolve.report.sweeps.sweep_table import (
    averaged_text,
    outcome_lines,
    ranking,
    row_texts,
    seeds_text,
    setting_rows,
    setting_texts,
)
from fedsolve.report.sweeps.sweep_table import heads as table_heads
from fedsolve.report.table import full_name, metric_head
from fedsolve.results.history import first_as_good, mean_and_deviation
from fedsolve.results.metrics import describe
from fedsolve.results.sweep import SweepRecord

_SHOWN = 10


def sweep_latex(sweep: SweepRecord, metrics: Sequence[str] | None, target: float | None) -> str:
    """All settings as LaTeX; see `Sweep.to_latex`.

    Raises:
        InvalidInput: the sweep has no such metric, or `target` is no finite number.
    """
    check_range("target", target, optional=True)
    if metrics is not None and (isinstance(metrics, str) or not all(isinstance(m, str) for m in metrics)):
        raise InvalidInput(f"metrics = {shown(metrics)} must be a list of names, such as ['test_auc']")
    names = [full_name(name, sweep.metrics) for name in metrics or ()]
    aimed = names[0] if names else sweep.selection.metric
    score = [] if names else [_score_head(sweep)]
    heads = [*sweep.grid, *score, *(metric_head("final", name) for name in names)]
    if target is not None:
        metric = describe(aimed)
        heads.append(f"Rounds to {target * metric.scale:g}{' %' if metric.unit == '%' else ''}")
    rows = []
    for setting in ranking(sweep):
        row = list(setting_texts(sweep, setting).values())
        row += [_cell(sweep.selection.metric, sweep.scores[setting])] * len(score)
        row += [_cell(name, sweep.metrics[name][setting, :, -1]) for name in names]
        rows.append(row if target is None else [*row, _rounds_to(sweep, setting, aimed, target)])
    return latex_table(heads, rows, f"{_spread(sweep)}Score: {averaged_text(sweep)}.")


def sweep_html(sweep: SweepRecord) -> str:
    """The best settings as a table of HTML, and below it what came out."""
    head = "".join(f"<th>{text(h)}</th>" for h in table_heads(sweep))
    cells = [row_texts(sweep, row) for row in setting_rows(sweep, _SHOWN)]
    body = "".join(f"<tr>{''.join(f'<td>{text(c)}</td>' for c in row)}</tr>" for row in cells)
    caption = f"{sweep.label} · {sweep.task} · {seeds_text(sweep.seeds)}. Score: {averaged_text(sweep)}."
    below = "".join(f"<p>{text(line)}</p>" for line in (*outcome_lines(sweep), *sweep.notes))
    return (
        f"<table><caption>{text(caption)}</caption><thead><tr>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table>{below}"
    )


def _score_head(sweep: SweepRecord) -> str:
    return metric_head("mean" if len(sweep.seeds) > 1 else "", sweep.selection.metric)


def _spread(sweep: SweepRecord) -> str:
    seeds = len(sweep.seeds)
    return f"Mean ± sample standard deviation (n - 1) over {seeds} seeds. " if seeds > 1 else ""


def _cell(metric: str, values: np.ndarray) -> str:
    """The mean of a metric over seeds, with ± the deviation where there are several."""
    mean, deviation = mean_and_deviation(values.tolist())
    scale = describe(metric).scale
    if not np.isfinite(deviation):
        return number_writer(metric)(mean)
    return plus_minus(scale * mean, scale * deviation)


def _rounds_to(sweep: SweepRecord, setting: int, metric: str, target: float) -> str:
    """The rounds that a setting takes to a target, the mean over seeds; '-' if a seed never gets there."""
    rounds = [
        first_as_good(values, metric, target, sweep.rounds) for values in sweep.metrics[metric][setting]
    ]
    known = [r for r in rounds if r is not None]
    if len(known) < len(rounds):
        return "-"
    mean, deviation = mean_and_deviation(known)
    return plus_minus(mean, deviation) if np.isfinite(deviation) else count_text(mean)
