"""Regret: by what factor a method's loss is above that of the best method of a problem, as a rule and as a map."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fedsolve.studies import Cells, Decision, Study
from fedsolve.studies.experiment import Verdict
from fedsolve.studies.pictures import Colours, draw_map, new_figure
from fedsolve.studies.rules import Interval, around_factor, decided, elsewhere, interval, not_learnt, rule

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def regrets(cells: Cells, problem: str, comparisons: int = 1) -> dict[str, Interval]:
    """Logarithm of each method's loss over that of the best one, on the same data sets.

    Infinite where a method diverged on one of them, or ended no better than it began.

    Args:
        cells, problem: whose losses are meant.
        comparisons: that share the 5 %.

    Returns:
        By method; the best, of the least geometric mean, has 0.
    """
    with np.errstate(invalid="ignore"):
        ends = {m: np.log(cells.final(problem, m)) for m in cells.methods(problem)}
    void = not_learnt(cells, problem, ends)
    means = {m: end.mean() if m not in void else np.inf for m, end in ends.items()}
    best = min(means, key=lambda m: means[m])
    lost = Interval(np.inf, np.inf, np.inf)
    return {
        m: interval(end - ends[best], comparisons) if np.isfinite(means[m]) else lost
        for m, end in ends.items()
    }


@rule
def least_regret(cells: Cells, problems: Sequence[str], most: float) -> Decision:
    """Some method's loss is on every problem at most so many times the best one's.

    Of the method with the least greatest regret, which is found on the same data sets: intervals are of as many
    comparisons as there are methods and problems.
    """
    names = cells.methods(problems[0])
    found = {p: regrets(cells, p, len(problems) * len(names)) for p in problems}
    greatest = {m: max(problems, key=lambda p: found[p][m].mean) for m in names}
    order = sorted(names, key=lambda m: found[greatest[m]][m].mean)
    ends = [found[p][order[0]] for p in problems]
    given: dict[float, Verdict] = {bar: _everywhere(ends, np.log(bar)) for bar in around_factor(most)}
    words = ", ".join(
        f"{m} {np.exp(np.mean([found[p][m].mean for p in problems])):.3g}, at most "
        f"{np.exp(found[greatest[m]][m].mean):.3g} ({greatest[m]})"
        for m in order
    )
    alone = sum(all(one.low > 0 for m, one in by.items() if one.mean != 0) for by in found.values())
    reason = (
        f"{order[0]} on each of {len(problems)} by 95 % intervals over data sets, paired, all methods and problems "
        f"together; {elsewhere(given, most)}. The best is significantly better than every other on {alone} of "
        f"{len(problems)}"
    )
    return Decision(
        f"loss over the best one's, geometric mean over the problems: {words}", given[most], reason
    )


def _everywhere(ends: Sequence[Interval], bar: float) -> Verdict:
    """Whether all intervals lie below a bar; contradicted where one lies above it."""
    verdicts: set[Verdict] = {decided(one, bar, -1) for one in ends}
    if len(verdicts) == 1:
        return verdicts.pop()
    return "not reproduced" if "not reproduced" in verdicts else "underpowered"


@dataclass(frozen=True)
class RegretMap:
    """Methods by problems: the factor by which each loss is above the problem's best.

    Attributes:
        caption: what it shows; how to read it and the seeds are added.
        columns: what a column is called -> the problems whose geometric mean it shows.
        worst: the factor of the darkest colour.
        data_set: which it shows alone, if one.
    """

    caption: str
    columns: Mapping[str, Sequence[str]]
    worst: float = 3.0
    data_set: str = ""

    def draw(self, study: Study, cells: Cells) -> tuple[str, Figure]:
        """Its caption and the figure; of a quick run the problems that there are."""
        there = all(name in cells.problems for names in self.columns.values() for name in names)
        columns = self.columns if there else {name: [name] for name in cells.problems}
        names = cells.methods(next(iter(cells.problems)))[::-1]
        found = {p: regrets(cells, p) for problems in columns.values() for p in problems}
        means = [[np.mean([found[p][m].mean for p in ps]) for ps in columns.values()] for m in names]
        values = np.exp(np.array(means))
        figure = new_figure(0.62 * len(columns) + 2.2, 0.36 * len(names) + 1.6)
        axis = figure.subplots()
        look: dict[str, Any] = {"write": lambda v: f"{v:.2f}"}
        colours = Colours(best=1.0, worst=self.worst, log=True)
        image = draw_map(axis, values, list(columns), names, colours, **look)
        axis.tick_params(labelsize=8)
        title = f"{study.title} ({self.data_set})" if self.data_set else study.title
        axis.set_title(title, loc="left", fontsize=10.5)
        bar = figure.colorbar(image, ax=axis, label="loss over the best one's", ticks=[1, 1.5, 2, self.worst])
        bar.ax.set_yticklabels(["1", "1.5", "2", f"{self.worst:g}"])
        bar.ax.minorticks_off()
        reading = "Each number: the loss over that of the cell's best method, geometric mean over deals"
        reading += " and data sets." if any(len(ps) > 1 for ps in columns.values()) else "."
        return f"{self.caption} {reading} {study.seeds_in_words}", figure
