"""Cox's proportional hazards model over sites: the maximum of the pooled partial likelihood, from sums alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from fedsolve.core.errors import InvalidInput, check_choice, check_flag, check_range
from fedsolve.stats.design import Design, check_leverage
from fedsolve.stats.estimates import Estimates, check_not_collinear, chi_square_p, number_text, p_text
from fedsolve.stats.event_times import OfTimes, Times, about, at_or_after, common_grid
from fedsolve.stats.formula import design_of, read_formula
from fedsolve.stats.local_sites import local_sites
from fedsolve.stats.questions import Request, Sites, SiteTable, Sums

_STEPS = 10  # of Newton's method: a maximum that is not reached by then lies at infinity
_CONVERGED = 1e-16  # of the Newton decrement, the square of the next step in standard errors
_NOISE = 1e-12  # of the decrement, for each event: one below it that does not shrink is rounding
_LARGEST = 200.0  # of a linear predictor: no sum of exponentials overflows at a step that is too long


@dataclass(frozen=True)
class Rows:
    """Rows at risk at some time of a grid: standardised `x` (rows, p), the last such time, event or not, weights."""

    x: np.ndarray
    place: np.ndarray
    event: np.ndarray
    weights: np.ndarray

    def risk(self, coefficients: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """x'b, and a e^(x'b) with the weights a, (rows,)."""
        eta = np.clip(self.x @ coefficients, -_LARGEST, _LARGEST)
        return eta, self.weights * np.exp(eta)


def risk_sums(rows: Rows, coefficients: np.ndarray, size: int, efron: bool) -> Sums:
    """Sums over the rows at risk at each of `size` times, and over those with an event there."""
    # With eta = x'b and weights a, of shape (size,), those with x (size, p): over the events `events` d, `weight` A =
    # sum of a, `predictors` sum of a eta, `covariates` sum of a x, and for Efron's rule `tied0` E0 = sum of a e^eta,
    # `tied1` E1 = sum of a x e^eta; over those at risk `risk0` S0, `risk1` S1, as E0 and E1.
    x, place, event, weights = rows.x, rows.place, rows.event, rows.weights
    eta, risk = rows.risk(coefficients)

    def by_time(values: np.ndarray, of: np.ndarray | slice = slice(None)) -> np.ndarray:
        columns = np.atleast_2d(values.T)[:, of]
        summed = np.array([np.bincount(place[of], column, size) for column in columns]).T
        return summed[:, 0] if values.ndim == 1 else summed

    sums = {"events": by_time(np.ones(len(eta)), event), "weight": by_time(weights, event)}
    sums |= {"predictors": by_time(weights * eta, event), "covariates": by_time(weights[:, None] * x, event)}
    sums |= {"risk0": at_or_after(by_time(risk)), "risk1": at_or_after(by_time(risk[:, None] * x))}
    ties = {"tied0": by_time(risk, event), "tied1": by_time(risk[:, None] * x, event)} if efron else {}
    return sums | ties


def risk_products(rows: Rows, coefficients: np.ndarray, hazard: np.ndarray, tied: np.ndarray) -> np.ndarray:
    """Sums over times of hazard S2 - tied E2, as S1 and E1 with x x'; the factors (k, times) give (k, p, p)."""
    risk = rows.risk(coefficients)[1]
    factors = risk * (np.cumsum(hazard, axis=1)[:, rows.place] - rows.event * tied[:, rows.place])
    return np.array([rows.x.T @ (factor[:, None] * rows.x) for factor in factors])


def _terms(sums: Sums) -> list[np.ndarray]:
    # of each time, sums over its ties r = 0, ..., d - 1 of A/d times log P, 1/P (the jump of the baseline hazard),
    # f/P, 1/P^2, f/P^2, (f/P)^2, where P = S0 - f E0 and f = r/d, or 0 by Breslow's rule
    events = np.rint(sums["events"]).astype(np.int64)
    time = np.repeat(np.arange(len(events)), events)
    rank = np.arange(len(time)) - np.repeat(np.cumsum(events) - events, events)
    f = rank / events[time] if "tied0" in sums else np.zeros(len(time))
    p = sums["risk0"][time] - f * sums.get("tied0", sums["risk0"])[time]
    share = sums["weight"][time] / events[time]
    of_ties = (np.log(p), 1 / p, f / p, 1 / p**2, f / p**2, (f / p) ** 2)
    return [np.bincount(time, share * values, len(events)) for values in of_ties]


