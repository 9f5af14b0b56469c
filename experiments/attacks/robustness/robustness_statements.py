"""What papers say of robust reductions and of attacks on them, with rules that compare accuracy with and without."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from experiments.margins import margin
from fedsolve.studies import Cells, Decision, Statement
from fedsolve.studies.public import describe
from fedsolve.studies.rules import (
    Interval,
    Rule,
    around,
    at_least_as_good,
    beyond,
    each_better,
    elsewhere,
    interval,
    rule,
)

CLIENTS, WORST, SHARES = 30, 12, (10, 20, 40)
"""Clients; attackers that reductions are told to expect, as many as there are at most; per cent that attack."""
ATTACKS = {
    "noise": "Gaussian noise",
    "label flip": "label flip",
    "little": "a little is enough",
    "inner product": "inner-product manipulation",
    "min-max": "min-max",
    "huge": "updates 10^18 times as long",
}
"""Every attack by its name in problems, with its name in full."""
ALIKE, DIFFERENT = "", "clients differ"
EXCLUDING = "mean without outliers"
MARGIN, AS_GOOD = (margin("robustness", name) for name in ("withstands", "as-good"))
"""In points of test accuracy: a reduction that loses less withstands an attack. Ours: no paper has a number."""

INTERVALS = "95 % intervals over data sets, paired"


def at(attack: str, share: int, where: str = ALIKE) -> str:
    """A problem's name."""
    name = f"{attack} {share} %" if attack else "none"
    return f"{name}, {where}" if where else name


def lost(cells: Cells, problem: str, method: str) -> np.ndarray:
    """Points of the metric that a method loses to the attack, paired by seed, (seeds,); infinite where it diverged."""
    without = at("", 0, DIFFERENT if problem.endswith(DIFFERENT) else ALIKE)
    scale = describe(cells.problem(problem).metric).scale
    found = scale * (cells.final(without, method) - cells.final(problem, method))
    return np.where(np.isfinite(found), found, np.inf)


def withstands(method: str, problems: Sequence[str]) -> Rule:
    """It loses less than the margin to every attack; partly, where some are withstood."""
    return _all([(method, name) for name in problems], -1)


def breaks(methods: Sequence[str], problem: str) -> Rule:
    """Each of the methods loses more than the margin to the attack; partly, which of them."""
    return _all([(method, problem) for method in methods], 1)


@rule
def _all(cells: Cells, pairs: Sequence[tuple[str, str]], side: int) -> Decision:
    """Losses of (method, problem) pairs that are claimed to be all above the margin (side 1) or all below it (-1)."""
    one_method = len({method for method, _ in pairs}) == 1
    words, found = [], []
    for method, problem in pairs:
        values, label = lost(cells, problem, method), problem if one_method else method
        alive = np.isfinite(values).all()
        lost_points = interval(values, len(pairs)) if alive else Interval(np.inf, np.inf, np.inf)
        words.append(f"{label} {lost_points:.1f}" if alive else f"{label} diverged")
        found.append((label, lost_points))
    given = {bar: beyond(found, bar, side) for bar in around(MARGIN)}
    verdict, which = given[MARGIN]
    reason = f"{'more' if side > 0 else 'less'} than {MARGIN:g} points by {INTERVALS}{which}; "
    reason += elsewhere({bar: one for bar, (one, _) in given.items()}, MARGIN)
    return Decision(f"points lost: {', '.join(words)}", verdict, reason)


@rule
def more_harm(cells: Cells, a: str, b: str, methods: Sequence[str]) -> Decision:
    """Every method loses more on problem `a` than on problem `b`."""
    words, found = [], []
    for method in methods:
        first, second = lost(cells, a, method), lost(cells, b, method)
        if np.isinf(first).any() or np.isinf(second).any():
            more = bool(np.isinf(first).any() and not np.isinf(second).any())
            apart = Interval(*(np.inf if more else -np.inf,) * 3)
            words.append(f"{method} diverged at {a if more else b}")
        else:
            apart = interval(first - second, len(methods))
            words.append(f"{method} {apart:+.1f}")
        found.append((method, apart))
    verdict, which = beyond(found, 0.0)
    return Decision(f"points lost at {a} less those at {b}: {', '.join(words)}", verdict, INTERVALS + which)


