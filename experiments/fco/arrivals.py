"""How soon a run comes to what it should find: rounds that end where a run does, and rules by the log-rank test."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations

import numpy as np

from experiments.fco.rules import THRESHOLDS
from fedsolve import InvalidInput
from fedsolve.studies import Cells, Decision
from fedsolve.studies.experiment import Verdict
from fedsolve.studies.rules import (
    LEVEL,
    decided,
    elsewhere,
    holm,
    mixed,
    not_learnt,
    provisional,
    rule,
)


@dataclass(frozen=True)
class Arrival:
    """What a run comes to, by a threshold.

    Attributes:
        words: what it is, with `{}` in the threshold's place.
        holds: cells, problem, method and threshold to whether it holds at each evaluation, (seeds, evaluations).
        thresholds: at which verdicts are shown.
    """

    words: str
    holds: Callable[[Cells, str, str, float], np.ndarray]
    thresholds: tuple[float, ...]


def _found(cells: Cells, problem: str, method: str, threshold: float) -> np.ndarray:
    return np.nan_to_num(cells.curve(problem, method)[1], nan=-np.inf) >= threshold


FOUND = Arrival("the F1 score of the support stays at {:g} or above", _found, THRESHOLDS)
"""A problem's F1 score."""


@rule
def sooner(
    cells: Cells, problem: str, a: str, others: Sequence[str], threshold: float, arrival: Arrival = FOUND
) -> Decision:
    """`a` needs fewer rounds than each of the others until it is there for good.

    By log-rank tests, with Holm's correction: of a run that never comes there it is known that it needs more rounds
    than it had, and no more.
    """
    tests = {bar: _tests(cells, problem, a, others, bar, arrival) for bar in arrival.thresholds}
    given: dict[float, Verdict] = {bar: mixed({v for v, _ in of.values()}) for bar, of in tests.items()}
    found = {b: verdict for b, (verdict, _) in tests[threshold].items()}
    told = ", ".join(f"{p:.2g} against {b}" for b, (_, p) in tests[threshold].items())
    counts = ", ".join(f"{name} {_words(cells, problem, name, threshold, arrival)}" for name in (a, *others))
    ours = f"rounds until {arrival.words.format(threshold)}: {counts}; p {told}"
    held = [b for b, one in found.items() if one == "reproduced"]
    reason = f"log-rank tests, exact, over {cells.problem(problem).replicates}"
    reason += f": it holds against {', '.join(held)}" if given[threshold] == "partly" else ""
    may = [b for b, one in found.items() if one != "not reproduced"]
    may += [a] if any(one != "reproduced" for one in found.values()) else []
    weak = provisional(cells, problem, "tuned", may)
    return Decision(ours, given[threshold], f"{reason}; {elsewhere(given, threshold)}", weak)


def _tests(
    cells: Cells, problem: str, a: str, others: Sequence[str], threshold: float, arrival: Arrival
) -> dict[str, tuple[Verdict, float]]:
    """Against each of the others the verdict, and the adjusted p-value."""
    tests = [_log_rank(cells, problem, (a, b), threshold, arrival) for b in others]
    adjusted = holm([p for p, _ in tests], cells.sharing)
    void = not_learnt(cells, problem, (a, *others))

    pairs = zip(others, adjusted, tests, strict=True)
    return {b: ("not learnt" if {a, b} <= set(void) else _of_test(p, ahead), p) for b, p, (_, ahead) in pairs}


def _of_test(p: float, holds: bool) -> Verdict:
    if p >= 1 - LEVEL:
        return "underpowered"
    return "reproduced" if holds else "not reproduced"


@rule
def sooner_than_there(
    cells: Cells,
    problem: str,
    methods: Sequence[str],
    there: Callable[[], tuple[Cells, str]],
    threshold: float,
    later: bool = False,
) -> Decision:
    """Each method needs fewer rounds here than on another study's problem until it is there for good; or `later`: more.

    By log-rank tests, of two sets of data each, with Holm's correction.

    Args:
        there: the other study's cells and the name of the problem.
        later: whether more rounds are claimed.
    """
    try:
        others, other = there()
    except InvalidInput as error:
        return Decision(str(error), "underpowered", "the other data set was not run")
    words, tests = [], []
    for m in methods:
        both = [until_reached(*at, m, threshold) for at in ((cells, problem), (others, other))]
        p, ahead = log_rank(*map(np.concatenate, zip(*both, strict=True)))
        tests.append((p, ahead != later))
        said = (_words(*at, m, threshold, FOUND) for at in ((cells, problem), (others, other)))
        words.append(f"{m} {' and '.join(said)}")
    verdicts: list[Verdict] = [
        _of_test(p, side) for p, (_, side) in zip(holm([p for p, _ in tests]), tests, strict=True)
    ]
    held = [m for m, one in zip(methods, verdicts, strict=True) if one == "reproduced"]
    verdict = mixed(set(verdicts))
    reason = "log-rank tests, exact, of the data sets here and there"
    reason += f": it holds for {', '.join(held)}" if verdict == "partly" else ""
    open_ = [
        m
        for m, one in zip(methods, verdicts, strict=True)
        if one != ("not reproduced" if later else "reproduced")
    ]
    weak = provisional(cells, problem, "tuned", open_)
    ours = f"rounds until {FOUND.words.format(threshold)}, on {problem} and on {other}: {', '.join(words)}"
    return Decision(ours, verdict, reason, weak)