def likelihood(sums: Sums, times: np.ndarray, powers: int, products: Callable[..., np.ndarray]) -> Sums:
    """The log partial likelihood of `risk_sums`, `score` (powers + 1, p) and `information` (powers + 1, p, p)."""
    # The last two are sums over events with a factor (log time)^k, k up to `powers`; `products` is `risk_products`.
    log, hazard, tied, square, cross, tied_square = _terms(sums)
    s1, e1 = sums["risk1"], sums.get("tied1", np.zeros_like(sums["risk1"]))
    residuals = sums["covariates"] - hazard[:, None] * s1 + tied[:, None] * e1
    log_time = np.log(times, out=np.zeros(len(times)), where=times > 0)
    factors = log_time ** np.arange(powers + 1)[:, None]
    information = products(factors * hazard, factors * tied)
    for k, factor in enumerate(factors[:, :, None]):
        mixed = s1.T @ (factor * cross[:, None] * e1)
        information[k] -= s1.T @ (factor * square[:, None] * s1) - mixed - mixed.T
        information[k] -= e1.T @ (factor * tied_square[:, None] * e1)
    value = np.asarray(sums["predictors"].sum() - log.sum())
    return {"log_likelihood": value, "score": factors @ residuals, "information": information}


def concordance_counts(rows: Rows, coefficients: np.ndarray) -> np.ndarray:
    """Weights of a site's pairs of rows of which one has its event while the other is at risk, for Harrell's C."""
    # Shape (3,): of those in which it has the larger predictor, an equal one, and the smaller one.
    if not len(rows.place):
        return np.zeros(3)
    rank = np.unique(np.round(rows.risk(coefficients)[0], 10), return_inverse=True)[1]
    # events first among equal times, and of them those of small predictors: none of them counts as smaller and later
    when = 2 * rows.place + ~rows.event
    order = np.argsort(when * len(rank) + rank)
    rank, when, weights = rank[order], when[order], rows.weights[order]
    after = np.searchsorted(when, when, side="right")  # where those who are at risk after it begin
    smaller = _smaller_later(rank, weights)
    by_rank = np.argsort(rank, kind="stable")
    below, before = (np.append(0.0, np.cumsum(w)) for w in (weights[by_rank], weights))
    first = np.searchsorted(rank[by_rank] * len(rank) + by_rank, rank * len(rank) + after)
    equal = below[np.searchsorted(rank[by_rank], rank, side="right")] - below[first]
    larger = before[-1] - before[after] - smaller - equal
    return np.stack([smaller, equal, larger]) @ (weights * rows.event[order])


def _smaller_later(rank: np.ndarray, weights: np.ndarray) -> np.ndarray:
    # of each place the weight of those after it that have a smaller rank: bit by bit from the highest, with ranks
    # of equal higher bits side by side, in order
    found, place = np.zeros(len(rank)), np.arange(len(rank))
    for bit in reversed(range(int(rank.max()).bit_length())):
        group, one = rank[place] >> (bit + 1), (rank[place] >> bit) & 1
        zeros = np.cumsum(weights[place] * (1 - one))
        found[place] += one * (zeros[np.searchsorted(group, group, side="right") - 1] - zeros)
        place = place[np.argsort(rank[place] >> bit, kind="stable")]
    return found


