"""Plots of a fleet's first tasks and of the labels that clients hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fedsolve.core.errors import InvalidInput
from fedsolve.core.fleets import Timeline
from fedsolve.data.federated import FederatedData
from fedsolve.report.plots import new_figure, tidy
from fedsolve.report.style import LIGHT

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHOWN = 60
"""Tasks that are drawn."""
_LETTERS = 24
"""Of a client's name."""
CAPTION = (
    "Who waits for whom: the first tasks on the clock, from the model's way down to the server's update."
)


def waiting(timeline: Timeline) -> Figure:
    """A bar a task, in the order of their beginnings: at work, then waiting for the update that ends it."""
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
    label = "Simulated time (s); a line is an update of the server"
    axes.set(ylim=(len(rows) - 0.4, -0.6), xlabel=label, ylabel="Client")
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


# The usual plot of heterogeneous data: how many examples of each label every client holds.

MOST_CLIENTS = 100
"""Up to so many clients are all drawn; of more, `SAMPLE` are."""
SAMPLE = 60
_MUTED = (
    "#332288",
    "#88CCEE",
    "#117733",
    "#DDCC77",
    "#CC6677",
    "#44AA99",
    "#882255",
    "#999933",
    "#AA4499",
    "#BBBBBB",
)
_LEGEND_LABELS = 20
_NAMED = 24
"""Up to so many clients have a row with a name; of more the bars stand upright, in less than half a screen."""


def label_counts(data: FederatedData, labels: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    # the distinct labels, shape (labels,), and how often each client has each, shape (clients, labels)
    values = np.asarray(getattr(data.examples, "y", None) if labels is None else labels)
    if values.dtype == object:
        raise InvalidInput("the examples have no field y: give labels, one for each example")
    if values.shape != (data.num_examples,) or np.issubdtype(values.dtype, np.inexact):
        raise InvalidInput(
            f"labels of shape {values.shape} and type {values.dtype}: "
            f"give {data.num_examples} integers or names, one for each example, in the order of the data"
        )
    names, codes = np.unique(values, return_inverse=True)
    owner = np.repeat(np.arange(data.num_clients), data.counts)
    counts = np.zeros((data.num_clients, len(names)), np.int64)
    np.add.at(counts, (owner, codes), 1)
    return names, counts


def labels_by_client(data: FederatedData, labels: np.ndarray | None = None, title: str = "") -> Figure:
    """Stacked bars of label counts, one bar per client; `labels`, shape (examples,), default to `examples.y`."""
    # Of more than 100 clients, 60 drawn at random (always the same) are shown, and the title says so.
    names, counts = label_counts(data, labels)
    total = data.num_clients
    shown = np.arange(total)
    if total > MOST_CLIENTS:
        shown = np.sort(np.random.default_rng(0).choice(total, SAMPLE, replace=False))
    figure = new_figure(8.6, 3.4 if len(shown) > _NAMED else 1.6 + max(1.6, 0.3 * len(shown)))
    axes = figure.subplots()
    _bars(axes, names, counts[shown], [data.names[i] for i in shown])
    some = f"{len(shown)} of {total:,} clients, drawn at random"
    which = some if len(shown) < total else f"{total} clients"
    heading = f"{title or 'Labels by client'}\n{which}, {data.num_examples:,} examples in all"
    axes.set_title(heading, loc="left", fontsize=10)
    return figure


def _bars(axes: Axes, names: np.ndarray, counts: np.ndarray, clients: list[str]) -> None:
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.collections import PolyCollection

    few = len(names) <= len(_MUTED)
    colours = _MUTED if few else colormaps["viridis"](np.linspace(0, 1, len(names)))
    upright = len(clients) > _NAMED
    at, before = np.arange(len(clients)), np.zeros(len(counts), np.int64)
    for k, name in enumerate(names):
        look: dict[str, Any] = {"color": colours[k], "label": str(name), "linewidth": 0}
        if upright:  # as one collection: a thousand bars of their own take half a second
            left, right, top = at - 0.45, at + 0.45, before + counts[:, k]
            corners = [(left, before), (right, before), (right, top), (left, top)]
            bars = np.stack([np.stack(corner, -1) for corner in corners], 1)
            axes.add_collection(PolyCollection(list(bars), **look))
        else:
            axes.barh(at, counts[:, k], left=before, height=0.85, **look)
        before = before + counts[:, k]
    if upright:
        step = -(-len(clients) // 25)
        numbered = all(c.removeprefix("client ").isdecimal() for c in clients)  # as data without names are
        texts = [c.removeprefix("client ") if numbered else _short(c) for c in clients[::step]]
        axes.set_xticks(at[::step], texts, fontsize=8, rotation=0 if max(map(len, texts)) < 4 else 60)
        axes.set(xlim=(-0.5, len(clients) - 0.5), ylim=(0, 1.05 * max(before.max(), 1)))
        axes.set(xlabel="Client", ylabel="Examples (count)")
    else:
        axes.set_yticks(at, [_short(c) for c in clients], fontsize=8)
        axes.set(ylim=(len(clients) - 0.5, -0.5), xlabel="Examples (count)", ylabel="Client")
    axes.spines[["top", "right"]].set_visible(False)
    figure = axes.get_figure(root=True)
    assert figure is not None
    if len(names) <= _LEGEND_LABELS:
        figure.legend(loc="outside right upper", title="Label", frameon=False, fontsize=9)
    else:
        bar = figure.colorbar(ScalarMappable(cmap="viridis"), ax=axes, ticks=[0, 1], label="Label")
        bar.ax.set_yticklabels([_short(str(names[0])), _short(str(names[-1]))])


def _short(name: str) -> str:
    return name if len(name) <= 18 else name[:17] + "…"
