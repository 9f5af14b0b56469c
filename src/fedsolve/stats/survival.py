"""Kaplan-Meier curves over sites and the log-rank test between groups, from counts at each time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from scipy.special import ndtri

from fedsolve.core.errors import InvalidInput, check_choice, check_known, check_number, check_range, shown
from fedsolve.report.plots import new_figure
from fedsolve.report.style import LIGHT, styles_of
from fedsolve.results.columns import frame
from fedsolve.stats.design import Design
from fedsolve.stats.estimates import Result, Summary, chi_square_p, number_text, p_text
from fedsolve.stats.event_times import OfTimes, Times, about, at_or_after, common_grid
from fedsolve.stats.local_sites import local_sites
from fedsolve.stats.questions import Request, Sites, SiteTable, Sums

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def log_rank(at_risk: np.ndarray, events: np.ndarray) -> Sums:
    """`observed` events of each group, `expected` ones if all had one hazard, and `variance` of the differences."""
    # The counts at_risk and events have shape (groups, times).
    n, d = at_risk.sum(axis=0), events.sum(axis=0)
    share = at_risk / np.maximum(n, 1)
    factor = d * (n - d) / np.maximum(n - 1, 1)
    variance = np.diag((factor * share).sum(axis=1)) - (factor * share) @ share.T
    return {"observed": events.sum(axis=1), "expected": share @ d, "variance": variance}


@dataclass(frozen=True)
class SurvivalCounts(OfTimes):
    ANALYSIS: ClassVar[str] = "kaplan_meier"
    groups: str  # groups, levels: a column and its categories, each a curve; '' and ('',) for one curve
    levels: tuple[str, ...]
    grid: tuple[int, ...]  # the times, by their numbers
    log_rank: bool  # whether each site is to return its `log_rank`, too

    def sums(self, table: SiteTable) -> Sums:
        # counts of each group at each time, (groups, times), and the parts of the test
        keys, event, *_ = self.times.of(table)
        texts = table.texts(self.groups)[self.times.design.rows(table)[0]] if self.groups else np.array([""])
        group = np.argmax(texts == np.array(self.levels)[:, None], axis=0)
        shape = len(self.levels), len(self.grid)
        place = group * shape[1] + np.searchsorted(self.grid, keys)
        both = [np.bincount(place[of], minlength=shape[0] * shape[1]) for of in (slice(None), event)]
        leaving, events = (counts.reshape(shape).astype(float) for counts in both)
        counts = {"at_risk": at_or_after(leaving.T).T, "events": events}
        test = log_rank(**counts) if self.log_rank else {}
        return {"rows": np.array(float(len(event)))} | counts | test


@dataclass(frozen=True)
class SurvivalCurve:
    """A Kaplan-Meier curve.

    Attributes:
        times: at which rows leave, in order, shape (times,).
        at_risk, events: rows at risk just before each time, and events at it, shape (times,).
        level: of the intervals.
    """

    times: np.ndarray
    at_risk: np.ndarray
    events: np.ndarray
    level: float = 0.95

    @property
    def survival(self) -> np.ndarray:
        """The probability of no event up to and at each time, the product of 1 - events / at_risk, shape (times,)."""
        return np.cumprod(1 - self.events / self.at_risk)

    @property
    def _deviation(self) -> np.ndarray:
        # of log survival, by Greenwood's formula
        alive = np.maximum(self.at_risk - self.events, 1)
        return np.sqrt(np.cumsum(self.events / (self.at_risk * alive)))

    @property
    def standard_errors(self) -> np.ndarray:
        """Greenwood's, shape (times,); NaN where nobody survives."""
        return np.where(self.survival > 0, self.survival * self._deviation, np.nan)

    @property
    def intervals(self) -> np.ndarray:
        """Log-log intervals of the survival, shape (times, 2): 1 before the first event, NaN where nobody survives."""
        inside = np.where((self.survival > 0) & (self.survival < 1), self.survival, np.nan)
        power = np.exp(ndtri((1 + self.level) / 2) * self._deviation / np.log(inside))
        ends = np.stack([inside ** (1 / power), inside**power], axis=1)
        return np.where(self.survival[:, None] == 1, 1.0, ends)

    @property
    def median(self) -> tuple[float, float, float]:
        """The first time at which survival is at most 1/2, and its interval; inf where that is not observed."""
        curves = [self.survival, *self.intervals.T]
        low = [np.append(self.times[curve <= 0.5 + 1e-12], np.inf)[0] for curve in curves]
        return float(low[0]), float(low[1]), float(low[2])

    def at(self, time: float) -> tuple[float, float, float, int]:
        """Survival at a time with the ends of its interval, and how many rows are at risk then; NaN past the last."""
        check_number("time", time, at_least=0)
        left = int(np.append(self.at_risk, 0)[np.searchsorted(self.times, time)])
        known = np.vstack([np.ones(3), np.column_stack([self.survival, self.intervals])])
        own = known[np.searchsorted(self.times, time, side="right")]
        survival, low, high = (own if left or self.survival[-1] == 0 else np.full(3, np.nan)).tolist()
        return survival, low, high, left