@dataclass(frozen=True)
class CoxSums(OfTimes):
    ANALYSIS: ClassVar[str] = "cox"
    efron: bool  # whether ties follow Efron's rule, or Breslow's
    # times of events over all sites, by their numbers; () for risk sets of each site's own rows, and their likelihood
    grid: tuple[int, ...]
    coefficients: tuple[float, ...] = ()  # of the standardised columns
    factors: tuple[tuple[tuple[float, ...], ...], ...] = ()  # of `risk_products`; () for `risk_sums`
    powers: int = 0  # of the `likelihood`
    pairs: bool = False  # whether `concordance_counts` are wanted

    def sums(self, table: SiteTable) -> Sums:
        # the `likelihood`, `risk_products` or `risk_sums`, and `concordance_counts`
        rows, times = table.last("cox", (self.times, self.grid), lambda: self._rows(table))
        b = np.array(self.coefficients)
        if table.min_rows > 1:  # with large coefficients the sums would be those of a single row
            risk = rows.risk(b)[1]
            check_leverage(table, rows.x, risk, rows.x.T @ (risk[:, None] * rows.x))
        found = {"rows": np.array(float(len(self.times.of(table)[1])))}
        found |= {"pairs": concordance_counts(rows, b)} if self.pairs else {}
        if self.factors:
            return found | {"products": risk_products(rows, b, *map(np.array, self.factors))}
        sums = risk_sums(rows, b, len(times), self.efron)
        if not self.grid:
            sums = likelihood(sums, times, self.powers, lambda *factors: risk_products(rows, b, *factors))
        return found | sums

    def _rows(self, table: SiteTable) -> tuple[Rows, np.ndarray]:
        keys, event, weights, _ = self.times.of(table)
        x = self.times.design.matrix(table)
        grid = np.array(self.grid, np.int64) if self.grid else np.unique(keys[event])
        place = np.searchsorted(grid, keys, side="right") - 1
        kept = place >= 0  # who leaves before the first event is at risk at none
        x = x[kept] if self.grid or not kept.any() else x[kept] - x[kept].mean(axis=0)  # for less rounding
        rows = Rows(np.asfortranarray(x), place[kept], event[kept], weights[kept])
        return rows, self.times.as_times(grid)


@dataclass(frozen=True, kw_only=True, repr=False)
class CoxResult(Estimates):
    """Cox's proportional hazards model over all sites.

    Attributes:
        model, names, coefficients, covariance, degrees, rows, left_out, sites, notes: as of `fedsolve.stats.Estimates`.
        events: rows with one.
        log_likelihood, null_log_likelihood: of the partial likelihood, at the estimate and at 0.
        score_statistic: of the test at 0, chi-square with as many degrees of freedom as there are columns.
        concordance: Harrell's C of pairs of rows within sites; NaN without such pairs.
        trends: score tests, as R's cox.zph, of hazard ratios that change with log time: chi-square of each column, and
            last of all together, shape (columns + 1,); NaN where events are at time 0, or all at one time.
        times, cumulative_hazard: of the baseline, for a row at the columns' means, at the times of events; empty with
            strata="site", where it would tell each site's times.
        means: of the columns, shape (columns,).
    """

    events: int
    log_likelihood: float
    null_log_likelihood: float
    score_statistic: float
    concordance: float
    trends: np.ndarray
    times: np.ndarray
    cumulative_hazard: np.ndarray
    means: np.ndarray

    @property
    def hazard_ratios(self) -> np.ndarray:
        """exp(coefficient), shape (columns,)."""
        return np.exp(self.coefficients)

    @property
    def tests(self) -> dict[str, tuple[float, float]]:
        """Chi-square and p-value of all coefficients being 0, of the tests "likelihood ratio", "Wald" and "score"."""
        wald = self.coefficients @ np.linalg.solve(self.covariance, self.coefficients)
        ratio = 2 * (self.log_likelihood - self.null_log_likelihood)
        found = {"likelihood ratio": ratio, "Wald": float(wald), "score": self.score_statistic}
        return {name: (value, chi_square_p(value, len(self.names))) for name, value in found.items()}

    def _facts(self) -> list[str]:
        tests = [f"{name} {number_text(x)} (p {p_text(p)})" for name, (x, p) in self.tests.items()]
        p_values = [p_text(chi_square_p(statistic, 1)) for statistic in self.trends[:-1]]
        each = map(" ".join, zip(self.names, p_values, strict=True))
        together = p_text(chi_square_p(float(self.trends[-1]), len(self.names)))
        return [
            f"{self.events:,} events, log partial likelihood {self.log_likelihood:.2f}",
            f"concordance within sites {number_text(self.concordance)}",
            f"all coefficients 0: {', '.join(tests)}",
            f"hazard ratios that change with log time: p {together} ({', '.join(each)})",
        ]


