"""By how much a method is better than another over the same seeds, and what that decides of several claimed at once."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedsolve.results.metrics import describe
from fedsolve.studies.cells import Cells, Which
from fedsolve.studies.experiment import Verdict
from fedsolve.studies.intervals import Interval, beyond, chance


@dataclass(frozen=True)
class Difference:
    """By how much `a` is better than `b`, over the same seeds.

    Attributes:
        a, b: the methods.
        mean: of the differences, positive if `a` is better, in the unit that is shown.
        low, high: the interval (Student's t, paired by seed); infinite where a seed diverged.
        chance: half the width of one for what the draw of the test examples does to it, at most; 0 where unknown.
        collapsed: seeds that are left out, since one of the two collapsed.
    """

    a: str
    b: str
    mean: float
    low: float
    high: float
    chance: float = 0.0
    collapsed: int = 0

    @property
    def wide(self) -> Difference:
        """With the chance of the test examples, which is independent of that of the seeds, in its interval."""
        if not self.chance:
            return self
        below, above = (
            float(np.hypot(end, self.chance)) for end in (self.mean - self.low, self.high - self.mean)
        )
        return replace(self, low=self.mean - below, high=self.mean + above, chance=0.0)

    @property
    def words(self) -> str:
        """Such as 'FedAdam over FedAvg +3.1 [1.2, 5.0]'."""
        if not np.isfinite(self.mean):
            return f"{self.b if self.mean > 0 else self.a} diverged against {self.a if self.mean > 0 else self.b}"
        beside = (
            f", with the test set's chance [{self.wide.low:.3g}, {self.wide.high:.3g}]" if self.chance else ""
        )
        without = f" without {_seeds(self.collapsed)} that collapsed" if self.collapsed else ""
        return f"{self.a} over {self.b} {Interval(self.mean, self.low, self.high):+.3g}{without}{beside}"


def _seeds(count: int) -> str:
    return f"{count} seed{'s' if count > 1 else ''}"


def difference(
    cells: Cells, problem: str, a: str, b: str, which: Which = "tuned", comparisons: int = 1
) -> Difference:
    """How much better `a` is than `b` at the end, with an interval that is one of several which share the 5 %.

    A method of which a seed diverged is infinitely worse; of two that diverged neither is better. Seeds on which either
    collapsed are left out, and counted. Seeds that change neither method (all clients, whole batches, one start) are
    one observation; data sets are always several.
    """
    metric = describe(cells.problem(problem).metric)
    sign = metric.scale * (1 if metric.higher_is_better else -1)
    ends = [cells.final(problem, name, which) for name in (a, b)]
    ours, theirs = (sign * end for end in ends)
    lost_a, lost_b = (not np.isfinite(values).all() for values in (ours, theirs))
    if lost_a or lost_b:
        mean = np.inf * (int(lost_b) - int(lost_a)) if lost_a != lost_b else 0.0
        return Difference(a, b, mean, mean if mean else -np.inf, mean if mean else np.inf)
    out = cells.collapsed(problem, a, which) | cells.collapsed(problem, b, which)
    ours, theirs, ends = ours[~out], theirs[~out], [end[~out] for end in ends]
    same = np.ptp(ours) == np.ptp(theirs) == 0 and not cells.problem(problem).data_by_seed
    of_mean = cells.interval(problem, (ours - theirs)[: 1 if same else None], comparisons)
    tested = cells.problem(problem).tested
    drawn = chance([end.mean() for end in ends], tested, comparisons * cells.sharing) if tested else 0.0
    return Difference(a, b, *of_mean, metric.scale * drawn, int(out.sum()))


def grade(differences: Sequence[Difference], not_learnt: Collection[str] = ()) -> tuple[Verdict, str]:
    """The verdict on differences that are all claimed to be positive, and in which it holds if in some.

    Args:
        differences: claimed together.
        not_learnt: methods that have not: a difference between two of them decides nothing.
    """
    one = len({d.a for d in differences}) == 1
    named = [(d.b if one else f"{d.a} over {d.b}", d) for d in differences]
    void = [name for name, d in named if {d.a, d.b} <= set(not_learnt)]
    if len(void) == len(named):
        return "not learnt", ""
    learnt = ((name, d) for name, d in named if not {d.a, d.b} <= set(not_learnt))
    verdict, which = beyond([(name, Interval(d.mean, d.low, d.high)) for name, d in learnt], 0.0)
    if not void:
        return verdict, which
    return (
        "partly" if verdict == "reproduced" else verdict,
        f"{which}; neither has learnt in {', '.join(void)}",
    )


def may_change(differences: Iterable[Difference]) -> tuple[str, ...]:
    """The methods whose better setting, outside the grid, could change a verdict on these differences.

    A better setting of the method that is ahead makes a decided difference larger: only the other one's may change it.
    """
    names: list[str] = []
    for d in differences:
        names += [name for name, ahead in ((d.a, d.low > 0), (d.b, d.high < 0)) if not ahead]
    return tuple(dict.fromkeys(names))