def _log_rank(
    cells: Cells, problem: str, pair: tuple[str, str], threshold: float, arrival: Arrival
) -> tuple[float, bool]:
    """The p-value of the first of two methods against the second, and whether it is the sooner one."""
    (x, came_x), (y, came_y) = (until_reached(cells, problem, m, threshold, arrival) for m in pair)
    return log_rank(np.concatenate([x, y]), np.concatenate([came_x, came_y]))


def log_rank(times: np.ndarray, came: np.ndarray) -> tuple[float, bool]:
    """The two-sided p-value of the log-rank test of two equal groups, and whether the first is the sooner one.

    Exact: over all ways to take the first group from both. Pairs of runs on one data set vary together, which makes it
    err on the side of no difference.

    Args:
        times: of the first group, then of the second, (2 n,), n at most 10.
        came: whether the event was at that time; else it came later, if ever.

    >>> log_rank(np.array([10.0, 20.0, 30.0, 99.0, 99.0, 99.0]), np.array([True] * 3 + [False] * 3))
    (0.1, True)
    """
    at, events = np.unique(times, return_inverse=True)
    happened = np.bincount(events, weights=came)
    at_risk = np.array([(times >= t).sum() for t in at])
    scores = came - np.cumsum(happened / at_risk)[events]  # events less those expected
    sums = _halves(len(times)) @ scores
    own = scores[: len(times) // 2].sum()
    return float((np.abs(sums) >= abs(own) - 1e-9).mean()), bool(own > 0)


@lru_cache(maxsize=2)
def _halves(count: int) -> np.ndarray:
    """All ways to take half of so many, a row each of zeros and ones."""
    chosen = np.array(list(combinations(range(count), count // 2)))
    rows = np.zeros((len(chosen), count))
    np.put_along_axis(rows, chosen, 1.0, axis=1)
    return rows


@rule
def comes_within(
    cells: Cells, problem: str, method: str, rounds: int, threshold: float, arrival: Arrival
) -> Decision:
    """The method is there for good in less than so many rounds: their mean over the seeds, by the interval."""
    found = {
        bar: cells.interval(problem, until_reached(cells, problem, method, bar, arrival)[0])
        for bar in arrival.thresholds
    }
    # whole rounds: exactly so many are not less
    given: dict[float, Verdict] = {
        bar: decided(one, np.nextafter(rounds, 0), -1) for bar, one in found.items()
    }
    _, low, high = found[threshold]
    ours = f"rounds until {arrival.words.format(threshold)}: "
    ours += f"{_words(cells, problem, method, threshold, arrival)} [{low:.0f}, {high:.0f}]"
    reason = f"less than {rounds} by the 95 % interval of the mean over {cells.problem(problem).replicates}"
    weak = provisional(cells, problem, "tuned", () if given[threshold] == "reproduced" else (method,))
    return Decision(ours, given[threshold], f"{reason}; {elsewhere(given, threshold)}", weak)


def until_reached(
    cells: Cells, problem: str, method: str, threshold: float, arrival: Arrival = FOUND
) -> tuple[np.ndarray, np.ndarray]:
    """Rounds until the method is there for good, and whether it ever is; each of shape (seeds,)."""
    rounds, _ = cells.curve(problem, method)
    missed = ~arrival.holds(cells, problem, method, threshold)
    first = missed.shape[1] - np.argmax(
        missed[:, ::-1], axis=1
    )  # the evaluation after the last one that missed
    first = np.where(missed.any(axis=1), first, 0)
    steps = np.append(rounds, 2 * rounds[-1] - rounds[-2:][0])
    return steps[first], first < len(rounds)


def _words(cells: Cells, problem: str, method: str, threshold: float, arrival: Arrival) -> str:
    """The mean as it is judged: runs that never come there are in it."""
    rounds, ever = until_reached(cells, problem, method, threshold, arrival)
    if not ever.any():
        return "never"
    if ever.all():
        return f"{rounds.mean():.0f}"
    return f"{rounds.mean():.0f} or more (never on {(~ever).sum()} of {len(ever)})"
