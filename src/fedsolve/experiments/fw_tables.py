"""What is shown of a table of the Frank-Wolfe paper: the numbers, the pictures, and the claims with verdicts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from fedsolve.experiments.fw_common import Curves, final, spread
from fedsolve.experiments.fw_pictures import beside
from fedsolve.experiments.fw_problems import NAMES
from fedsolve.experiments.fw_study import Cell, Found, Study
from fedsolve.experiments.fw_verdicts import by_wins
from fedsolve.report.markup import PageTable
from fedsolve.studies.experiment import Claim
from fedsolve.studies.panels import Line, Panel, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

REASON = (
    "the public code since 2023-06 overwrites every client with xbar, has a ball for each tensor, and other data "
    "splits; here the method is the paper's, and the data are smaller"
)
TUNED = (
    "reproduced with as many columns as published, partly with half; FedDR's rate and eta are tuned here for "
    "every column, while the public code has 0.05 and a penalty of 0.01 throughout; a slower rate than that of "
    "projection methods is what the paper itself names as FedFW's limitation"
)


def table(study: Study, found: Found) -> PageTable:
    """A row for each cell and contender."""
    head = ["Ball", "Partition", "Data", "Method", "Setting", "Accuracy, theirs (%)", "Accuracy (%)"]
    head += ["F(xbar)", "FW gap"]
    rows = []
    for key, curves in found.items():
        for i, contender in enumerate(study.contenders):
            c = curves[contender.label]
            last = {name: c[name][:, -1] for name in ("loss", "gap", "accuracy")}
            theirs = study.theirs[key][i] if i < len(study.theirs[key]) else None
            setting = ", ".join(f"{s:g}" for s in contender.settings[int(c["chosen"])])
            row = [key[0], NAMES[key[1]], study.problems[key[2]].title, contender.label, setting, theirs]
            row += [spread(last["accuracy"], 3, 100.0), spread(last["loss"], 4)]
            rows.append([*row, spread(last["gap"], 3)])
    what = "Setting is lam0, for FedDR its client rate and eta. "
    seeds = len(study.plan.seeds)
    return PageTable(
        f"{what}Mean and standard deviation of {seeds} seeds" if seeds > 1 else f"{what}One seed", head, rows
    )


def pictures(study: Study, found: Found) -> dict[str, tuple[str, Figure]]:
    """Loss and gap against rounds for every cell, and accuracies beside theirs."""
    plural = "s" if len(study.plan.seeds) > 1 else ""
    seeds = f"seed{plural} {', '.join(map(str, study.plan.seeds))}"
    batch = "full batches" if study.plan.batch == "full" else f"batches of {study.plan.batch}"
    context = f"{study.clients} clients, all take part, {batch}, radius 10, {seeds}"
    made = {
        "loss": (
            f"Training objective by round. {context}.",
            panels(_rows(study, found, "loss", "F(xbar)"), f"F(xbar) by round · {context}"),
        ),
        "gap": (
            f"Frank-Wolfe gap of xbar by round. {context}.",
            panels(_rows(study, found, "gap", "gap(xbar)"), f"Frank-Wolfe gap by round · {context}"),
        ),
    }
    points = {}
    for i, contender in enumerate(study.contenders):
        keys = [key for key in found if i < len(study.theirs[key])]
        ours = [100 * final(found[key][contender.label], "accuracy") for key in keys]
        if keys:
            points[contender.label] = ([study.theirs[key][i] for key in keys], ours)
    title = f"Test accuracies, one point for each column of the table\n{context}"
    return made | {
        "accuracy": ("Published accuracies and ours: not comparable (see the claims).", beside(points, title))
    }


def _rows(study: Study, found: Found, column: str, ylabel: str) -> list[list[Panel]]:
    """Panels: a row for each ball and partition, a column for each problem."""
    rows: dict[tuple[str, str], list[Panel]] = {}
    for key, curves in found.items():
        lines = [Line(label, c["round"], c[column]) for label, c in curves.items()]
        title = f"{study.problems[key[2]].title} · {key[0]} ball · {NAMES[key[1]]}"
        rows.setdefault(key[:2], []).append(Panel(title, lines, ylabel))
    return list(rows.values())


def claims(study: Study, found: Found) -> list[Claim]:
    """FedFW's family against FedDR in loss and gap, FedFW+ against FedFW, and the accuracies."""
    ours = [c.label for c in study.contenders if c.label.startswith("FedFW")]
    feddr = "FedDR"
    total = len(found)
    published = sum(max(a[: len(ours)]) > a[len(ours)] for a in study.theirs.values())
    says = f"best in test accuracy in {published} of {total}"
    family = " or ".join(ours)
    made = []
    caution = "; not convex: a small gap may be that of a bad stationary point"
    for key, what in (("loss", "training objective F(xbar)"), ("gap", "Frank-Wolfe gap")):
        won = wins(found, ours, feddr, key)
        text = f"lower {what} than FedDR with the same one local step in {won} of {total}"
        claim = f"{family} ends better than FedDR: {what}"
        made.append(Claim(claim, says, text, by_wins(won, published), TUNED + caution))
    made.append(_plus(study, found))
    return [*made, _accuracies(study, found, ours, feddr)]


def wins(found: Found, ours: list[str], other: str, key: str) -> int:
    """Cells in which the best of ours ends below the other; a method that diverged is beaten by any."""

    def end(curves: Mapping[str, Curves], label: str) -> float:
        value = final(curves[label], key)
        return value if np.isfinite(value) else np.inf

    return sum(min(end(c, label) for label in ours) < end(c, other) for c in found.values())


def _plus(study: Study, found: Found) -> Claim:
    theirs = sum(a[1] > a[0] for a in study.theirs.values())
    won = wins(found, ["FedFWPlus"], "FedFW", "loss")
    total = len(found)
    return Claim(
        "FedFW+ is an empirically faster version of FedFW",
        f"stated; higher test accuracy in {theirs} of {total}",
        f"lower F(xbar) at the end in {won} of {total}, lower gap in {wins(found, ['FedFWPlus'], 'FedFW', 'gap')}",
        by_wins(won, -(-2 * total // 3)),
        "by F: reproduced with two thirds of the columns, partly with one third",
    )


def _accuracies(study: Study, found: Found, ours: list[str], feddr: str) -> Claim:
    def accuracy(key: Cell, label: str) -> float:
        return 100 * final(found[key][label], "accuracy")

    labels = [*ours, feddr]
    apart = [
        abs(accuracy(key, label) - study.theirs[key][i]) for key in found for i, label in enumerate(labels)
    ]
    better = sum(max(accuracy(key, label) for label in ours) > accuracy(key, feddr) for key in found)
    return Claim(
        "The published test accuracies",
        "see the table",
        f"mean distance {np.nanmean(apart):.1f} points; {' or '.join(ours)} above FedDR in {better} of {len(found)}",
        "not comparable",
        REASON,
    )
