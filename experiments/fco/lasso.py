"""Sparse recovery by federated LASSO: Figures 3 and 6 to 8 of Yuan, Zaheer and Reddi 2021."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import fedsolve as fs
from experiments.fco.lasso_statements import FIGURE, HALVED, LARGER, MOST, WHOLE, statements
from experiments.fco.methods import CENTRAL, METHODS, OTHERS, PAPER_GRID, beside, method, solved
from experiments.fco.synthetic import NUMERAL, curves, methods, on_both_grids
from fedsolve.geometry import L1
from fedsolve.studies import Cells, Study
from fedsolve.studies.experiment import Context
from fedsolve.studies.pictures import Maps
from fedsolve.studies.reproduce import program_folders
from fedsolve.studies.runner import solve

LAMBDA, ZERO, SEEDS = 0.1, 1e-2, tuple(range(10))
PENALTY = L1(LAMBDA).on("weight")
GRID = {
    "client_lr": (3e-5, 1e-4, 3e-4, *PAPER_GRID["client_lr"]),
    "server_lr": (*PAPER_GRID["server_lr"], 30.0, 100.0),
}
"""Wider than the paper's: its data as described need smaller client rates, and then larger server rates."""
LARGER_GRID = {"client_lr": (1e-4, 3e-4, 1e-3), "server_lr": (0.3, 1.0, 3.0, 10.0, 30.0)}
BEYOND = {"client_lr": (3e-6, 1e-5, *GRID["client_lr"]), "server_lr": (*GRID["server_lr"], 300.0, 1000.0)}
LARGER_BEYOND = {
    "client_lr": (1e-5, 3e-5, *LARGER_GRID["client_lr"]),
    "server_lr": (*LARGER_GRID["server_lr"], 100.0, 300.0),
}
"""Of the methods that still gained at the edge of the others so much that a verdict hung on it."""
EVAL_EXAMPLES = 1024
"""Of the training loss, which only says whether a run diverged: on all examples it takes longer than the rounds."""
MINUTES = {1: 7.0, 2: 7.2, 3: 8.0, 4: 6.2}
SHOWN = ("f1", "density", "recovery_error")
UNSETTLED = {2: ("FedDualAvg", HALVED), 3: ("FedMiD", "FedMiDOSP", HALVED), 4: ("FedDualAvg",)}
LARGER_UNSETTLED = {3: ("FedDualAvg", *OTHERS), 4: ("FedDualAvg",)}
"""By data set, at either lambda, the methods that have the grids `BEYOND`."""


@lru_cache(maxsize=2 * len(SEEDS))
def task(dataset: int, seed: int, weight: float = LAMBDA) -> fs.Task:
    """The paper's problem on the data of a seed, with the sparsity and that of the centralised solution measured."""
    drawn = fs.tasks.lasso(dataset, seed)
    drawn = replace(
        drawn, test=None, diagnostics=(*drawn.diagnostics, fs.diagnostics.Density(ZERO, "weight"))
    )
    return replace(
        beside(drawn, {CENTRAL: solved(drawn, L1(weight).on("weight"))}), eval_examples=EVAL_EXAMPLES
    )


@lru_cache(maxsize=1)
def of_first() -> Cells:
    """What is kept of data set I, with which the paper compares the others."""
    return solve(study(1), Context(program_folders()["lasso-1"], stored_only=True))


DEVIATIONS = (
    f"The paper does not give lambda: {LAMBDA} for all data sets; the first claim is whether it does what the paper "
    f"asks of it. Early rounds are looked at with {LARGER} too, on 3 x 5 rates.",
    "The authors' data generator is not published. The data follow the paper's words, on which every method diverges "
    "at client rates of 3e-3 and more, the paper's best of FedDualAvg (1e-2) among them. So 3e-5, 1e-4 and 3e-4 are "
    "added to its grid of 7 x 7, for all methods alike, and server rates of 30 and 100; what is said of the paper's "
    "grid is tuned and run on that alone. Methods whose gain at that edge could change a verdict have 3e-6, 1e-5, 300 "
    f"and 1,000 too, with lambda {LARGER} 1e-5, 3e-5, 100 and 300.",
    "Chosen by recovery error over the last 100 rounds, as A.2 says; Section 5.1 says F1 score: what is said of early "
    "rounds is looked at by both.",
    "FedMiD's fixed point is that of F + 2 psi, since both its sides apply psi: it runs at the paper's penalty, and "
    "beside it at half of it, where the fixed point is that of F + psi.",
    f"The pattern is whole where the F1 score is at most {WHOLE} below that of the centralised solution, found for the "
    f"most part from {MOST}: the paper gives no numbers. FedAvg with subgradients is not in the paper's figures of "
    "LASSO.",
    f"{len(SEEDS)} data sets with rates tuned on the first; the paper does not say how many.",
)


def study(dataset: int) -> Study:
    """The figure of one of the four data sets."""
    wide, narrow = on_both_grids("LASSO", dataset, task, "f1", every=20)
    by_f1 = replace(narrow, title=f"{narrow.title}, chosen by F1", select="f1")
    larger, _ = on_both_grids(
        "LASSO",
        dataset,
        lambda dataset, seed: task(dataset, seed, LARGER),
        "f1",
        20,
        f" with lambda {LARGER}",
    )
    of_larger = {
        m: method(
            METHODS[m],
            L1(LARGER).on("weight"),
            LARGER_BEYOND if m in LARGER_UNSETTLED.get(dataset, ()) else LARGER_GRID,
        )
        for m in ("FedDualAvg", *OTHERS)
    }
    grids = {m: BEYOND if m in UNSETTLED.get(dataset, ()) else GRID for m in (*METHODS, HALVED)}
    halved = method(METHODS["FedMiD"], L1(LAMBDA / 2).on("weight"), grids[HALVED])
    of_others = methods(PENALTY, (narrow, by_f1), grids, **{HALVED: halved})
    problems = (wide, narrow, by_f1, larger) if dataset > 1 else (wide, narrow)
    return Study(
        title=f"LASSO {NUMERAL[dataset]}: which federated methods find a sparse truth ({FIGURE[dataset]})",
        summary=f"Sparse regression, data set {NUMERAL[dataset]}: six methods, two grids of rates, ten data sets.",
        paper="yuan2021fco",
        problems={problem.title: problem for problem in problems},
        methods=lambda name: of_larger if name == larger.title else of_others(name),
        seeds=SEEDS,
        statements=statements(
            dataset, wide.title, narrow.title, by_f1.title, larger.title, lambda: of_first()
        ),
        pictures={
            **curves(SHOWN, narrow),
            "grid": Maps(
                "F1 score over the last 100 rounds at every pair of rates; a dash diverged.", "f1", 1.0, 0.0
            ),
        },
        deviations=DEVIATIONS,
        minutes=MINUTES[dataset],
        needs_data=False,
    )