@dataclass(frozen=True, kw_only=True, repr=False)
class KaplanMeier(Result):
    """Kaplan-Meier curves over all sites; `result[group]` is the `SurvivalCurve` of a group.

    Attributes:
        time: the column of times.
        groups: the names of the curves; ("all",) for one.
        times: at which rows leave, in order, shape (times,).
        at_risk, events: shape (groups, times).
        level: of the intervals.
        observed, expected: events of each group, and those if all had one hazard, shape (groups,).
        statistic, degrees: of the log-rank test, chi-square and its degrees of freedom; 0 without groups.
        rows, left_out, sites, notes: as of `Estimates`.
    """

    time: str
    groups: tuple[str, ...]
    times: np.ndarray
    at_risk: np.ndarray
    events: np.ndarray
    level: float
    observed: np.ndarray
    expected: np.ndarray
    statistic: float
    degrees: int

    def __getitem__(self, group: str) -> SurvivalCurve:
        """The curve of a group, at the times at which rows of it leave."""
        check_known("group", group, self.groups)
        i = self.groups.index(group)
        here = (self.at_risk[i] > 0) & (self.at_risk[i] > np.append(self.at_risk[i, 1:], 0))
        return SurvivalCurve(self.times[here], self.at_risk[i, here], self.events[i, here], self.level)

    @property
    def p_value(self) -> float:
        """Of the log-rank test, NaN without groups."""
        return chi_square_p(self.statistic, self.degrees)

    def at(self, time: float) -> dict[str, tuple[float, float, float, int]]:
        """Survival at a time, for each group.

        Args:
            time: >= 0, in the unit of the column.

        Returns:
            By group, the survival, the ends of its interval and the rows at risk; NaN past a group's last time.
        """
        return {name: self[name].at(time) for name in self.groups}

    def frame(self) -> Any:
        """Give the curves as a data frame.

        Returns:
            A row for each group and time, of pandas, or of polars; `InvalidInput` if neither is installed.
        """
        curves = [self[name] for name in self.groups]
        names = ("times", "at_risk", "events", "survival", "standard_errors")
        columns = {"group": np.repeat(self.groups, [len(curve.times) for curve in curves])}
        columns |= {name: np.concatenate([getattr(curve, name) for curve in curves]) for name in names}
        ends = np.concatenate([curve.intervals for curve in curves])
        return frame(columns | {"low": ends[:, 0], "high": ends[:, 1]})

    def summary(self) -> Summary:
        """Give the table that one prints.

        Returns:
            Rows, events and median of each group, and the log-rank test.
        """
        head = ["", "rows", "events", "expected", "median", f"{100 * self.level:g} % from", "to"]
        rows = []
        for name, n, d, expected in zip(self.groups, self.at_risk, self.observed, self.expected, strict=True):
            rest = map(number_text, [float(expected), *self[name].median])
            rows.append([name, f"{n[0]:,.0f}", f"{d:,.0f}", *rest])
        test = f"log-rank test: chi-square {number_text(self.statistic)}, {self.degrees} df, p {p_text(self.p_value)}"
        return self._table(f"Survival by {self.time}", head, rows, [test] * (self.degrees > 0))

    def plot(self, unit: str = "") -> Figure:
        """Plot the curves with their intervals, and the rows at risk below.

        Args:
            unit: of the times, such as "days".

        Returns:
            A figure of matplotlib; `InvalidInput` if it is not installed.
        """
        figure = new_figure(8, 4.4 + 0.25 * len(self.groups))
        axes, below = figure.subplots(2, 1, sharex=True, height_ratios=[12, 1 + len(self.groups)])
        for name, style in styles_of(self.groups).items():
            curve, colour = self[name], LIGHT[style.colour]
            x, y = np.append(0, curve.times), np.append(1, curve.survival)
            axes.step(x, y, where="post", label=name, color=colour, dashes=style.dash)
            axes.fill_between(
                x, *np.vstack([[1, 1], curve.intervals]).T, step="post", color=colour, alpha=0.2, linewidth=0
            )
        axes.set(ylim=(0, 1.02), xlim=(0, None), ylabel="survival")
        axes.legend(frameon=False) if len(self.groups) > 1 else None
        for i, name in enumerate(self.groups):
            for tick in (x for x in axes.get_xticks() if 0 <= x <= self.times[-1]):
                below.text(tick, i, f"{self[name].at(tick)[3]:,}", ha="center", va="center")
        below.set_yticks(range(len(self.groups)), self.groups)
        below.tick_params(axis="y", length=0, pad=20)
        label = self.time if unit in ("", self.time) else f"{self.time} ({unit})"
        below.set(ylim=(len(self.groups) - 0.5, -0.5), xlabel=label)
        below.set_title("at risk", loc="left", fontsize=9)
        below.spines[:].set_visible(False)
        return figure