@dataclass(frozen=True)
class CoxRequest(Request):
    ANALYSIS: ClassVar[str] = "cox"
    time: str
    event: str
    terms: Any
    ties: str = "efron"
    strata: str | None = "site"
    interval: float | None = None
    weights: str | None = None

    def __post_init__(self) -> None:
        check_choice("ties", self.ties, ("efron", "breslow"))
        check_choice("strata", self.strata, ("site", None))
        check_range("interval", self.interval, above=0, optional=True)
        if own := {self.time, self.event}.intersection(read_formula(None, self.terms).columns):
            raise InvalidInput(f"{min(own)} is the outcome, and a term too: leave it out of the terms")
        if self.interval is not None and self.strata is not None:
            raise InvalidInput("interval needs strata=None (--strata none): else no time leaves a site")

    def _fit(self, sites: Sites) -> CoxResult:
        formula = read_formula(None, self.terms)
        formula = replace(formula, terms=((), *filter(None, formula.terms)))  # so that means are subtracted
        whole, _ = design_of(formula, sites, [self.time, self.event, *filter(None, [self.weights])])
        if not (design := _without_intercept(whole)).size:
            raise InvalidInput("terms has no column: name one, such as 'age'")
        own = (self.time, self.event, self.weights or "", float(self.interval or 0))
        times = Times(design, *own, "" if self.strata else "events")
        found = sites.sums(times)
        if found["events"] < 0.5:
            why = f"no row has an event: is {self.event} 1 where there is one?"
            raise InvalidInput("; ".join([why, *sites.notes[:3]]))
        grid = [] if self.strata else common_grid(sites, times).tolist()
        times = replace(times, design=_without_intercept(whole.standardised(sites)[0]))
        question = CoxSums(times, self.ties == "efron", tuple(grid))
        if (numbers := len(grid) * (5 + 3 * design.size if question.efron else 4 + 2 * design.size)) > 2**23:
            raise InvalidInput(f"{len(grid):,} times take {numbers:,} numbers of a site: give an interval")
        return self._result(sites, question, found)

    def _result(self, sites: Sites, question: CoxSums, found: Sums) -> CoxResult:
        times, last = question.times, Sums()
        grid = times.as_times(np.array(question.grid, np.int64))

        def evaluate(coefficients: np.ndarray, powers: int = 0) -> Sums:
            nonlocal last
            at = replace(question, coefficients=tuple(coefficients.tolist()))
            last = sites.sums(replace(at, powers=powers, pairs=powers > 0))

            def products(*factors: np.ndarray) -> np.ndarray:
                held = (tuple(map(tuple, factor.tolist())) for factor in factors)
                return sites.sums(replace(at, factors=tuple(held)))["products"]

            return likelihood(last, grid, powers, products) if question.grid else last

        b, at_zero = maximise(evaluate, times.design.names, float(found["weight"]))
        there, score = evaluate(b, 2), at_zero["score"][0]
        coefficients, covariance = times.design.unscaled(b, np.linalg.inv(there["information"][0]))
        pairs, own = last["pairs"], about(sites, times, found)
        at_start = bool(found["at_zero"] > 0.5)
        own["notes"] += ("all events are at one site",) * (round(float(found["with_events"])) == 1)
        own["notes"] += ("events at time 0: no test of proportional hazards by log time",) * at_start
        baseline = "a baseline hazard for each site" if self.strata else "one baseline hazard"
        return CoxResult(
            **own,
            model=f"Cox's model of {self.event} by {self.time}, {baseline}, {self.ties.title()}'s ties",
            names=times.design.names,
            coefficients=coefficients,
            covariance=covariance,
            degrees=math.inf,
            events=int(found["events"]),
            log_likelihood=float(there["log_likelihood"]),
            null_log_likelihood=float(at_zero["log_likelihood"]),
            score_statistic=float(score @ np.linalg.solve(at_zero["information"][0], score)),
            concordance=float((pairs[0] + pairs[1] / 2) / pairs.sum()) if pairs.any() else math.nan,
            trends=np.full(len(b) + 1, np.nan) if at_start else _trends(there),
            times=grid,
            cumulative_hazard=np.cumsum(_terms(last)[1]) if question.grid else grid,
            means=np.array(times.design.shift),
        )


def _without_intercept(design: Design) -> Design:
    kept = [i for i, product in enumerate(design.products) if product]
    parts = ("names", "products", "shift", "scale")
    return replace(design, **{name: tuple(getattr(design, name)[i] for i in kept) for name in parts})


def _trends(there: Sums) -> np.ndarray:
    # score tests of further columns, x log t: each, and all of them
    score, (within, across, squares) = there["score"][1], there["information"]
    rest = squares - across @ np.linalg.solve(within, across)
    if (np.diag(rest) <= 1e-9 * np.diag(squares)).any():  # all events at one time
        return np.full(len(score) + 1, np.nan)
    return np.append(score**2 / np.diag(rest), score @ np.linalg.solve(rest, score))


