"""Rates of federated Frank-Wolfe: measured slopes beside Theorems 1 to 3 of Dadras et al. 2024."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedsolve.experiments.fw_verdicts import by_slope, slope, together
from fedsolve.experiments.rates_pictures import convex_picture, nonconvex_picture
from fedsolve.experiments.rates_problems import (
    CLIENTS,
    EXAMPLES,
    FEATURES,
    Bounded,
    convex_problems,
    nonconvex_problems,
)
from fedsolve.experiments.rates_runs import (
    BATCH,
    EVERY,
    HORIZONS,
    LAM0,
    METHODS,
    PENALTIES,
    ROUNDS,
    SEEDS,
    P,
    curve,
    smallest_gaps,
)
from fedsolve.report.markup import PageTable
from fedsolve.studies.experiment import Claim, Context, Experiment, Outcome

FLOOR = 1e-12
"""F - F* below this is rounding: slopes are fitted above."""


def run(context: Context) -> Outcome:
    """Both studies, slopes and verdicts."""
    rounds, horizons = (100, HORIZONS[:2]) if context.quick else (ROUNDS, HORIZONS)
    convex, nonconvex = convex_problems(), nonconvex_problems()
    lines = {(p, m.label): curve(context, p, convex[p], m, rounds) for p in convex for m in METHODS}
    gaps = {
        (p, part, lam0): smallest_gaps(context, p, nonconvex[p], part, lam0, horizons)
        for p in nonconvex
        for part in (1.0, P)
        for lam0 in PENALTIES
    }
    found = [*convex_claims(convex, lines, rounds), *nonconvex_claims(gaps, horizons)]
    table = slopes_table(convex, lines, rounds, gaps, horizons)
    note = f"{CLIENTS} clients, {FEATURES} weights, float64, seeds {', '.join(map(str, SEEDS))}"
    pictures = {
        "convex": (
            f"F(xbar_t) - F* against rounds, mean and range of seeds; {note}. Grey: slopes of the theorems.",
            convex_picture(convex, lines, f"{note}, lam0 = {LAM0:g} where not named"),
        ),
        "nonconvex": (
            f"The smallest gap of a run of T rounds against T; {note}. Grey: slope of Theorem 2.",
            nonconvex_picture(nonconvex, gaps, horizons, note),
        ),
    }
    settings = {
        "rounds": rounds, "evaluated every": EVERY, "seeds": list(SEEDS), "participation p": [1.0, P],
        "lam0": LAM0, "lam0 of the non-convex runs": list(PENALTIES),
        "batch of FedFW-sto": BATCH, "horizons T": list(horizons), "clients": CLIENTS,
        "examples a client": EXAMPLES, "weights": FEATURES, "dtype": "float64",
        "F*": {name: b.optimum for name, b in convex.items()},
        "gap of the solutions that give F*": {name: b.certificate for name, b in convex.items()},
        "slopes fitted on rounds": list(window(rounds)),
    }  # fmt: skip
    return Outcome(found, pictures, {"slopes": table}, DEVIATIONS, settings)


RULE = (
    "reproduced if every slope is at least as steep as the bound's (to 0.02), partly if some is, or is three "
    "quarters as steep; a slope that still steepens says that the bound's constant, not its rate, holds so far"
)
DEVIATIONS = (
    "The paper measures no rates: the theorems are what is claimed. A bound is an upper bound, so a steeper "
    "slope agrees with it; a slope over a decade of rounds on a few problems proves no theorem.",
    "Slopes are fitted on the mean over seeds, above 1e-12, over the last decade of rounds.",
    "The smallest gap of a run is taken over every tenth round, so it is a little too large.",
    "FedFW-sto with partial participation and FedFW+ have no theorem: they are shown without a verdict.",
)


def window(rounds: int) -> tuple[int, int]:
    """The rounds that slopes are fitted on: the last decade."""
    return max(rounds // 10, EVERY), rounds


def fitted(line: dict[str, np.ndarray], rounds: int) -> float:
    """The slope of the mean over seeds; minus infinity where F* is reached to rounding in the window."""
    start, stop = window(rounds)
    mean, at = line["suboptimality"].mean(axis=0), line["round"]
    inside = (at >= start) & (at <= stop)
    if (mean[inside] <= FLOOR).mean() > 0.5:
        return float("-inf")
    return slope(at, np.where(mean > FLOOR, mean, np.nan), start, stop)


def convex_claims(
    problems: dict[str, Bounded], lines: dict[tuple[str, str], dict[str, np.ndarray]], rounds: int
) -> list[Claim]:
    """A claim for each theorem, over all problems."""
    made = []
    for m in METHODS:
        slopes = {p: fitted(lines[p, m.label], rounds) for p in problems}
        earlier = {p: fitted(lines[p, m.label], rounds // 10) for p in problems}
        ours = "slopes in the last decade of rounds (the one before): "
        ours += ", ".join(f"{p} {s:.2f} ({earlier[p]:.2f})" for p, s in slopes.items())
        if m.rate is None:
            claim = f"{m.label}: how fast F(xbar_t) - F* falls"
            made.append(Claim(claim, "no rate given", ours, "not comparable", "there is no theorem"))
            continue
        verdict = together([by_slope(s, m.rate) for s in slopes.values()])
        label = m.label if "lam0" in m.label else f"{m.label}, lam0 = {LAM0:g}"
        claim = f"{label}: F(xbar_t) - F* falls at the rate of the theorem"
        made.append(Claim(claim, f"O(t^-{m.rate:.3g}), {m.source}", ours, verdict, RULE))
    return made


def nonconvex_claims(
    gaps: dict[tuple[str, float, float], np.ndarray], horizons: tuple[int, ...]
) -> list[Claim]:
    """Theorem 2 and (18), for each lam0."""
    made = []
    for lam0 in PENALTIES:
        slopes = {
            f"{p}, p = {part:g}": slope(np.array(horizons), g.mean(axis=0), 1, np.inf)
            for (p, part, penalty), g in gaps.items()
            if penalty == lam0
        }
        ours = "; ".join(f"{key}: {s:.2f}" for key, s in slopes.items())
        made.append(
            Claim(
                f"FedFW, not convex, lam0 = {lam0:g}: the smallest gap of T rounds falls at the rate of the theorem",
                "O(T^-0.333), Theorem 2 and (18)",
                f"slopes in T: {ours}",
                together([by_slope(s, 1 / 3) for s in slopes.values()]),
                RULE,
            )
        )
    return made


def slopes_table(
    problems: dict[str, Bounded], lines: Any, rounds: int, gaps: Any, horizons: tuple[int, ...]
) -> PageTable:
    """Every slope, and the value at the end."""
    rows: list[Any] = []
    for (p, label), line in lines.items():
        rate = next(m.rate for m in METHODS if m.label == label)
        end = line["suboptimality"].mean(axis=0)[-1]
        bound = None if rate is None else f"{-rate:.3f}"
        rows.append([problems[p].title, label, "F - F*", bound, f"{fitted(line, rounds):.3f}", f"{end:.3g}"])
    for (p, part, lam0), g in gaps.items():
        measured = slope(np.array(horizons), g.mean(axis=0), 1, np.inf)
        label = f"FedFW, not convex, p = {part:g}, lam0 = {lam0:g}"
        rows.append([p, label, "min gap by T", "-0.333", f"{measured:.3f}", f"{g.mean(axis=0)[-1]:.3g}"])
    head = ["Problem", "Method", "Quantity", "Slope of the bound", "Slope measured", "Value at the end"]
    return PageTable("Slopes on log-log axes", head, rows)


EXPERIMENTS = {
    "fw-rates": Experiment(
        title="Rates of federated Frank-Wolfe beside their theorems",
        citation="dadras2024fedfw",
        summary="Slopes of F(xbar) - F* and of the smallest gap on small problems in float64.",
        run=run,
    )
}
