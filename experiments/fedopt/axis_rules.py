"""Rules on whole grids: how flat a method is along an axis, what one value costs, which way it goes, how easy it is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from experiments.fedopt.axes import Reached, Slice, along, grid_of, in_words, slices_at_edges
from fedsolve.studies import Cells, Decision
from fedsolve.studies.cells import ends
from fedsolve.studies.experiment import Verdict, fixed
from fedsolve.studies.public import describe
from fedsolve.studies.rules import (
    SHARES,
    Interval,
    around,
    around_factor,
    beyond,
    correlation,
    elsewhere,
    intervals,
    listed,
    rule,
)

Series = Callable[[Cells, str], list[tuple[np.ndarray, np.ndarray]]]
"""From a method's name to two series for each seed."""
Where = tuple[str, str, tuple[float, float] | None]
"""A method, an axis of its grid, and the part of it that counts."""


def spread(reached: Reached) -> np.ndarray:
    """The largest over the smallest value along the axis, by seed, as its logarithm; shape (seeds,)."""
    return np.log(reached.ends.max(axis=0) / reached.ends.min(axis=0))


@rule
def flat(
    cells: Cells,
    problem: str,
    methods: Sequence[str],
    axis: str,
    most: float,
    between: tuple[float, float] | None = None,
) -> Decision:
    """Along an axis each method's worst value is at most `most` times its best."""

    def decide(cells: Cells) -> Decision:
        found = intervals({m: spread(along(cells, problem, m, axis, between)) for m in methods})
        held, reason = _at_most(cells, problem, found, most)
        return Decision(
            f"largest over smallest along {axis}{_part(between)}: {_factors(found)}", held, reason
        )

    return _judged(cells, problem, [(m, axis, between) for m in methods], decide)


@rule
def flatter(cells: Cells, problem: str, pairs: Sequence[tuple[Where, Where]]) -> Decision:
    """In each pair the first method varies less along its axis than the second along its own, by a factor."""

    def decide(cells: Cells) -> Decision:
        apart, words = {}, []
        for a, b in pairs:
            ours, theirs = (spread(along(cells, problem, *one)) for one in (a, b))
            apart[f"{a[0]} against {b[0]}"] = theirs - ours
            words += [
                f"{m} {np.exp(v.mean()):.3g} along {axis}{_part(part)}"
                for (m, axis, part), v in ((a, ours), (b, theirs))
            ]
        found = intervals(apart)
        held, which = beyond(found.items(), 0.0)
        ours = f"largest over smallest: {', '.join(dict.fromkeys(words))}; the second over the first: {_factors(found)}"
        reason = f"a factor above 1 by the 95 % interval{_over(cells, problem)}{TUNED}{which}"
        return Decision(ours, held, reason)

    return _judged(cells, problem, [one for pair in pairs for one in pair], decide)


@rule
def nearly_best(
    cells: Cells, problem: str, methods: Sequence[str], axis: str, value: float, most: float
) -> Decision:
    """At one value of an axis each method is at most `most` times worse than at the best other one.

    The best is chosen by the mean over seeds of what is compared, which favours it.
    """
    metric = describe(cells.problem(problem).metric)
    sign = -1 if metric.higher_is_better else 1

    def decide(cells: Cells) -> Decision:
        worse, words = {}, []
        for m in methods:
            reached = along(cells, problem, m, axis)
            at, others = reached.values.index(value), np.arange(len(reached.values))
            others = others[others != at]
            best = others[np.argmin(sign * reached.ends[others].mean(axis=1))]
            worse[m] = sign * np.log(reached.ends[at] / reached.ends[best])
            shown = [
                f"{metric.scale * reached.ends[i].mean():.4g} at {reached.values[i]:g}" for i in (at, best)
            ]
            words.append(f"{m} {' and '.join(shown)}")
        found = intervals(worse)
        held, reason = _at_most(cells, problem, found, most)
        ours = f"{metric.label} at {axis} {value:g} and at the best other: {', '.join(words)}; worse by a factor of "
        return Decision(f"{ours}{_factors(found)}", held, reason)

    return _judged(cells, problem, [(m, axis, None) for m in methods], decide)