@dataclass(frozen=True)
class SurvivalRequest(Request):
    ANALYSIS: ClassVar[str] = "kaplan_meier"
    time: str
    event: str
    groups: str | None = None
    interval: float | None = None
    level: float = 0.95
    strata: str | None = None

    def __post_init__(self) -> None:
        check_choice("strata", self.strata, ("site", None))
        check_range("interval", self.interval, above=0, optional=True)
        check_number("level", self.level, above=0, below=1)
        if not isinstance(self.groups, str | None) or self.groups in (self.time, self.event):
            raise InvalidInput(f"groups = {shown(self.groups)} must be one column beside time and event")

    def _fit(self, sites: Sites) -> KaplanMeier:
        needed = (self.time, self.event, *([self.groups] if self.groups else []))
        levels = sites.levels({name: name == self.groups for name in needed})
        design = Design((), (), tuple((k, v) for k, v in levels.items() if k == self.groups), needed, (), ())
        times = Times(design, self.time, self.event, "", float(self.interval or 0), "all")
        found = sites.sums(times)
        names = levels[self.groups] if self.groups else ("",)
        own = (self.groups or "", names, tuple(common_grid(sites, times).tolist()), self.strata == "site")
        test = sites.sums(question := SurvivalCounts(times, *own))
        at_risk, events = np.rint(test["at_risk"]), np.rint(test["events"])
        test = test if self.strata else log_rank(at_risk, events)
        difference = test["observed"] - test["expected"]
        degrees = int((test["expected"] > 0).sum()) - 1
        inverse = np.linalg.pinv(test["variance"], rcond=1e-10, hermitian=True) * (degrees > 0)
        return KaplanMeier(
            time=self.time,
            groups=names if self.groups else ("all",),
            times=times.as_times(np.array(question.grid)),
            at_risk=at_risk,
            events=events,
            level=self.level,
            observed=test["observed"],
            expected=test["expected"],
            statistic=float(difference @ inverse @ difference),
            degrees=degrees,
            **about(sites, times, found),
        )


def kaplan_meier(
    sites: Any,
    time: str,
    event: str,
    groups: str | None = None,
    *,
    interval: float | None = None,
    level: float = 0.95,
    strata: str | None = None,
    min_rows: int = 10,
    min_clients: int = 3,
) -> KaplanMeier:
    """Kaplan-Meier curves over sites, as of their tables put together, and the log-rank test between groups.

    Sites send how many rows of each group are at risk and have their event at each time: these tell single rows apart
    unless times are in bins.

    Args:
        sites, time, event, interval, min_rows, min_clients: as of `fedsolve.stats.cox` with strata=None; a bin in which
            fewer than min_rows rows of a site leave joins the next.
        groups: column of categories, each of which has a curve; None for one curve.
        level: of the intervals, log-log ones, in (0, 1).
        strata: "site" for a log-rank test within sites; None for one over all rows.

    Returns:
        The curves, with `summary()`, `frame()`, `plot()` and `at(time)`.

    Raises:
        InvalidInput: a word that is not known, times below 0, events other than 0 and 1, or fewer than two groups.

    Reference: E. L. Kaplan and P. Meier, "Nonparametric estimation from incomplete observations", 1958.
    """
    request = SurvivalRequest(time, event, groups, interval, level, strata)
    return request.fit(local_sites(sites, min_rows, min_clients))
