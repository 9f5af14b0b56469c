"""What the figures of synthetic data share, sparse vectors or matrices: a data set on two grids of rates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import fedsolve as fs
from experiments.fco.methods import CENTRAL, METHODS, OTHERS, PAPER_GRID, method
from fedsolve.geometry import Blocks
from fedsolve.studies import Method, Problem, Statement
from fedsolve.studies.pictures import Several

NUMERAL = {1: "I", 2: "II", 3: "III", 4: "IV"}
"""The data sets."""
ROUNDS = 500


def on_both_grids(
    kind: str, dataset: int, task: Callable[[int, int], fs.Task], metric: str, every: int, more: str = ""
) -> tuple[Problem, Problem]:
    """A data set in the paper's size, drawn anew for each seed, on the wider grid and on the paper's.

    Args:
        kind: what the data sets are called.
        dataset: 1 to 4.
        task: from its number and the seed.
        metric: what is compared.
        every: rounds between evaluations while tuning.
        more: what the problem differs in, in words, behind its name.
    """
    clients = "256 clients of 32" if dataset == 4 else "64 clients of 128"
    wide = Problem(
        f"{kind} {NUMERAL[dataset]}{more}",
        f"the paper's: {clients} examples, 10 a round, batches of 10, one epoch",
        lambda data_dir, seed: task(dataset, seed),
        {"rounds": ROUNDS, "clients_per_round": 10, "eval_every": 10},
        metric=metric,
        last=100,
        select="recovery-error",
        tuning={"eval_every": every},
        data_by_seed=True,
    )
    return wide, replace(wide, title=f"{wide.title} on the paper's grid", grid_of=wide.title)


def methods(
    psi: Blocks,
    narrow: Iterable[Problem],
    grids: Mapping[str, Mapping[str, tuple[float, ...]]],
    **more: Method,
) -> Callable[[str], Mapping[str, Method]]:
    """The paper's four methods on its grid for the `narrow` problems; else also FedAvg with subgradients, and more.

    `grids` are those of the wide problem, by method.
    """
    wide = {name: method(build, psi, grids[name]) for name, build in METHODS.items()} | more
    four = {name: method(METHODS[name], psi, PAPER_GRID) for name in ("FedDualAvg", *OTHERS)}
    names = {problem.title for problem in narrow}
    return lambda problem: four if problem in names else wide


def on_the_papers_grid(found: Iterable[Statement]) -> tuple[Statement, ...]:
    """Statements with that before them."""
    return tuple(replace(one, says=f"On the paper's grid: {one.says}") for one in found)


def curves(metrics: tuple[str, ...], narrow: Problem, columns: int = 3) -> dict[str, Several]:
    """Metrics by round at what either grid has chosen."""
    wider = (
        "At the rates tuned on the wider grid: mean and range over data sets, and the centralised solution."
    )
    paper = "The same at the rates tuned on the paper's grid, whose least client rate is 1e-3."
    return {
        "curves": Several(wider, metrics, beside=CENTRAL, columns=columns),
        "paper_grid": Several(paper, metrics, narrow.title, beside=CENTRAL, columns=columns),
    }
