"""Robust reductions under attack: accuracy against the share of attackers, for three server optimisers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedsolve.experiments.robustness_claims import claims, means
from fedsolve.experiments.robustness_runs import ALPHA, ATTACKS, CLIENTS, WORST, Found, Plan, run_all
from fedsolve.report.markup import PageTable
from fedsolve.studies.experiment import Context, Experiment, Outcome
from fedsolve.studies.panels import Line, Panel, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def run(context: Context) -> Outcome:
    """All runs, the picture, the table and the verdicts."""
    plan, found = run_all(context)
    note = f"{CLIENTS} clients, Dirichlet({ALPHA:g}), {plan.rounds} rounds, seeds {', '.join(map(str, plan.seeds))}"
    return Outcome(
        claims=claims(plan, found),
        pictures={
            "robustness": (
                f"Test accuracy after {plan.rounds} rounds; mean and range over seeds.",
                picture(plan, found, note),
            )
        },
        tables={"accuracy": table(plan, found)},
        deviations=DEVIATIONS,
        settings={
            "task": f"digits, softmax regression, {note}", "participation": "all clients, every round",
            "attacks": {name: repr(attack) for name, attack in ATTACKS.items()},
            "attackers that reductions expect": WORST,
            "local work": "one epoch, minibatches of 32, client_lr 0.5",
            "server": "FedAvg 1.0; FedAdam 0.03, tau 1e-3; FedDuAdam none; all clients alike",
        },
    )  # fmt: skip


def picture(plan: Plan, found: Found, note: str) -> Figure:
    """Attacks below each other, server optimisers side by side, a line for each reduction."""
    shares = 100 * np.array(plan.shares)
    rows = [
        [
            Panel(
                f"{attack}, {rule}",
                [Line(r, shares, 100 * found[rule, r][:, i]) for r in plan.reductions],
                "test accuracy (%)",
                "share of attackers (%)",
                ylog=False,
            )
            for rule in plan.rules
        ]
        for i, attack in enumerate(ATTACKS)
    ]
    figure = panels(rows, f"Test accuracy against the share of attackers\n{note}", width=4.0, height=2.6)
    for axis in figure.axes:
        axis.set_ylim(0, 100)
        axis.set_xticks(shares)
    return figure


def table(plan: Plan, found: Found) -> PageTable:
    """Accuracies in per cent, a row for each rule, reduction and attack."""
    rows = [
        [rule, reduction, attack, *(round(float(x), 1) for x in means(found, rule, reduction)[i])]
        for (rule, reduction) in found
        for i, attack in enumerate(ATTACKS)
    ]
    head = ["Server optimiser", "Reduction", "Attack", *(f"{100 * s:.0f} % attack" for s in plan.shares)]
    return PageTable("Test accuracy (%) at the end, mean of the seeds", head, rows)


DEVIATIONS = (
    "No paper's figure is made again: the verdicts set what papers prove against one task, where clients differ. The "
    "theorems ask for clients that are alike, or nearly.",
    "Softmax regression on 8x8 digits, 30 clients, all in every round; attackers are drawn anew for each seed, those "
    "of a smaller share among those of a larger.",
    "Trimmed mean, Krum and multi-Krum are told to expect 12 attackers, 40 %, whatever the share: a server does not "
    "know it. So without attackers they cut, or leave out, honest clients.",
    "Attackers know nothing of each other or of the reduction: sign flip sends -D_i, scaled -10 D_i, Gaussian noise of "
    "deviation 1 in each coordinate, label flip trains on 9 - y. Attacks made for a reduction do more harm.",
    "What else an attacker sends is honest: |D_i|^2, by which FedDuAdam steps, is that of its true displacement. All "
    "but the mean and the trimmed mean reduce it by its median.",
    "Rates are not tuned to the attacks, nor to the reductions: one client rate for all, FedAdam's server rate as it "
    "does well without attackers.",
)

EXPERIMENTS = {
    "robustness": Experiment(
        title="Robust reductions under attack",
        citation="yin2018robust",
        summary="Seven reductions, four attacks, three server optimisers: accuracy against the share of attackers.",
        run=run,
        minutes=10,
    )
}