@rule
def goes(
    cells: Cells,
    problem: str,
    methods: Sequence[str],
    series: Series,
    what: str,
    rising: bool,
    at_edge: Callable[[Cells, str], str],
    otherwise: Sequence[Series] = (),
) -> Decision:
    """Spearman's correlation of two series, found for each seed, is above 0 (or below it).

    Args:
        problem, methods: whose.
        series: from a method to the two series of each seed.
        what: the two in words.
        rising: whether above 0 is claimed.
        at_edge: from a method to what of its series lies at the edge of the grid, "" if nothing.
        otherwise: the series as a wider grid could have them at most; where all of them decide alike, edges are no
            reason to doubt.
    """

    def correlations(series: Series) -> dict[str, Interval]:
        return {m: correlation(series(cells, m), len(methods)) for m in methods}

    def decide(found: Mapping[str, Interval]) -> tuple[Verdict, str]:
        return beyond(found.items(), 0.0, 1 if rising else -1)

    found = correlations(series)
    held, which = decide(found)
    side = "above" if rising else "below"
    reason = f"{side} 0 by the 95 % interval{_over(cells, problem)}{which}"
    weak = _provisional(at_edge(cells, m) for m in methods)
    if weak and otherwise and all(decide(correlations(one))[0] == held for one in otherwise):
        weak, reason = "", f"{reason}; what lies beyond the edges could not change it"
    return Decision(f"rank correlation of {what}: {listed(found, '.2f')}", held, reason, weak)


@rule
def easier(
    cells: Cells, problem: str, pairs: Sequence[tuple[str, str]], near: float, **at: float
) -> Decision:
    """In each pair the first method has more settings within `near` of the best of all methods than the second."""
    p = cells.problem(problem)
    reached = {
        m: ends(fixed(grid_of(cells, problem, m), **at), p.metric, p.last) for m in cells.methods(problem)
    }
    best = np.max([np.nanmax(r, axis=0) for r in reached.values()], axis=0)

    def good(near: float) -> dict[str, np.ndarray]:
        return {m: 100 * (r >= (1 - near) * best).mean(axis=0) for m, r in reached.items()}

    def more(near: float) -> dict[str, Interval]:
        shares = good(near)
        return intervals({f"{a} over {b}": shares[a] - shares[b] for a, b in pairs})

    shares, found = good(near), more(near)
    held, which = beyond(found.items(), 0.0)
    given: dict[float, Verdict] = {100 * bar: beyond(more(bar).items(), 0.0)[0] for bar in around(near)}
    words = ", ".join(f"{m} {s.mean():.3g} %" for m, s in shares.items())
    gaps = ", ".join(f"{name} {one.text('+.3g', 'points')}" for name, one in found.items())
    where = ", ".join(f"{axis} {v:g}" for axis, v in at.items())
    return Decision(
        f"settings within {100 * near:g} % of the best of all methods at {where}: {words}; {gaps}",
        held,
        f"more by the 95 % interval{_over(cells, problem)}{which}; {elsewhere(given, 100 * near)}",
    )


def _at_most(cells: Cells, problem: str, found: Mapping[str, Interval], most: float) -> tuple[Verdict, str]:
    """Whether factors, as logarithms, are all at most so large, and why."""
    given = {bar: beyond(found.items(), np.log(bar), -1) for bar in around_factor(most)}
    held, which = given[most]
    reason = f"a factor of at most {most:.3g} by the 95 % interval{_over(cells, problem)}{TUNED}{which}"
    verdicts: dict[float, Verdict] = {bar: one for bar, (one, _) in given.items()}
    return held, f"{reason}; {elsewhere(verdicts, most)}"


def _factors(found: Mapping[str, Interval]) -> str:
    return listed({name: one.factor for name, one in found.items()}, ".3g")


def _part(between: tuple[float, float] | None) -> str:
    return "" if between is None else f" from {between[0]:g} to {between[1]:g}"


TUNED = ", the other axes tuned at each value"


def _over(cells: Cells, problem: str) -> str:
    return f" over {cells.problem(problem).over}"


def _judged(
    cells: Cells, problem: str, where: Sequence[Where], decide: Callable[[Cells], Decision]
) -> Decision:
    """The decision, provisional where what lies beyond an edge could change its verdict."""
    found = decide(cells)
    every = [one for there in dict.fromkeys(where) for one in slices_at_edges(cells, problem, *there)]

    def stays(slices: Sequence[Slice]) -> bool:
        for share in SHARES:
            moved: Cells | None = cells
            for one in slices:
                moved = moved and one.beyond(moved, share)
            if moved is None or decide(moved).verdict != found.verdict:
                return False
        return True

    open_ = [one for one in every if not stays([one])]
    if not open_ and not stays(every):
        open_ = every
    settled = "what lies beyond the edges could not change it" if every and not open_ else ""
    reason = "; ".join(filter(None, (found.reason, settled)))
    return replace(found, reason=reason, provisional=_provisional([in_words(open_)]))


def _provisional(found: Iterable[str]) -> str:
    at = "; ".join(dict.fromkeys(one for one in found if one))
    return f"at the edge of the grid: {at}" if at else ""
