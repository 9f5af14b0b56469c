"""The settings of a sweep as rows, the best first and those that diverged last: for terminal, JSON and page."""

from __future__ import annotations

from typing import Any

import numpy as np
from rich.table import Table

from fedsolve.core.checks import is_plain_number
from fedsolve.report.number_text import number_writer
from fedsolve.report.sweeps.sweep_words import averaged_text, setting_texts
from fedsolve.report.table import narrow_table
from fedsolve.results.metrics import describe
from fedsolve.results.sweep import SweepRecord


def ranking(sweep: SweepRecord) -> list[int]:
    """The numbers of all settings, the best first; of equal ones, and of those that diverged, in grid order."""
    score = -sweep.score if sweep.selection.most else sweep.score
    return [int(i) for i in np.argsort(score, kind="stable")]


def setting_rows(sweep: SweepRecord, count: int | None = None) -> list[dict[str, Any]]:
    """The `count` best settings (all if None) as plain data: values, mean, range and scores over seeds.

    `score`, `lowest` and `highest` are None where a seed diverged; `diverged` counts the seeds that did, and
    `round` is the first round in which one did.
    """
    rows = []
    for rank, setting in enumerate(ranking(sweep)[:count], 1):
        scores, rounds = sweep.scores[setting], sweep.diverged[setting]
        finite = bool(np.isfinite(scores).all())
        rows.append(
            {
                "rank": rank,
                "setting": setting,
                "values": sweep.points[setting],
                "score": float(sweep.score[setting]) if finite else None,
                "lowest": float(scores.min()) if finite else None,
                "highest": float(scores.max()) if finite else None,
                "scores": [float(s) if np.isfinite(s) else None for s in scores],
                "diverged": int((~np.isfinite(scores)).sum()),
                "round": int(rounds[rounds >= 0].min()) if (rounds >= 0).any() else None,
            }
        )
    return rows


def heads(sweep: SweepRecord) -> list[str]:
    """The heads of the columns."""
    label = describe(sweep.selection.metric).label.replace(" (mean per example)", "")
    over = [f"Range over {len(sweep.seeds)} seeds"] if len(sweep.seeds) > 1 else []
    return ["Rank", *sweep.grid, f"Mean {label[0].lower()}{label[1:]}" if over else label, *over]


def row_texts(sweep: SweepRecord, row: dict[str, Any]) -> list[str]:
    """The cells of one row."""
    write = number_writer(sweep.selection.metric)
    several = len(sweep.seeds) > 1
    values = list(setting_texts(sweep, row["setting"]).values())
    if row["score"] is None:
        return ["-", *values, divergence(sweep, row), *[""] * several]
    band = [f"{write(row['lowest'])} … {write(row['highest'])}"] if several else []
    return [str(row["rank"]), *values, write(row["score"]), *band]


def divergence(sweep: SweepRecord, row: dict[str, Any]) -> str:
    """That a setting diverged, in how many seeds and when."""
    seeds = f" in {row['diverged']} of {len(sweep.seeds)} seeds" if len(sweep.seeds) > 1 else ""
    when = f", from round {row['round']}" if row["round"] is not None else ", not finite"
    return f"diverged{seeds}{when}"


def setting_table(sweep: SweepRecord, count: int = 10) -> Table:
    """The best settings as a rich table."""
    return narrow_table(heads(sweep), [row_texts(sweep, row) for row in setting_rows(sweep, count)])


def outcome_lines(sweep: SweepRecord) -> list[str]:
    """The best setting, how easy the method was to tune, and how much diverged, in a sentence each."""
    lost = int((~np.isfinite(sweep.scores)).any(axis=1).sum())
    settings = len(sweep.score)
    diverged = f"{lost} of {settings} settings diverged" if lost else f"none of {settings} settings diverged"
    if lost == settings:
        return [f"all {settings} settings diverged"]
    write, best = number_writer(sweep.selection.metric), sweep.best
    unit = " %" if describe(sweep.selection.metric).unit == "%" else ""
    at = ", ".join(f"{name} = {value}" for name, value in setting_texts(sweep, best).items())
    return [
        f"best: {at}, with {describe(sweep.selection.metric).title.lower()} {write(sweep.score[best])}{unit} "
        f"({averaged_text(sweep).partition(', ')[2]})",
        f"share of the grid within 5 % of the best: {100 * sweep.share_within(0.05):.0f} % of {settings}; {diverged}",
        *edges(sweep),
    ]


def edges(sweep: SweepRecord) -> list[str]:
    """Axes on whose edge the best setting lies: the best may be outside."""
    sentences = []
    for name, values in sweep.grid.items() if np.isfinite(sweep.score).any() else ():
        numbers = [v for v in values if is_plain_number(v)]
        value = sweep.best_settings[name]
        if len(numbers) == len(values) > 2 and value in (min(numbers), max(numbers)):
            end, others = ("smallest", "smaller") if value == min(numbers) else ("largest", "larger")
            sentences.append(f"the best {name} is the {end} tried: {others} ones may be better")
    return sentences
