"""What Yuan, Zaheer and Reddi 2021 say of their figures of fMRI scans, with the rules that judge it."""

from __future__ import annotations

import numpy as np

from experiments.fco.methods import CENTRAL, PAPER_GRID
from experiments.fco.rules import times, with_known
from experiments.margins import margin
from fedsolve.studies import Cells, Decision, Statement
from fedsolve.studies.experiment import Verdict
from fedsolve.studies.public import SweepRecord
from fedsolve.studies.rules import (
    Rule,
    around_factor,
    at_least_as_good,
    better,
    beyond,
    by_metric,
    each_better,
    elsewhere,
    together,
)

NAME, ROUNDS, SPLITS = "face against house", 300, 8
ALONE = "alone"
"""What the columns of the mean over clients that each train alone begin with."""
MARGIN = margin("fmri", "as-accurate")
"""In points of accuracy: what counts as comparable, ours."""
SPARSE = margin("fmri", "sparse")
SPARSES = around_factor(SPARSE)
"""Times the centralised density: what counts as sparse, ours, and its neighbours."""
SHOWN = (0.003, 0.3)
"""Products of client and server rate between which Figure 12 shows settings."""


def shown(grid: SweepRecord) -> np.ndarray:
    """Which settings of a grid Figure 12 shows, of those in the paper's, shape (settings,)."""
    products = np.array([point["client_lr"] * point["server_lr"] for point in grid.points])
    theirs = [all(point[axis] in values for axis, values in PAPER_GRID.items()) for point in grid.points]
    return (products > SHOWN[0] * 0.999) & (products < SHOWN[1] * 1.001) & theirs


def at_most(name: str, factor: float) -> Rule:
    """The method's density is at most so many times the centralised one."""
    return by_metric("density", with_known([CENTRAL], times(NAME, name, CENTRAL, factor, SPARSES, side=-1)))


def good_settings(cells: Cells, method: str, factor: float) -> np.ndarray:
    """On each split the share of Figure 12's settings that end sparse and as accurate as the centralised solution."""
    grid = cells.cell(NAME, method).grid
    assert grid is not None
    end = {name: values[shown(grid), :, -1] for name, values in grid.metrics.items()}
    sparse = end["density"] <= factor * end[f"{CENTRAL}_density"]
    accurate = 100 * end["validation_accuracy"] > 100 * end[f"{CENTRAL}_validation_accuracy"] - MARGIN
    return (sparse & accurate).mean(axis=0)


def most_settings(cells: Cells) -> Decision:
    """Most settings of FedDualAvg are good, and more than of any other method, by intervals over splits."""
    methods = cells.methods(NAME)

    def compared(factor: float) -> tuple[Verdict, str]:
        own, *others = (good_settings(cells, m, factor) for m in methods)
        apart = {"more than half": own - 0.5}
        apart |= {f"more than {m}'s": own - other for m, other in zip(methods[1:], others, strict=True)}
        return beyond(((what, cells.interval(NAME, x, len(apart))) for what, x in apart.items()), 0.0)

    shares = {m: good_settings(cells, m, SPARSE) for m in methods}
    ours = ", ".join(f"{m} {100 * share.mean():.0f} %" for m, share in shares.items())
    verdict, which = compared(SPARSE)
    near = elsewhere({factor: compared(factor)[0] for factor in SPARSES}, SPARSE)
    reason = "more than half of FedDualAvg's settings, and more than of any other, by the 95 % intervals over splits"
    return Decision(f"of Figure 12's settings {ours}", verdict, f"{reason}{which}; {near}")


def statements() -> tuple[Statement, ...]:
    """The paper's, of which the margins are ours."""
    middle = ("FedMiD", "FedMiDOSP")
    return (
        Statement(
            f"FedDualAvg is as accurate as the centralised solution: lower by less than {MARGIN:g} points",
            "Figure 5: comparable; the margin is ours",
            with_known([CENTRAL], at_least_as_good(NAME, "FedDualAvg", CENTRAL, MARGIN)),
        ),
        Statement(
            f"FedDualAvg is as sparse as the centralised solution: at most {SPARSE:g} times its density",
            "Figure 5: comparable; the factor is ours",
            at_most("FedDualAvg", SPARSE),
        ),
        Statement(
            "FedMiD and FedMiD-OSP give denser solutions than FedDualAvg",
            "Figure 5",
            by_metric("density", each_better(NAME, [("FedDualAvg", other) for other in middle])),
        ),
        Statement(
            "FedMiD and FedMiD-OSP are less accurate than FedDualAvg",
            "Figure 5: relatively less accurate",
            each_better(NAME, [("FedDualAvg", other) for other in middle]),
        ),
        Statement(
            f"FedDualAvg-OSP gives sparse solutions: at most {SPARSE:g} times the centralised density",
            "Figure 5; the factor is ours",
            at_most("FedDualAvgOSP", SPARSE),
        ),
        Statement(
            "FedDualAvg-OSP is less accurate than FedDualAvg",
            "Figure 5: far less accurate",
            better(NAME, "FedDualAvg", "FedDualAvgOSP"),
        ),
        Statement(
            "FedDualAvg is more accurate than FedAvg with subgradients and than a client alone",
            "Figure 1: significantly",
            together(
                better(NAME, "FedDualAvg", "Subgradient"),
                with_known([ALONE], better(NAME, "FedDualAvg", ALONE)),
            ),
        ),
        Statement(
            f"Most settings of FedDualAvg end sparse (at most {SPARSE:g} times the centralised density) and accurate "
            f"(within {MARGIN:g} points), more than of any other method",
            "Figure 12 and A.4.2: most reach the upper left, most robust; the bounds are ours",
            most_settings,
        ),
    )
