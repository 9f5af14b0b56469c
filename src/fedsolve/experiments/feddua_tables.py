"""Tables of `feddua-synthetic`: the tuned rates, and every setting that was tried."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedsolve.experiments.feddua_claims import first_to, geometric
from fedsolve.experiments.feddua_pictures import headline
from fedsolve.experiments.feddua_runs import Swept
from fedsolve.report.markup import PageTable
from fedsolve.report.sweep_table import edges


def best_table(swept: Swept, curves: Mapping[str, Mapping[str, np.ndarray]]) -> PageTable:
    """Each method at its tuned rates."""
    rows: list[list[Any]] = []
    for name, c in curves.items():
        sweep, judged = swept.grids[name], c[headline(name)]
        final = judged[:, -1]
        settings = sweep.best_settings
        reached = [first_to(c["round"], judged, t) for t in (1e-1, 1e-3, 1e-6, 1e-12)]
        rows.append([
            name, round(float(np.log10(settings["client_lr"])), 2),
            round(float(np.log10(settings["server_lr"])), 2) if "server_lr" in settings else None,
            headline(name), f"{geometric(final):.3g}", f"{final.min():.3g} to {final.max():.3g}",
            f"{geometric(c['last'][:, -1]):.3g}", f"{geometric(c['averaged'][:, -1]):.3g}",
            *(int(r) if np.isfinite(r) else None for r in reached), "; ".join(edges(sweep)) or None,
        ])  # fmt: skip
    head = [
        "Method", "log10 eta_l", "log10 eta_g", "Iterate", "Loss at the end", "Range", "Last iterate",
        "Mean of the last two", "Rounds to 0.1", "to 1e-3", "to 1e-6", "to 1e-12", "Edge of the grid",
    ]  # fmt: skip
    return PageTable("Tuned rates; losses are geometric means over the data sets shown", head, rows)


def grid_table(swept: Swept) -> PageTable:
    """Every setting of every sweep with its score."""
    rows: list[list[Any]] = []
    for what, group in (("paper's grid", swept.grids), ("epsilon_g", swept.eps_g), ("epsilon", swept.eps)):
        for name, sweep in group.items():
            for values, score in zip(sweep.points, sweep.score, strict=True):
                shown = [
                    f"{values[axis]:.3g}" if axis in values else None
                    for axis in ("client_lr", "server_lr", "eps_g", "eps")
                ]
                rows.append([what, name, int(sweep.rounds[-1]), *shown, f"{score:.4g}"])
    head = ["Sweep", "Method", "Rounds", "eta_l", "eta_g", "epsilon_g", "epsilon", "Training loss at the end"]
    return PageTable("All settings, mean over the data sets tuned on", head, rows)
