"""Who waits for whom: the first tasks of a run on the clock of its fleet."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedsolve.core.fleets import Timeline
from fedsolve.report.plots import new_figure, tidy
from fedsolve.report.style import LIGHT

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN = 60
"""Tasks that are drawn."""
_LETTERS = 24
"""Of a client's name."""
CAPTION = (
    "Who waits for whom: the first tasks on the clock, from the model's way down to the server's update."
)


def waiting(timeline: Timeline) -> Figure:
    """A bar a task, in the order of their beginnings: at work, then waiting for the update that ends it.

    Raises:
        InvalidInput: matplotlib is absent.
    """
    tasks = timeline.tasks
    order = np.lexsort((tasks.due, tasks.begin))[:SHOWN]
    begin, due, end = (x[order] for x in (tasks.begin, tasks.due, tasks.end))
    counts = (tasks.counts | (tasks.update < 0))[order]  # who is at work at the end is not lost
    rows = np.arange(len(order))
    figure = new_figure(8.6, 1.8 + 0.13 * len(order))
    axes = figure.subplots()
    until = np.minimum(due, end)
    axes.barh(rows[counts], (until - begin)[counts], left=begin[counts], color=LIGHT[0], label="at work")
    axes.barh(rows[counts], (end - until)[counts], left=until[counts], color="0.8", label="waits for others")
    axes.barh(
        rows[~counts], (until - begin)[~counts], left=begin[~counts], color=LIGHT[1], alpha=0.6,
        label="does not count: lost or late",
    )  # fmt: skip
    for time in timeline.time[timeline.time <= end.max(initial=0.0)]:
        axes.axvline(time, color="0.5", linewidth=0.7)
    names = [str(timeline.names[c] if timeline.names else c) for c in tasks.client[order].tolist()]
    axes.set_yticks(rows, [name.removeprefix("client ")[:_LETTERS] for name in names], fontsize=7)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlabel("Simulated time (s); a line is an update of the server")
    axes.set_ylabel("Client")
    tidy(axes)
    updates, share = len(timeline.time), 100 * float(np.mean(timeline.waited))
    heading = f"Who waits for whom: the first {len(rows)} tasks, fleet {timeline.fleet}"
    axes.set_title(
        f"{heading}\nover {updates:,} updates a message waits {share:.0f} % of an update's time for the last one",
        loc="left",
        fontsize=10,
    )
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    return figure
