"""Averaged Frank-Wolfe steps stay where they are: the counter-example of Dadras et al. 2024, Appendix A."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from jaxtyping import Array

import fedsolve as fs
from experiments.fedfw.public_code import OverwrittenFrankWolfe
from experiments.fedfw.theorems import Constants, theorem_1
from fedsolve.geometry import L1Ball
from fedsolve.studies import Cells, Decision, Method, Problem, Statement, Study
from fedsolve.studies.pictures import Several
from fedsolve.studies.public import Batch, Params, Scalar, module

LAM0, ROUNDS, EVERY = 1.0, 4000, 10
CENTRES = (3.0, -1.0)
"""f_i(x) = (x - c_i)^2 on [-1, 1]: F(x) = (x - 1)^2 + 4."""
N = len(CENTRES)
KNOWN = Constants(smooth=2.0, clients=N, diameter=2.0, dual=np.sqrt(8.0), gradient=np.sqrt(8.0))
"""|Y*| = |(2, -2)|: with it each client's own minimiser over the set is 1; both clients' gradients over n there have
that norm too."""
AVERAGED = "averaged steps"
SHOWN = (10, 200, 1000, 4000)
EXACT = "exact arithmetic decides: no chance enters"


@module
class Iterate(fs.diagnostics.Diagnostic):
    """`iterate`: the model, a single number."""

    def __call__(self, point: fs.diagnostics.Point) -> dict[str, Array]:
        """x."""
        return {"iterate": point.params[0]}


def squared_distance(x: Params, batch: Batch) -> Scalar:
    """(x - c)^2 on one example c."""
    return ((x - batch) ** 2).mean()


def task(data_dir: Path | None) -> fs.Task:
    """Two clients of one example each, from x = 0."""
    clients = [np.array([[c]]) for c in CENTRES]
    made = fs.Task.from_arrays(squared_distance, np.zeros(1), clients, local_steps=1, batch_size=None)
    return replace(made, diagnostics=(Iterate(), fs.diagnostics.Suboptimality(None, 4.0)))


def bound(rounds: np.ndarray) -> np.ndarray:
    """What (38) allows of F(xbar) - F* after so many rounds, with t = rounds + 1 there."""
    return theorem_1(KNOWN, LAM0, rounds + 1.0)


def stays(cells: Cells) -> Decision:
    """Whether the averaged steps leave 0 at any evaluation."""
    _, x = cells.curve(NAME, AVERAGED, metric="iterate")
    far = float(np.abs(x).max())
    return Decision(f"largest |x| of {ROUNDS} rounds: {far:g}", "refuted" if far else "reproduced", EXACT)


def within_the_bound(cells: Cells) -> Decision:
    """FedFW's F against the bound with its constants, at every evaluation."""
    rounds, apart = cells.curve(NAME, "FedFW", metric="suboptimality")
    share = float((apart[0, 1:] / bound(rounds[1:])).max())
    ours = f"{_iterates(cells, 'FedFW')}; F - F* at most {share:.3g} of the bound"
    return Decision(
        ours,
        "consistent" if share <= 1 else "refuted",
        f"L = 2, D = 2, |Y*| = 2.83, G = {KNOWN.bound_of_gradients:.3g} in (38)",
    )


def plus_is_nearer(cells: Cells) -> Decision:
    """FedFW+ against FedFW at the end."""
    ends = [cells.curve(NAME, m, metric="suboptimality")[1][0, -1] for m in ("FedFWPlus", "FedFW")]
    ours = f"{_iterates(cells, 'FedFWPlus')}; F - F* at the end {ends[0]:.3g}, FedFW's {ends[1]:.3g}"
    return Decision(ours, "reproduced" if ends[0] < ends[1] else "not reproduced", EXACT)


def _iterates(cells: Cells, method: str) -> str:
    rounds, x = cells.curve(NAME, method, metric="iterate")
    kept = [(r, x[0, rounds == r]) for r in SHOWN if r in rounds]
    return f"xbar {', '.join(f'{found[0]:.4f}' for _, found in kept)} after {', '.join(str(r) for r, _ in kept)} rounds"


NAME = "two parabolas"
STEPS = {"lam0": LAM0}
PROBLEM = Problem(
    NAME, "the paper's: (x - 3)^2 and (x + 1)^2 on [-1, 1], whose mean is least at 1", task,
    {"rounds": ROUNDS, "eval_every": EVERY, "clients_per_round": N, "dtype": "float64"}, metric="suboptimality",
)  # fmt: skip
BALL = L1Ball(1.0)
STUDY = Study(
    title="Averaged Frank-Wolfe steps stay where they are",
    summary="The counter-example: averaging does not move, FedFW and FedFW+ converge (Appendix A).",
    paper="dadras2024fedfw",
    problems={NAME: PROBLEM},
    methods={
        "FedFW": Method(lambda lam0: fs.FedFW(BALL, steps=fs.frank_wolfe.Convex(lam0)), STEPS),
        "FedFWPlus": Method(lambda lam0: fs.FedFWPlus(BALL, steps=fs.frank_wolfe.Convex(lam0)), STEPS),
        AVERAGED: Method(lambda lam0: OverwrittenFrankWolfe(BALL, steps=fs.frank_wolfe.Convex(lam0)), STEPS),
    },
    seeds=(0,),
    statements=(
        Statement("Averaged Frank-Wolfe steps stay at 0, which is no solution", "Appendix A, (22)", stays),
        Statement("FedFW keeps to the bound of Theorem 1 with its constants", "Appendix B.1, (38)", within_the_bound),
        Statement("FedFW+ is faster than FedFW", "Section 6: empirically faster", plus_is_nearer),
    ),
    pictures={"curves": Several("The iterate, and how far F is from its least value.", ("iterate", "suboptimality"))},
    deviations=(
        "The paper computes the first step by hand; lambda_0 = 1 and the number of rounds are ours. The averaged steps "
        "are those of the public code with one local step. In double precision.",
    ),
    minutes=0.1,
    needs_data=False,
)  # fmt: skip
