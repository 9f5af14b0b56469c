"""Bytes until an accuracy is reached: a rule, and a picture of all methods; and pictures of some methods alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from fedsolve.studies import Cells, Decision, Study
from fedsolve.studies.experiment import Verdict
from fedsolve.studies.pictures import Curves, new_figure, tidy
from fedsolve.studies.rules import around_factor, decided, elsewhere, interval, provisional, rule

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def bytes_to(cells: Cells, problem: str, method: str, target: float) -> np.ndarray:
    """Bytes that one client has sent when the metric first reaches a target, (seeds,); infinite where it never does."""
    _, values = cells.curve(problem, method)
    sent, reached = cells.sent(problem, method), values >= target
    return np.array([sent[np.argmax(row)] if row.any() else np.inf for row in reached])


def fewer(cells: Cells, problem: str, method: str, base: str, share: float) -> np.ndarray:
    """log of how many times fewer bytes a method needs than `base` to a share of the final mean of `base`, (seeds,)."""
    target = share * float(cells.final(problem, base).mean())
    with np.errstate(divide="ignore"):
        ours, theirs = (bytes_to(cells, problem, name, target) for name in (method, base))
        return np.log(theirs) - np.log(ours)


@rule
def saves_bytes(cells: Cells, problem: str, method: str, base: str, share: float, factor: float) -> Decision:
    """`method` reaches a share of the final metric of `base` with `factor` times fewer bytes, or fewer still."""
    logs = fewer(cells, problem, method, base, share)
    what = f"{share:.0%} of the final mean of {base} with at least {factor:g} times fewer bytes, by the whole 95 % "
    reason = f"{what}interval of the geometric mean over {cells.problem(problem).over}, paired"
    if not np.isfinite(logs).all():
        missed = int((~np.isfinite(logs)).sum())
        weak = provisional(cells, problem, "tuned", (method,))
        return Decision(f"not reached on {missed} of {len(logs)} seeds", "not reproduced", reason, weak)
    found = interval(logs)
    given: dict[float, Verdict] = {bar: decided(found, np.log(bar)) for bar in around_factor(factor)}
    ours = f"{found.factor:.3g} times fewer bytes ({elsewhere(given, factor)})"
    return Decision(ours, given[factor], reason, provisional(cells, problem, "tuned", (method, base)))


@dataclass(frozen=True)
class OnlyMethods:
    """Curves of some methods alone.

    Attributes:
        names: which.
        curves: the picture.
    """

    names: Sequence[str]
    curves: Curves

    def draw(self, study: Study, cells: Cells) -> tuple[str, Figure]:
        """Its caption and the figure."""
        some = {key: cell for key, cell in cells.by_name.items() if key[1] in self.names}
        return self.curves.draw(study, replace(cells, by_name=some or cells.by_name))


@dataclass(frozen=True)
class BytesToTarget:
    """How many times fewer bytes each method needs than `base` to a share of its final metric, a panel a problem."""

    caption: str
    base: str
    share: float

    def draw(self, study: Study, cells: Cells) -> tuple[str, Figure]:
        """Its caption and the figure."""
        names = list(cells.problems)
        most = max(len(cells.methods(name)) for name in names)
        figure = new_figure(4.6 * len(names), 0.6 + 0.3 * most)
        for axis, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
            rows = {m: fewer(cells, name, m, self.base, self.share) for m in cells.methods(name)}
            known = {m: interval(x).factor for m, x in rows.items() if np.isfinite(x).all()}
            order = sorted(known, key=lambda m: known[m].mean)
            for place, method in enumerate(order):
                mean, low, high = known[method]
                axis.plot([low, high], [place, place], color="0.55", linewidth=2)
                axis.plot(mean, place, "o", color="C0", markersize=5)
                axis.annotate(
                    f"{mean:.3g}", (mean, place), (0, 5), textcoords="offset points", fontsize=8, ha="center"
                )
            axis.set_yticks(range(len(order)), order, fontsize=8)
            axis.set_title(cells.problem(name).title, loc="left", fontsize=9.5)
            axis.set_xlabel(f"times fewer bytes than {self.base}", fontsize=9)
            axis.set_xscale("log")
            axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
            axis.margins(0.1, 0.08)
            tidy(axis)
        return f"{self.caption} {study.seeds_in_words}", figure
