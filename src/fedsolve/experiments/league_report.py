"""Tables and pictures of the league."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from fedsolve.experiments.league_ranks import League, failures, rank_table, recommendation
from fedsolve.experiments.league_runs import ARENAS, PENALTIES, Entry
from fedsolve.report.markup import PageTable
from fedsolve.report.plots import new_figure
from fedsolve.report.style import LIGHT

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def shown(entry: Entry) -> str:
    """The loss and the accuracy at the end, or that it diverged; an arrow where the loss is above the start's."""
    if entry.state == "diverged":
        return "diverged"
    mark = "↑" if entry.state == "worse" else ""
    accuracy = float(entry.accuracy.mean())
    return f"{mark}{entry.final:.3g}" + (f" / {100 * accuracy:.1f} %" if np.isfinite(accuracy) else "")


def tables(league: League, composite: League) -> dict[str, PageTable]:
    """What to take, the league, its ranks, and the penalised tasks."""
    take = PageTable(
        "What to take without tuning, computed from the ranks",
        ["If you want", "Take", "Because"],
        [list(row) for row in recommendation(league)],
    )
    return {
        "take": take,
        "league": _results(league, "Training loss / test accuracy at the end (recall at 5 on news)"),
        "ranks": _ranks(
            league, "Ranks by training loss; failures are divergences and losses above the start's"
        ),
        "composite": _results(composite, "Methods that need a penalty: F + psi / test accuracy at the end"),
        "composite_ranks": _ranks(composite, "Their ranks by F + psi"),
    }


def _results(league: League, caption: str) -> PageTable:
    methods, tasks, place = rank_table(league)
    order = np.argsort(place.mean(axis=1), kind="stable")
    rows = [[methods[i], *(shown(league[t][methods[i]]) for t in tasks)] for i in order]
    return PageTable(caption, ["Method", *tasks], rows)


def _ranks(league: League, caption: str) -> PageTable:
    methods, tasks, place = rank_table(league)
    rows: list[list[Any]] = []
    for i in np.argsort(place.mean(axis=1), kind="stable"):
        diverged, worse = failures(league, methods[i])
        rows.append(
            [methods[i], round(float(place[i].mean()), 2), len(diverged), len(worse), *map(float, place[i])]
        )
    return PageTable(caption, ["Method", "Mean rank", "Diverged", "Worse than the start", *tasks], rows)


def pictures(league: League, composite: League, note: str) -> dict[str, tuple[str, Figure]]:
    """The maps of ranks."""
    found = {
        "league": (
            f"Ranks by training loss at the end, methods sorted by mean rank; {note}. Cells hold loss / test accuracy; "
            "grey diverged, an arrow marks a loss above the start's.",
            _map(league, f"Methods at their defaults, no tuning · {note}"),
        )
    }
    if composite:
        words = ", ".join(f"{task} {PENALTIES[task][1]}" for task in composite)
        found["composite"] = (
            f"The methods that need a penalty, by F + psi at the end ({words}); {note}.",
            _map(
                composite,
                "Penalised tasks, defaults, no tuning",
                "F + psi",
                {t: PENALTIES[t][1] for t in composite},
            ),
        )
    return found


def _map(
    league: League, title: str, what: str = "training loss", words: Mapping[str, str] | None = None
) -> Figure:
    """Ranks as a map with the results written in, and the mean ranks beside it."""
    methods, tasks, place = rank_table(league)
    mean = place.mean(axis=1)
    order = np.argsort(mean, kind="stable")
    figure = new_figure(2.6 + 1.12 * len(tasks) + 2.2, 1.6 + 0.36 * len(methods))
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=[1.12 * len(tasks), 2.0])
    values = place[order].copy()
    for (i, j), _ in np.ndenumerate(values):
        if league[tasks[j]][methods[order[i]]].state == "diverged":
            values[i, j] = np.nan
    left.set_facecolor("0.8")
    image = left.imshow(values, aspect="auto", cmap="viridis_r", vmin=1, vmax=len(methods))
    for (i, j), value in np.ndenumerate(values):
        text = shown(league[tasks[j]][methods[order[i]]])
        dark = np.isfinite(value) and value > 0.5 * len(methods)
        left.text(j, i, text, ha="center", va="center", fontsize=6.5, color="white" if dark else "black")
    left.set_xticks(
        range(len(tasks)), [f"{t}\n{words[t] if words else _words(t)}" for t in tasks], fontsize=7
    )
    left.set_yticks(range(len(methods)), [methods[i] for i in order], fontsize=8)
    left.tick_params(length=0)
    right.barh(range(len(methods)), mean[order], color=LIGHT[0])
    for i, m in enumerate(order):
        diverged, worse = failures(league, methods[m])
        text = f"{mean[m]:.1f}" + (f", fails {len(diverged) + len(worse)}" if diverged or worse else "")
        right.text(mean[m] + 0.15, i, text, va="center", fontsize=7)
    right.set_xlim(0, len(methods) * 1.35)
    right.set_xlabel("mean rank", fontsize=9)
    right.spines[["top", "right"]].set_visible(False)
    figure.colorbar(image, ax=[left, right], shrink=0.8, label=f"rank by {what} (1 is best)")
    figure.suptitle(title, x=0.01, ha="left", fontsize=10.5)
    return figure


def _words(task: str) -> str:
    return (
        ARENAS[task]
        .words.replace(", ", ",\n")
        .replace(" regression", "\nregression")
        .replace(" squares", "\nsquares")
    )
