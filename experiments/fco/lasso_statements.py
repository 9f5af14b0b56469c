"""What Yuan, Zaheer and Reddi 2021 say of their figures of LASSO, with the rules that judge it, and what we add."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from experiments.fco.arrivals import sooner, sooner_than_there
from experiments.fco.methods import CENTRAL, OTHERS
from experiments.fco.rules import against, near_central, reaches, stays_below
from experiments.fco.synthetic import NUMERAL, ROUNDS, on_the_papers_grid
from experiments.margins import margin
from fedsolve.studies import Cells, Statement
from fedsolve.studies.rules import (
    Rule,
    at_least_as_good,
    at_round,
    better,
    better_than_all,
    by_metric,
    each_better,
)

HALVED = "FedMiD, half the penalty"
LARGER = 0.3
"""Another lambda, at which what is said of early rounds is looked at too, on rates around the best."""
FIGURE = {1: "Figure 3", 2: "Figure 6", 3: "Figure 7", 4: "Figure 8"}
SPARSER = ("FedDualAvg", "FedDualAvgOSP", "FedMiDOSP")
ALMOST, MOST = (margin("lasso", name) for name in ("almost", "most"))
"""F1 scores at which our rules take the pattern as found almost, and for the most part."""
WHOLE = margin("lasso", "whole")
"""In F1 below that of the centralised solution, the pattern counts as found whole."""
MARGIN = margin("lasso", "competitive")
"""In F1: a method that is worse by less is competitive."""


def recovered_centrally(name: str) -> Rule:
    """The centralised solution finds the pattern: any method's record has its numbers."""
    return lambda cells: against(cells, name, cells.final(name, "FedDualAvg"), ALMOST)


def limited(name: str, method: str, theirs: str) -> Statement:
    """A method of which the paper says that it hardly gets anywhere."""
    says = f"{method.replace('OSP', '-OSP')} does poorly: its F1 score stays below {MOST}"
    return Statement(says, f"{theirs}; the number is ours", stays_below(name, method, MOST))


def of_early_rounds(dataset: int, name: str) -> tuple[Statement, ...]:
    """What the paper says of the first rounds on data sets II to IV, on the problem of that name."""
    theirs = f"{FIGURE[dataset]} and {'A.2.3' if dataset == 4 else 'A.2.2'}"
    rounds = {2: 100, 3: 100, 4: 200}[dataset]
    return (
        Statement(
            f"FedDualAvg has a perfect F1 score in less than {rounds} rounds: at most {WHOLE} below the centralised "
            "solution's",
            f"{theirs}; the bar is ours",
            at_round(rounds, near_central(name, "FedDualAvg", f"{CENTRAL}_f1", WHOLE)),
        ),
        Statement(
            f"FedDualAvg outperforms the others: at round {rounds} its F1 score is higher",
            f"{theirs}: {'significantly' if dataset == 4 else 'by a margin'}",
            at_round(rounds, better_than_all(name, "FedDualAvg", OTHERS)),
        ),
    )


def of_the_figure(dataset: int, name: str) -> tuple[Statement, ...]:
    """What the paper says of the data set, on the problem of that name."""
    figure, section = FIGURE[dataset], "A.2.3" if dataset == 4 else "A.2.2"
    if dataset == 1:
        sparser = each_better(name, [(method, "FedMiD") for method in SPARSER])
        return (
            Statement(
                "FedDualAvg identifies most of the sparsity pattern",
                figure,
                reaches(name, "FedDualAvg", MOST),
            ),
            Statement("FedDualAvg is the fastest", figure, sooner(name, "FedDualAvg", OTHERS, MOST)),
            Statement(
                f"FedDualAvg-OSP is competitive: its F1 score is lower by less than {MARGIN}",
                f"{figure}: very competitive; the margin is ours",
                at_least_as_good(name, "FedDualAvgOSP", "FedDualAvg", MARGIN),
            ),
            limited(name, "FedMiD", f"{figure}: poor performance"),
            Statement("FedMiD's solution is the least sparse", figure, by_metric("density", sparser)),
        )
    theirs, early = f"{figure} and {section}", of_early_rounds(dataset, name)
    if dataset in (2, 3):
        slow = sooner(name, "FedDualAvg", ("FedMiD", "FedMiDOSP"), MOST)
        says = "FedMiD and FedMiD-OSP remain slow: FedDualAvg needs fewer rounds"
        return (*early, Statement(says, f"{theirs}: slow convergence", slow))
    return (
        *early,
        Statement(
            f"FedDualAvg-OSP has an almost perfect F1 score after {ROUNDS} rounds",
            theirs,
            at_round(ROUNDS, reaches(name, "FedDualAvgOSP", ALMOST)),
        ),
        limited(name, "FedMiD", f"{theirs}: very limited progress"),
        limited(name, "FedMiDOSP", f"{theirs}: very limited progress"),
    )


def against_first(dataset: int, name: str, first: Callable[[], Cells]) -> tuple[Statement, ...]:
    """What the paper says of the rounds beside those on data set I, on the problem of that name."""
    if dataset == 1:
        return ()
    same = name.replace(NUMERAL[dataset], NUMERAL[1], 1)
    if dataset == 4:
        says, methods = "All four methods take more rounds than on data set I", ("FedDualAvg", *OTHERS)
    else:
        says, methods = (
            "FedDualAvg-OSP converges faster than on data set I, which is less sparse",
            ("FedDualAvgOSP",),
        )
    decide = sooner_than_there(name, methods, lambda: (first(), same), MOST, dataset == 4)
    source = f"A.2.{3 if dataset == 4 else 2}; the bar of the F1 score, {MOST}, is ours"
    return (Statement(f"{says}, until most of the pattern is found", source, decide),)


def statements(
    dataset: int, wide: str, narrow: str, by_f1: str, larger: str, first: Callable[[], Cells]
) -> tuple[Statement, ...]:
    """The premise, the paper's statements on both grids, by both criteria and with another lambda, and ours.

    The names are those of the problems; `first` reads what is kept of data set I.
    """
    otherwise = {"On the paper's grid, chosen by F1 score": by_f1, f"With lambda {LARGER}": larger}
    return (
        Statement(
            "The centralised solution recovers the sparse pattern",
            "Section 5.1: so lambda is chosen",
            by_metric(f"{CENTRAL}_f1", recovered_centrally(wide)),
        ),
        *of_the_figure(dataset, wide),
        *against_first(dataset, wide, first),
        *on_the_papers_grid((*of_the_figure(dataset, narrow), *against_first(dataset, narrow, first))),
        *(
            replace(one, says=f"{where}: {one.says}")
            for where, name in otherwise.items()
            for one in (of_early_rounds(dataset, name) if dataset > 1 else ())
        ),
        Statement(
            "FedDualAvg's F1 score at the end is higher than that of FedAvg with subgradients",
            "",
            better(wide, "FedDualAvg", "Subgradient"),
        ),
        Statement(
            "FedDualAvg's recovery error is lower than FedMiD's, also at half the penalty",
            "",
            by_metric("recovery_error", better_than_all(wide, "FedDualAvg", ("FedMiD", HALVED))),
        ),
    )
