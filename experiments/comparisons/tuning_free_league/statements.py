"""What papers say of methods that set their own steps, and the rules that judge it over all problems of the league."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedsolve.studies import Cells, Decision, Statement
from fedsolve.studies.cells import exploded
from fedsolve.studies.rules import Ranked, Ranks, ends, rule, wins_more
from fedsolve.studies.rules.ranks import budget

POPULAR = ("FedAvg", "FedProx", "SCAFFOLD", "FedAdam", "FedExP")
"""What FedLi's paper compares with."""
_PAR = "abstract: “at par or better than the popular federated learning algorithms”, convex and non-convex"
_ROBUST = (
    "Section 5: “hyperparameter-free by setting” eps_g = 0, while FedOpt “requires careful tuning” of its server rate "
    "(Takakura et al. 2025)"
)
_FREE = "Yan et al. 2025, abstract: “operates autonomously without relying on problem-specific parameters”"
_CLAIMED = {"FedLiLS": _PAR, "FedLiLU": _PAR, "PAdaMFed": _FREE}
_DISTANCES = {
    ("FedProdigy", "FedAdam"): "Mishchenko and Defazio 2024, on one machine: close to Adam with a tuned rate",
    ("FedProdigy", "FedDAdaptation"): "Mishchenko and Defazio 2024, on one machine: better than D-Adaptation",
    ("FedDoG", "FedAvg"): "Ivgi et al. 2023, on one machine: close to SGD with a tuned rate",
}


def untuned(method: str) -> Ranked:
    """The method at its default among the others as they were tuned."""

    def ranked(cells: Cells) -> Ranks:
        swapped = {
            key: replace(cell, tuned=cell.published) if key[1] == method else cell
            for key, cell in cells.by_name.items()
        }
        return ends("tuned")(replace(cells, by_name=swapped))

    return ranked


@rule
def fails_nowhere(cells: Cells, method: str) -> Decision:
    """At its default the method's training loss ends below its start with every seed on every problem."""
    found = {name: _failures(cells, name) for name in cells.methods(next(iter(cells.problems)))}
    others = ", ".join(f"{name} {len(on)}" for name, on in found.items() if name != method)
    return Decision(
        f"diverges or ends above its start on {', '.join(found[method]) or 'none'} of {len(cells.problems)} "
        f"problems; the others on as many: {others}",
        "refuted" if found[method] else "consistent",
        "refuted by one problem on which a seed fails",
    )


def _failures(cells: Cells, method: str) -> list[str]:
    found = []
    for problem in cells.problems:
        sweep = cells.cell(problem, method).of("published")
        if sweep is None:
            continue
        loss = sweep.metrics["train_loss"][0]
        rises = ~(loss[:, -1] <= loss[:, 0])
        if np.any(rises | (sweep.diverged[0] >= 0) | exploded(sweep)[0]):
            found.append(problem)
    return found


def _popular(method: str, where: str, ranked: Ranked) -> Statement:
    says = f"{method}, untuned, is better on more problems than {', '.join(POPULAR)} {where}"
    return Statement(says, _CLAIMED[method], wins_more(method, POPULAR, ranked))


STATEMENTS = (
    *(
        _popular(method, where, ranked)
        for method in _CLAIMED
        for where, ranked in (
            ("at their defaults", ends("published")),
            ("at the best of 30 settings", untuned(method)),
        )
    ),
    *(
        Statement(f"{a} is better on more problems than {b} {where}", _ROBUST, wins_more(a, [b], ranked))
        for a, b in (("FedDuAdam", "FedAdam"), ("FedDuAdagrad", "FedAdagrad"))
        for where, ranked in (
            ("at the defaults", ends("published")),
            ("with 3 settings tried", budget(3)),
            ("with 10 settings tried", budget(10)),
            ("at the best of 30 settings", ends("tuned")),
        )
    ),
    Statement(
        "FedExP is better on more problems than FedAvg at the best of 30 settings",
        "Jhunjhunwala et al. 2023: faster than FedAvg",
        wins_more("FedExP", ["FedAvg"], ends("tuned")),
    ),
    *(
        Statement(
            f"{adaptive} is better on more problems than FedAvg and FedAvgM at the best of 30 settings",
            "Reddi et al. 2021, Table 1: above FedAvg on all seven tasks, above FedAvgM on five",
            wins_more(adaptive, ["FedAvg", "FedAvgM"], ends("tuned")),
        )
        for adaptive in ("FedAdam", "FedYogi")
    ),
    *(
        Statement(f"{a} is better on more problems than {b} {where}", theirs, wins_more(a, [b], ranked))
        for (a, b), theirs in _DISTANCES.items()
        for where, ranked in (
            ("at the defaults", ends("published")),
            ("at the best of 30 settings", ends("tuned")),
        )
    ),
    *(Statement(f"{a}, untuned, fails nowhere", "", fails_nowhere(a)) for a in ("FedLiLS", "PAdaMFed")),
)
