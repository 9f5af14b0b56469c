"""Sparse recovery by federated LASSO: Figures 3 and 6 to 8 of Yuan, Zaheer and Reddi 2021."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import fedsolve as fs
from fedsolve.diagnostics import Density, Objective, RecoveryError, Support
from fedsolve.experiments.composite_figures import curves_figure, grid_figure
from fedsolve.experiments.composite_grid import (
    ETA_C,
    ETA_S,
    PAPER,
    Swept,
    best,
    centralised,
    settings_of,
    sweep,
)
from fedsolve.geometry import L1
from fedsolve.report.markup import PageTable
from fedsolve.studies.experiment import Claim, Context, Experiment, Outcome, Verdict

LAMBDA = 0.1
ZERO = 1e-2
ROUNDS, CLIENTS = 500, 10
ROMAN = {1: "I", 2: "II", 3: "III", 4: "IV"}
MINUTES = {1: 2.4, 2: 0.9, 3: 1.7, 4: 1.1}
BY = {2: 100, 3: 100, 4: 200}
"""Rounds by which the paper says that FedDualAvg has the perfect F1."""
PANELS = (
    ("f1", "F1 score of the support", False),
    ("density", "density (share of |w| > 0.01)", False),
    ("precision", "precision of the support", False),
    ("recall", "recall of the support", False),
    ("train_loss", "training loss, mean squared error", True),
    ("recovery_error", "recovery error $|w - w_{true}|_2$", True),
)


def experiment(dataset: int) -> Experiment:
    """The experiment on one of the four data sets."""
    return Experiment(
        title=f"LASSO {ROMAN[dataset]}: which federated methods find a sparse truth",
        citation="yuan2021fco",
        summary=f"Sparse regression, data set {ROMAN[dataset]}: five methods over the whole grid of rates.",
        run=lambda context: run(context, dataset),
        minutes=MINUTES[dataset],
    )


EXPERIMENTS = {f"lasso-{d}": experiment(d) for d in ROMAN}


def run(context: Context, dataset: int) -> Outcome:
    """The grid, the centralised solution, pictures and verdicts."""
    task = fs.tasks.build("lasso", dataset=dataset)
    psi = L1(LAMBDA).on("weight")
    diagnostics = (
        Support(task.truth, ZERO, "weight"),
        Density(ZERO, "weight"),
        RecoveryError(task.truth, "weight"),
        Objective(psi),
    )
    settings = {"dataset": dataset, "lambda": LAMBDA, "zero": ZERO}
    central = centralised(context, task, psi, diagnostics, settings)
    swept = sweep(context, task, psi, diagnostics, ROUNDS, CLIENTS, settings)
    chosen = {name: best(s, s.tail("recovery_error")) for name, s in swept.items()}
    title = (
        f"LASSO {ROMAN[dataset]}: {task.data.num_clients} clients x {task.data.counts[0]} examples, {CLIENTS} a "
        f"round, $\\lambda$ = {LAMBDA}, seed 0; each method at the setting with the least recovery error"
    )
    pictures = {
        "curves": (
            "Each method at its tuned rates; the dotted line is the centralised solution.",
            curves_figure(title, swept, chosen, PANELS, central),
        ),
        "grid": (
            "F1 over the last 100 rounds for every pair of rates; a dash on grey is a setting that diverged.",
            grid_figure(f"LASSO {ROMAN[dataset]}, seed 0: F1", swept, "f1", "F1, last 100 rounds", 1.0, 0.0),
        ),
    }
    return Outcome(
        claims=claims(dataset, swept, central),
        pictures=pictures,
        tables={"best": best_table(swept, central), "grid_f1": grid_table(swept)},
        deviations=DEVIATIONS,
        settings={
            **settings, "rounds": ROUNDS, "clients a round": CLIENTS, "batch": 10, "local epochs": 1, "seed": 0,
            "eta_c": list(ETA_C), "eta_s": list(ETA_S), "tuned by": "recovery error, mean of the last 100 rounds",
        },
    )  # fmt: skip


DEVIATIONS = (
    f"The paper does not give lambda. {LAMBDA} is the value at which the centralised solution recovers the "
    "pattern best over the four data sets; it is the same for all methods.",
    "The authors' data generator is not published. The data follow the paper's words, on which local steps are "
    "stable only for eta_c below about 1e-3 (a minibatch's Hessian has a top eigenvalue of about 2100); the paper's "
    "stated best eta_c = 0.01 diverges for every method. The row eta_c = 3e-4 is added to the paper's grid of 7 x 7.",
    "One seed of the data and of the cohorts; the paper does not say how many.",
)


def claims(dataset: int, swept: Mapping[str, Swept], central: Mapping[str, float]) -> list[Claim]:
    """What the paper says of this data set, and what came out."""
    found = []
    if dataset in BY:
        found.append(claim_f1(dataset, swept, central))
    found.append(claim_sensitivity(swept))
    return found


def reached(swept: Swept, round: int, among: np.ndarray) -> tuple[float, int]:
    """The best F1 of any setting allowed at a round, and its setting."""
    f1 = np.where(among, np.nan_to_num(swept.at("f1", round), nan=-1.0), -1.0)
    return float(f1.max()), int(f1.argmax())


def claim_f1(dataset: int, swept: Mapping[str, Swept], central: Mapping[str, float]) -> Claim:
    """FedDualAvg within 0.01 of the centralised F1 by the round, the others on the paper's grid not."""
    by = BY[dataset]
    everywhere = np.ones_like(PAPER)
    own, where = reached(swept["FedDualAvg"], by, everywhere)
    on_paper, _ = reached(swept["FedDualAvg"], by, PAPER)
    rest = {name: reached(s, by, PAPER)[0] for name, s in swept.items() if name != "FedDualAvg"}
    other = max(rest, key=lambda name: rest[name])
    wanted = central["f1"] - 0.01
    verdict: Verdict = (
        "reproduced" if own >= wanted and rest[other] < wanted
        else "partly" if own >= wanted or own > rest[other] else "not reproduced"
    )  # fmt: skip
    c, s = settings_of(where)
    return Claim(
        f"FedDualAvg finds the support by round {by}, the others on the paper's grid do not",
        f"F1 = 1 in less than {by} rounds",
        f"best F1 at round {by}: FedDualAvg {own:.3f} (eta_c {c:g}, eta_s {s:g}; on the paper's grid {on_paper:.3f}), "
        f"best other on the paper's grid {other} {rest[other]:.3f}; centralised {central['f1']:.3f}",
        verdict,
        f"wanted: within 0.01 of the centralised F1 ({wanted:.3f}) for FedDualAvg, below it for the others",
    )


