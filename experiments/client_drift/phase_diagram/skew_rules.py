"""Whether a method's loss depends on the label skew, and whether control variates need all clients."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedsolve.studies import Cells, Decision
from fedsolve.studies.experiment import Verdict
from fedsolve.studies.rules import (
    Interval,
    alike,
    around_factor,
    beyond,
    combined,
    elsewhere,
    interval,
    listed,
    provisional,
    rule,
)

Pairs = Sequence[tuple[str, str, str]]
"""What a pair is called, and its two problems."""


def _edges(cells: Cells, pairs: Pairs, names: Sequence[str]) -> str:
    found = {p: provisional(cells, p, "tuned", names) for _, *problems in pairs for p in problems}
    return "; ".join(f"{p}: {weak}" for p, weak in found.items() if weak)


@rule
def unaffected(cells: Cells, method: str, pairs: Pairs, most: float) -> Decision:
    """In each pair the losses on the two problems are within a factor of one another, over the deals.

    The intervals share the 5 %.
    """
    ratios = {
        name: interval(np.log(cells.final(one, method) / cells.final(other, method)), len(pairs))
        for name, one, other in pairs
    }

    def within(bar: float) -> tuple[Verdict, str]:
        return combined([(name, alike(one.low, one.high, np.log(bar))) for name, one in ratios.items()])

    given: dict[float, Verdict] = {bar: within(bar)[0] for bar in around_factor(most)}
    return Decision(
        f"{method}'s loss with strong skew over that with weak: {_factors(ratios)}",
        given[most],
        f"ratios within a factor of {most:g} by 95 % intervals over deals, paired, all {len(pairs)} "
        f"together{within(most)[1]}; "
        f"{elsewhere(given, most)}",
        _edges(cells, pairs, (method,)),
    )


@rule
def gains_more(cells: Cells, a: str, b: str, pairs: Pairs) -> Decision:
    """In each pair the loss of `b` over that of `a` is greater on the first problem than on the second."""

    def gain(problem: str) -> np.ndarray:
        return np.log(cells.final(problem, b) / cells.final(problem, a))

    ratios = {name: interval(gain(one) - gain(other), len(pairs)) for name, one, other in pairs}
    verdict, words = beyond(ratios.items(), 0.0)
    return Decision(
        f"loss of {b} over that of {a}, with all clients over with some: {_factors(ratios)}",
        verdict,
        f"ratios above 1 by 95 % intervals over deals, paired, all {len(pairs)} together{words}",
        _edges(cells, pairs, (a, b)),
    )


def _factors(ratios: dict[str, Interval]) -> str:
    return listed({name: one.factor for name, one in ratios.items()}, ".3g")
