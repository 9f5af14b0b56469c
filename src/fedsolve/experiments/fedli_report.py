"""Pictures and tables of `fedli-convex`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fedsolve.experiments.fedli_problems import KINDS, L2
from fedsolve.experiments.fedli_runs import EXACT, GRID, PAPER, REGIMES
from fedsolve.experiments.fedli_verdicts import Found, fit, last, names, rises
from fedsolve.report.markup import PageTable
from fedsolve.studies.panels import Line, Panel, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def pictures(found: Found, note: str) -> dict[str, tuple[str, Figure]]:
    """Descent, rate, and the methods beside tuned FedAvg."""
    return {
        "descent": (
            "F of every round from w = 0, convex losses (l2 = 0), FedLi-LS with server step 1. In brackets: rounds "
            f"in which F rises, in the order of the legend; {note}.",
            _descent(found),
        ),
        "rate": (
            f"F - F* of every round, strongly convex losses (l2 = {L2:g}), full batches and all clients; {note}. "
            "A straight line is a linear rate; F* from FISTA.",
            _rate(found),
        ),
        "tuned": (
            "Training loss on convex losses, minibatches, a tenth of clients a round; FedAvg at the best and the "
            f"median setting of its grid; {note}.",
            _tuned(found),
        ),
    }


def _descent(found: Found) -> Figure:
    keys = [("eta_max 1", regime) for regime in REGIMES] + [("eta_max 10", EXACT)]
    grid = []
    for kind, words in KINDS.items():
        row = []
        for name in names(found):
            done = {
                key: found.convex[name, kind, key[0], key[1].label]
                for key in keys
                if (name, kind, key[0], key[1].label) in found.convex
            }
            counts = ", ".join(str(rises(c["value"])) for c in done.values())
            lines = [_line(f"{m}, {regime.label}", c["value"]) for (m, regime), c in done.items()]
            row.append(Panel(f"{name}, {words} ({counts})", lines, "objective F"))
        grid.append(row)
    return _legend(panels(grid, "FedLiLS, convex: does the global objective descend?", width=4.0))


def _rate(found: Found) -> Figure:
    grid = []
    for kind, words in KINDS.items():
        row = []
        for name in names(found):
            lines = [
                _line(method, np.maximum(c["value"], 1e-16))
                for (d, k, method, regime), c in found.strong.items()
                if (d, k, regime) == (name, kind, EXACT.label)
            ]
            row.append(Panel(f"{name}, {words}", lines, "F - F*"))
        grid.append(row)
    return panels(grid, "FedLiLS, strongly convex: is the rate linear, and to where?", width=4.0)


def _tuned(found: Found) -> Figure:
    grid = []
    for kind in ("iid", "unequal"):
        row = []
        for name in names(found):
            fedavg, scaled = found.tuned[name, kind, "FedAvg"], found.tuned[name, kind, "FedLiLU"]
            order = np.argsort(fedavg["score"])
            lines = [
                _line("FedAvg, best of its grid", fedavg["loss"][order[0]], fedavg["rounds"]),
                _line("FedAvg, median of its grid", fedavg["loss"][order[len(order) // 2]], fedavg["rounds"]),
                *(
                    _line(f"FedLiLS, {m}" if m != "FedLiLU" else "FedLiLU, client_lr 0.1", c["value"])
                    for (d, k, m, regime), c in found.convex.items()
                    if (d, k, regime) == (name, kind, PAPER.label)
                ),
                _line("FedLiLU, best client_lr", scaled["loss"][int(scaled["best"])], scaled["rounds"]),
            ]
            row.append(Panel(f"{name}, {KINDS[kind]}", lines, "training loss"))
        grid.append(row)
    return _legend(
        panels(grid, "Convex losses, minibatches, a tenth of clients a round", width=4.2, height=3.2)
    )


def _legend(figure: Figure) -> Figure:
    """The legend in three columns, as long labels need."""
    old = figure.legends[0]
    handles, labels = old.legend_handles, [text.get_text() for text in old.get_texts()]
    old.remove()
    figure.legend(
        [h for h in handles if h is not None], labels, loc="outside lower center", ncols=3, frameon=False,
        fontsize=9, handlelength=3.5,
    )  # fmt: skip
    return figure


def _line(label: str, values: np.ndarray, rounds: np.ndarray | None = None) -> Line:
    at = np.arange(len(values)) if rounds is None else rounds
    return Line(label, at, np.asarray(values)[None])


def tables(found: Found) -> dict[str, PageTable]:
    """Counts of rises, slopes, and losses beside FedAvg's grid."""
    return {"rises": _rises(found), "rates": _rates(found), "losses": _losses(found)}


def _rises(found: Found) -> PageTable:
    rows: list[list[Any]] = []
    for convex, curves in (("0", found.convex), (f"{L2:g}", found.strong)):
        for (name, kind, method, regime), c in curves.items():
            value = c["value"]
            largest = float(np.max(np.diff(value), initial=0.0))
            trials = c["trials"].mean()
            rows.append([
                name, KINDS[kind], convex, method, regime, rises(value), len(value) - 1, f"{largest:.2g}",
                round(float(trials), 2) if np.isfinite(trials) else None, round(float(c["scale"].mean()), 3),
            ])  # fmt: skip
    head = [
        "Data", "Clients", "l2", "Method", "Round", "Rises", "of rounds", "Largest rise",
        "Loss evaluations a step", "Server step, mean",
    ]  # fmt: skip
    return PageTable("Rounds in which F rises", head, rows)


def _rates(found: Found) -> PageTable:
    rows: list[list[Any]] = []
    for (name, kind, method, regime), c in found.strong.items():
        slope, least, kept = fit(np.maximum(c["value"], 1e-16))
        end, lasts = float(c["value"][-1]), "yes" if kept else "no"
        rows.append([name, KINDS[kind], method, regime, f"{slope:.4f}", f"{least:.2g}", f"{end:.2g}", lasts])
    head = ["Data", "Clients", "Method", "Round", "Slope of log(F - F*)", "Least F - F*", "At the end"]
    head.append("Rate kept")
    return PageTable(f"Strongly convex (l2 = {L2:g}): slopes a round, and where they stop", head, rows)


def _losses(found: Found) -> PageTable:
    rows: list[list[Any]] = []
    pairs = [f"client_lr {c:g}, server_lr {s:g}" for c in GRID["client_lr"] for s in GRID["server_lr"]]
    for (name, kind, method), grid in found.tuned.items():
        best = int(grid["best"])
        at = pairs[best] if method == "FedAvg" else f"client_lr {GRID['client_lr'][best]:g}"
        shown = grid["score"][np.isfinite(grid["score"])]
        rows.append(
            [name, KINDS[kind], f"{method}, best of {len(grid['score'])}", at, f"{grid['score'][best]:.4g}"]
        )
        if method == "FedAvg":
            rows.append([name, KINDS[kind], "FedAvg, median of the grid", None, f"{np.median(shown):.4g}"])
            for (d, k, m, regime), c in found.convex.items():
                if (d, k, regime) == (name, kind, PAPER.label):
                    label = m if m == "FedLiLU" else f"FedLiLS, {m}"
                    rows.append([name, KINDS[kind], label, "defaults but eta_max", f"{last(c['value']):.4g}"])
    head = ["Data", "Clients", "Method", "Settings", "Training loss"]
    return PageTable(
        "Training loss, mean of the last fifth of the rounds, paper's regime (l2 = 0)", head, rows
    )