def maximise(evaluate: Callable[..., Sums], names: Sequence[str], weight: float) -> tuple[np.ndarray, Sums]:
    """Where a `likelihood` of events of a weight is largest, by Newton's method from 0, and what it is at 0."""
    at, before = np.zeros(len(names)), math.inf
    at_zero = here = evaluate(at)
    information = here["information"][0]
    for name, size in zip(names, np.diag(information), strict=True):
        if size <= 1e-10 * weight:
            why = f"column {name} does not vary among the rows at risk at any event: leave it out"
            raise InvalidInput(f"{why}, or, if it differs between sites alone, give strata=None")
    check_not_collinear(information, names, " at risk")
    step = at
    for _ in range(_STEPS + 1):
        # least squares: near a separation the information is singular to rounding
        step = np.linalg.lstsq(here["information"][0], here["score"][0], rcond=1e-14)[0]
        decrement, least = float(step @ here["score"][0]), here["log_likelihood"]
        if 0 <= decrement < _CONVERGED or before / 4 < abs(decrement) < _NOISE * weight:
            return at + step, at_zero
        tried, before, here = step, decrement, evaluate(at + step)
        # half the step until the likelihood does not fall beyond rounding
        while here["log_likelihood"] < least - 1e-10 * abs(least) and tried @ tried > 1e-6 * step @ step:
            tried = tried / 2
            here = evaluate(at + tried)
        at = at + tried
    # still moving after all steps: the likelihood has no maximum in these directions
    grows = [name for name, part in zip(names, np.abs(step), strict=True) if part > 0.3 * np.abs(step).max()]
    raise InvalidInput(
        f"the coefficient of {' and '.join(grows)} has no end: among those at risk it separates the rows with events "
        "from the others: leave it out, or join categories"
    )


def cox(
    sites: Any,
    time: str,
    event: str,
    terms: Any,
    *,
    ties: str = "efron",
    strata: str | None = "site",
    interval: float | None = None,
    weights: str | None = None,
    compare_exact: bool = False,
    min_rows: int = 10,
    min_clients: int = 3,
) -> CoxResult:
    """Cox's proportional hazards model over sites, as of their tables put together.

    With `strata="site"` each site has a baseline hazard of its own, and sends 1 + p + p^2 sums over its rows in each
    round, p the number of columns. With None there is one baseline, and sites send sums over the rows at risk at each
    time of an event: these tell single rows apart unless times are in bins.

    Args:
        sites: tables, as for `fedsolve.stats.glm`.
        time: column of the time from a row's start to its event, or to the end of observation, >= 0.
        event: column with 1 (or True) for rows with an event, and 0 for the others.
        terms: as of a formula, `"age + C(stage)"`, or a list of them.
        ties: rule for events at equal times, "efron" or "breslow".
        strata: "site", or None for one baseline hazard.
        interval: with strata=None the width of bins, in the unit of `time`, at whose ends rows leave; None for the
            times as they are, which takes sites with min_rows=1.
        weights: column of the rows' weights, > 0; None for 1.
        compare_exact: whether a note says how far hazard ratios are from those of exact times, which takes a second
            fit; for tables in this process alone.
        min_rows, min_clients: as of `fedsolve.stats.glm`. A bin in which fewer rows have their event joins the next.

    Returns:
        The estimates, log hazard ratios; `summary(ratios=True)` shows hazard ratios.

    Raises:
        InvalidInput: a word that is not known, times below 0, events other than 0 and 1 or none, a column that does not
            vary among the rows at risk or is a combination of others, or a coefficient without end.

    Reference: D. R. Cox, "Regression models and life-tables", 1972.
    """
    check_flag("compare_exact", compare_exact)
    request = CoxRequest(time, event, terms, ties, strata, interval, weights)
    found = request.fit(local_sites(sites, min_rows, min_clients))
    if not compare_exact or interval is None:
        return found
    exact = replace(request, interval=None).fit(local_sites(sites, 1, min_clients))
    if exact.names != found.names or exact.rows != found.rows:
        note = "hazard ratios are not compared: other rows or categories count with min_rows=1"
    else:
        most = np.abs(found.hazard_ratios / exact.hazard_ratios - 1).max()
        note = f"hazard ratios are within {100 * most:.2g} % of those of exact times"
    return replace(found, notes=(*found.notes, note))
