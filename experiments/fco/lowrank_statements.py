"""What Yuan, Zaheer and Reddi 2021 say of their low-rank figures, with the rules that judge it, and what we add."""

from __future__ import annotations

import numpy as np

from experiments.fco.arrivals import Arrival, comes_within, sooner
from experiments.fco.methods import CENTRAL, OTHERS
from experiments.fco.rules import stays_below, times
from experiments.fco.synthetic import on_the_papers_grid
from experiments.margins import margin
from fedsolve.studies import Cells, Decision, Statement
from fedsolve.studies.rules import Rule, around_factor, at_round, better, better_than_all, by_metric, rule

SIDE = 32
RANKS = {1: 16, 2: 4, 3: 1, 4: 16}
FIGURE = {1: "Figure 4", 2: "Figure 9", 3: "Figure 10", 4: "Figure 11"}
SECTION = {1: "Section 5.2", 2: "A.3.2", 3: "A.3.2", 4: "A.3.3"}
BY = {1: 100, 2: 100, 3: 100, 4: 200}
"""Rounds by which the paper says that FedDualAvg has the exact rank."""
SLOW = ("FedMiD", "FedMiDOSP")
ZERO, ZEROS = 1e-2, (3e-3, 1e-2, 3e-2)
"""Singular values up to the paper's 1e-2 count as zero; verdicts are shown at its neighbours too."""
LOW = margin("lowrank", "low")
LOWS = around_factor(LOW)
"""Times the true rank: what counts as low, ours, and its neighbours."""
FAR = margin("lowrank", "far")
FARS = around_factor(FAR)
"""Times the recovery error: what counts as far less accurate, ours, and its neighbours."""


def singular_values() -> tuple[str, ...]:
    """The columns of the singular values, falling."""
    return tuple(f"singular_value_{i}" for i in range(1, SIDE + 1))


def exact(rank: int) -> Arrival:
    """The rank is the true one, by how small a singular value counts as zero."""

    def holds(cells: Cells, problem: str, method: str, zero: float) -> np.ndarray:
        values = np.stack([cells.curve(problem, method, metric=name)[1] for name in singular_values()])
        return np.isfinite(values).all(axis=0) & ((values > zero).sum(axis=0) == rank)

    return Arrival(f"the rank stays {rank}, of singular values above {{:g}}", holds, ZEROS)


@rule
def centrally_exact(cells: Cells, problem: str, rank: int) -> Decision:
    """The centralised solution has the rank on every data set: any method's record has its numbers."""
    ranks = cells.final(problem, "FedDualAvg", metric=f"{CENTRAL}_rank")
    hits = int((ranks == rank).sum())
    ours = f"rank {rank} on {hits} of {len(ranks)} data sets, {ranks.min():.0f} to {ranks.max():.0f} on all"
    return Decision(ours, "reproduced" if hits == len(ranks) else "partly" if hits else "not reproduced")


def of_the_figure(dataset: int, name: str) -> tuple[Statement, ...]:
    """What the paper says of the data set, on the problem of that name."""
    rank, theirs = RANKS[dataset], f"{FIGURE[dataset]} and {SECTION[dataset]}"
    arrival, rounds = exact(rank), BY[dataset]

    def statement(says: str, rule: Rule, more: str = "") -> Statement:
        return Statement(says, f"{theirs}{more}", rule)

    early = statement(
        f"FedDualAvg finds the exact rank in less than {rounds} rounds",
        comes_within(name, "FedDualAvg", rounds, ZERO, arrival),
    )
    low = statement(
        f"FedDualAvg-OSP gives a solution of low rank: below {LOW:g} times the true one",
        by_metric("rank", stays_below(name, "FedDualAvgOSP", LOW * rank, tuple(k * rank for k in LOWS))),
        "; the factor is ours",
    )
    lower_loss = by_metric("objective", at_round(rounds, better_than_all(name, "FedDualAvg", SLOW)))
    of_loss = ", training loss with the penalty"
    if dataset == 1:
        return (
            early,
            statement(
                "FedMiD and FedMiD-OSP converge more slowly in rank: FedDualAvg needs fewer rounds to the exact one",
                sooner(name, "FedDualAvg", SLOW, ZERO, arrival),
            ),
            statement(
                f"FedMiD and FedMiD-OSP converge more slowly in loss: at round {rounds} FedDualAvg's is lower",
                lower_loss,
                of_loss,
            ),
            low,
            statement(
                f"FedDualAvg-OSP is far less accurate: {FAR:g} times FedDualAvg's recovery error or more",
                times(name, "FedDualAvgOSP", "FedDualAvg", FAR, FARS),
                "; the factor is ours",
            ),
        )
    first = statement(
        "FedDualAvg outperforms the others: it needs fewer rounds to the exact rank",
        sooner(name, "FedDualAvg", OTHERS, ZERO, arrival),
        ": significantly" if dataset == 4 else ": by a margin",
    )
    if dataset == 4:
        return early, first
    return (
        early,
        first,
        low,
        statement(
            "FedDualAvg-OSP is less accurate: its recovery error is higher than FedDualAvg's",
            better(name, "FedDualAvg", "FedDualAvgOSP"),
        ),
        statement(
            f"FedMiD and FedMiD-OSP remain slow: at round {rounds} FedDualAvg's loss is lower",
            lower_loss,
            of_loss,
        ),
    )


def statements(dataset: int, wide: str, narrow: str) -> tuple[Statement, ...]:
    """The premise, the paper's statements on both grids, and ours."""
    return (
        Statement("The centralised solution has the exact rank", "", centrally_exact(wide, RANKS[dataset])),
        *of_the_figure(dataset, wide),
        *on_the_papers_grid(of_the_figure(dataset, narrow)),
        Statement(
            "FedDualAvg's recovery error is lower than that of every other method",
            "",
            better_than_all(wide, "FedDualAvg", (*OTHERS, "Subgradient")),
        ),
        Statement(
            "On the paper's grid: FedDualAvg's recovery error is lower than that of every other method",
            "",
            better_than_all(narrow, "FedDualAvg", OTHERS),
        ),
        Statement(
            "Proximal steps on the server alone recover the matrix better than on both sides: FedMiD-OSP over FedMiD",
            "",
            better(wide, "FedMiDOSP", "FedMiD"),
        ),
    )