def claim_sensitivity(swept: Mapping[str, Swept]) -> Claim:
    """FedDualAvg the least sensitive: the most settings with a good F1 at the end, on the paper's grid and on all."""
    good = {name: int((s.tail_good("f1") >= 0.9).sum()) for name, s in swept.items()}
    paper = {name: int(((s.tail_good("f1") >= 0.9) & PAPER).sum()) for name, s in swept.items()}
    first = good["FedDualAvg"] >= max(good.values()), paper["FedDualAvg"] >= max(paper.values())
    verdict: Verdict = "reproduced" if all(first) else "partly" if any(first) else "not reproduced"
    shown = ", ".join(f"{name} {good[name]} ({paper[name]})" for name in good)
    return Claim(
        "FedDualAvg is the least sensitive to its rates",
        "shown as a scatter of all settings",
        f"settings of 56 with F1 of 0.9 or more over the last 100 rounds (on the paper's 49): {shown}",
        verdict,
    )


def best_table(swept: Mapping[str, Swept], central: Mapping[str, float]) -> PageTable:
    """Each method at the setting with the least recovery error, and at the one with the best F1."""
    names = ("f1", "density", "precision", "recall", "train_loss", "recovery_error")
    scores: Mapping[str, Callable[[Swept], np.ndarray]] = {
        "recovery error": lambda s: s.tail("recovery_error"),
        "F1": lambda s: -s.tail_good("f1"),
    }
    rows: list[list[Any]] = []
    for rule, score in scores.items():
        for name, s in swept.items():
            k = best(s, score(s))
            c, e = settings_of(k)
            rows.append([name, rule, c, e, *(round(float(s.tail(m)[k]), 4) for m in names)])
    rows.append(["centralised", "-", None, None, *(round(central[m], 4) for m in names)])
    head = ["Method", "Tuned by", "eta_c", "eta_s", *names]
    return PageTable("Best settings; means over the last 100 rounds", head, rows)


def grid_table(swept: Mapping[str, Swept]) -> PageTable:
    """F1 of every setting."""
    rows = []
    for k in range(len(PAPER)):
        c, s = settings_of(k)
        f1 = [float(found.tail_good("f1")[k]) for found in swept.values()]
        rows.append([f"{c:g}", s, *(round(v, 4) if v >= 0 else None for v in f1)])
    return PageTable("F1 over the last 100 rounds, every setting", ["eta_c", "eta_s", *swept], rows)