_HOLDS = {
    "median": "Yin et al. 2018: statistical rates for any share of attackers below 1/2",
    "trimmed mean": "Yin et al. 2018: statistical rates if the share cut is at least that of attackers",
    "geometric median": "Pillutla et al. 2022: a breakdown point of 1/2",
    "Krum": "Blanchard et al. 2017: resilient to f of n where 2f + 2 < n",
    "multi-Krum": "Blanchard et al. 2017: as Krum",
    "norm clipping": "",
    "centred clipping": "Karimireddy et al. 2021: robust, with momentum on the clients, which is not used here",
}


def statements(reductions: Sequence[str]) -> tuple[Statement, ...]:
    """On the mean, on each reduction, on each attack, and on what reductions cost."""
    every = [at(attack, share) for attack in ATTACKS for share in SHARES]
    defences = [name for name in reductions if name not in ("mean", EXCLUDING)]
    huge = [at("huge", share) for share in SHARES]
    margin = "; the margin is ours"
    return (
        Statement(
            "A tenth of the clients that send noise is enough against the mean",
            f"Blanchard et al. 2017, Lemma 1: no linear combination tolerates a single attacker{margin}",
            breaks(["mean"], at("noise", SHARES[0])),
        ),
        Statement(
            "A tenth of the clients that send huge updates is enough against the mean",
            f"Blanchard et al. 2017, Lemma 1: no linear combination tolerates a single attacker{margin}",
            breaks(["mean"], huge[0]),
        ),
        Statement(
            f"The mean without outliers loses less than {MARGIN:g} points to huge updates, up to {SHARES[-1]} %",
            "",
            withstands(EXCLUDING, huge),
        ),
        *(
            Statement(
                f"{name[0].upper()}{name[1:]} loses less than {MARGIN:g} points to each attack, up to {SHARES[-1]} %",
                f"{theirs}{margin}" if theirs else "",
                withstands(name, every),
            )
            for name, theirs in _HOLDS.items()
        ),
        Statement(
            f"A little is enough, by 20 %, costs every robust reduction more than {MARGIN:g} points",
            f"Baruch et al. 2019: 20 % of the workers suffice against all defences, on networks{margin}",
            breaks(defences, at("little", 20)),
        ),
        Statement(
            f"Inner-product manipulation, by 40 %, costs the median and Krum more than {MARGIN:g} points",
            f"Xie et al. 2019: the median and Krum can be broken{margin}",
            breaks(["median", "Krum"], at("inner product", 40)),
        ),
        Statement(
            "Min-max does every robust reduction more harm than a little is enough, by 20 %",
            "Shejwalkar and Houmansadr 2021: more harm than earlier attacks, on networks",
            more_harm(at("min-max", 20), at("little", 20), defences),
        ),
        Statement(
            "The geometric median costs less than one point among honest clients",
            "Pillutla et al. 2022: competitive with the mean at little corruption; the margin is ours",
            at_least_as_good(at("", 0), "geometric median", "mean", AS_GOOD),
        ),
        Statement(
            "Where clients differ, every robust reduction costs accuracy though nobody attacks",
            "",
            each_better(at("", 0, DIFFERENT), [("mean", name) for name in defences]),
        ),
        *(
            Statement(
                f"Where clients differ, {full} by 20 % does every robust reduction more harm than where they are alike",
                "",
                more_harm(at(name, 20, DIFFERENT), at(name, 20), defences),
            )
            for name, full in ATTACKS.items()
            if name in ("little", "inner product", "min-max")
        ),
    )
