"""Rates of federated Frank-Wolfe: the bounds of Theorems 1 to 3 of Dadras et al. 2024, and how fast runs are."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import fedsolve as fs
from experiments.fedfw import theorems
from experiments.fedfw.fw_rates.rate_problems import (
    BATCH,
    CLIENTS,
    CONVEX,
    EXAMPLES,
    FEATURES,
    OTHER,
    bounded,
    convex,
)
from experiments.fedfw.fw_rates.rate_rules import by_length, by_round, falls, least, nearer, within
from fedsolve.studies import Method, Problem, Statement, Study

ROUNDS, EVERY, P = 10_000, 20, 0.5
HORIZONS = (100, 316, 1000, 3162, 10_000)
LAM0, LARGE = 0.1, 1.0
PENALTIES = (0.03, 0.1)
"""lam0 of the runs that are not convex."""
PARTIAL = {"sampling": fs.sampling.Bernoulli(P)}


def _problem(name: str, task: Any, rounds: int, every: int, metric: str) -> Problem:
    options = {
        "rounds": rounds, "eval_every": every, "batch_size": "full", "local_steps": 1, "dtype": "float64"
    }  # fmt: skip
    size = f"{CLIENTS} clients of {EXAMPLES} examples, {FEATURES} weights"
    return Problem(name, size, task, options, metric=metric, data_by_seed=True)


def _convex(ball: Any) -> dict[str, Method]:
    def frank_wolfe(lam0: float, p: float = 1.0) -> fs.Algorithm:
        return fs.FedFW(ball, steps=fs.frank_wolfe.Convex(lam0, p))

    return {
        "FedFW": Method(frank_wolfe, {"lam0": LAM0}),
        BOLD: Method(frank_wolfe, {"lam0": LARGE}),
        PART: Method(partial(frank_wolfe, p=P), {"lam0": LAM0}, options=PARTIAL),
        "FedFWSto": Method(
            lambda lam0: fs.FedFWSto(ball, steps=fs.frank_wolfe.Stochastic(lam0)), {"lam0": LAM0},
            options={"batch_size": BATCH},
        ),
        "FedFWPlus": Method(lambda lam0: fs.FedFWPlus(ball, steps=fs.frank_wolfe.Convex(lam0)), {"lam0": LAM0}),
    }  # fmt: skip


def _horizon(ball: Any, rounds: int) -> dict[str, Method]:
    def frank_wolfe(lam0: float, p: float | None = None) -> fs.Algorithm:
        return fs.FedFW(ball, steps=fs.frank_wolfe.NonConvex(rounds, lam0, p))

    whole = {f"lam0 = {lam0:g}": Method(frank_wolfe, {"lam0": lam0}) for lam0 in PENALTIES}
    part = Method(partial(frank_wolfe, p=P), {"lam0": PENALTIES[0]}, options=PARTIAL)
    return {**whole, SOME: part}


BOLD, PART, SOME = f"FedFW, lam0 = {LARGE:g}", f"FedFW, p = {P:g}", f"lam0 = {PENALTIES[0]:g}, p = {P:g}"
SERIES = {name: {rounds: f"{name}, T = {rounds}" for rounds in HORIZONS} for name in OTHER}
"""Problems that are not convex: name -> T -> the problem of so many rounds."""


def methods(name: str) -> dict[str, Method]:
    """All variants on convex problems, FedFW on the others."""
    if name in CONVEX:
        return _convex(CONVEX[name])
    other, rounds = name.split(", T = ")
    return _horizon(OTHER[other], int(rounds))


PROBLEMS = {
    **{n: _problem(n, partial(convex, name=n), ROUNDS, EVERY, "suboptimality") for n in CONVEX},
    **{
        problem: _problem(problem, partial(bounded, name=n), rounds, max(1, rounds // 100), "gap")
        for n, series in SERIES.items()
        for rounds, problem in series.items()
    },
}
Bound = Callable[[theorems.Constants, Any], Any]


def _first(lam0: float) -> Bound:
    return lambda c, rounds: theorems.theorem_1(c, lam0, rounds + 1.0)


def _second(lam0: float, p: float | None = None) -> Bound:
    return lambda c, rounds: theorems.theorem_2(c, lam0, float(rounds), p)


FALL = "over the last decade of rounds F - F* falls as fast as t^-{} or faster"
STATEMENTS = (
    Statement(
        "FedFW stays within Theorem 1's bound, with its constants", "Theorem 1; Appendix B.1, (38)",
        within(tuple(CONVEX), {"FedFW": _first(LAM0), BOLD: _first(LARGE)}),
    ),
    Statement(
        "FedFW with each client's chance of 1/2 stays within its bound",
        "Theorem 1 with (17); end of Appendix B.2, with constants",
        within(tuple(CONVEX), {PART: lambda c, rounds: theorems.theorem_1_partial(c, LAM0, P, rounds + 1.0)}),
    ),
    Statement(
        "FedFW-sto stays within Theorem 3's bound, with its constants", "Theorem 3; Appendix D.1, (68)",
        within(tuple(CONVEX), {"FedFWSto": lambda c, rounds: theorems.theorem_3(c, LAM0, rounds + 1.0)}),
    ),
    Statement(
        "Not convex: the smallest gap of T rounds is within Theorem 2's bound, with its constants",
        "Theorem 2; Appendix C.1, (52), (55) and (62)",
        least(SERIES, {f"lam0 = {lam0:g}": _second(lam0) for lam0 in PENALTIES}),
    ),
    Statement(
        "The same with each client's chance of 1/2", "Theorem 2 with (18); Appendix C.2, (65)",
        least(SERIES, {SOME: _second(PENALTIES[0], P)}),
    ),
    Statement(f"FedFW with lam0 = 0.1: {FALL.format('1/2')}", "", falls(tuple(CONVEX), "FedFW", 1 / 2)),
    Statement(f"FedFW with lam0 = 1: {FALL.format('1/2')}", "", falls(tuple(CONVEX), BOLD, 1 / 2)),
    Statement(f"FedFW-sto: {FALL.format('1/3')}", "", falls(tuple(CONVEX), "FedFWSto", 1 / 3)),
    Statement(f"FedFW+: {FALL.format('1/2')} (no theorem)", "", falls(tuple(CONVEX), "FedFWPlus", 1 / 2)),
    Statement(
        "FedFW+ ends nearer to F* than FedFW", "Section 6: empirically faster",
        nearer(tuple(CONVEX), "FedFWPlus", ("FedFW", BOLD)),
    ),
)  # fmt: skip

STUDY = Study(
    title="Rates of federated Frank-Wolfe beside their theorems",
    summary="The bounds of Theorems 1 to 3 with their constants, and slopes, on small problems in float64.",
    paper="dadras2024fedfw",
    problems=PROBLEMS,
    methods=methods,
    seeds=(0, 1, 2, 3, 4),
    statements=STATEMENTS,
    pictures={
        "convex": by_round(
            "F - F* by round, and Theorem 1's bound with lam0 = 0.1, where the solution lies on a sphere, a face of an "
            "l1 ball, and a vertex of one.", tuple(CONVEX), _first(LAM0),
        ),
        "nonconvex": by_length(
            "The smallest gap of a run of T rounds by T, and Theorem 2's bound with lam0 = 0.03.", SERIES,
            _second(PENALTIES[0]),
        ),
    },
    deviations=(
        "The paper measures no rates: the theorems are what is claimed. Problems, lam0 and rounds are ours: least "
        "squares, and a bounded loss, of clients that disagree, five data sets. A bound that holds on a few problems "
        "proves no theorem.",
        "L is the largest of the clients'; |Y*| is that of the dual solution (grad F - grad f_i)(x*) / n; F* and x* "
        "are FISTA's on the gathered data. In Theorem 3 sigma^2 is the largest mean square of a client's gradients in "
        "the ball over the batch size; in Theorem 2 each least value of f_i is taken as 0 and the gradient at x* as "
        "its largest in the set, which makes that bound larger.",
        "The bounds with minibatches and with partial participation are on expectations: refuted would be a mean over "
        "data sets whose 95 % interval lies above.",
        "Slopes are fitted on log-log axes over the last decade of rounds, above 1e-12.",
        f"F - F* is read every {EVERY} rounds, the gap every hundredth part of T.",
    ),
    minutes=1.5,
    needs_data=False,
)  # fmt: skip
