"""Generalised linear models over sites by Fisher scoring: estimates and errors of the tables put together.

In each round a site sends its score X' W (y - mu) / mu' and information X' W X at the coefficients that it was sent,
and the deviance; their sums over sites are those of one table (McCullagh and Nelder 1989, section 2.5).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from fedsolve.core.errors import InvalidInput, check_known, check_range
from fedsolve.stats.design import (
    Design,
    Factor,
    check_effective_rows,
    check_leverage,
    title,
    weighted_squares,
)
from fedsolve.stats.estimates import Estimates, check_not_collinear, number_text
from fedsolve.stats.families import FAMILIES, LINKS, alpha_slopes, family_and_link
from fedsolve.stats.formula import design_of, read_formula
from fedsolve.stats.local_sites import local_sites
from fedsolve.stats.questions import Question, Request, Sites, SiteTable, Sums

ERRORS = ("model", "robust", "sites")
_ROUNDS = 40
_HALVINGS = 20
_LEAST_LOG_ALPHA = -18.0


@dataclass(frozen=True)
class GlmSums(Question):
    ANALYSIS: ClassVar[str] = "glm"
    design: Design
    outcome: Factor
    weights: str  # weights, offset: columns, or ''
    offset: str
    family: str
    link: str
    alpha: float = 1.0  # of the negative binomial, variance = mean + alpha mean^2
    dispersion: float = 1.0  # at which the log-likelihood is
    coefficients: tuple[float, ...] = ()  # () for the first round, of means that begin at the outcomes
    scores: str = ""  # whose products are wanted: "robust" rows', "sites" whole sites', '' none

    def sums(self, table: SiteTable) -> Sums:
        # zeros where the mean of a row cannot be, and how many those rows are
        matrix = self.design.matrix(table)
        key = ("glm", self.design.columns, self.design.categories, self.outcome, self.weights, self.offset)
        y, weights, offset = table.cached((*key, self.family), lambda: self._rows(table))
        family, link = FAMILIES[self.family], LINKS[self.link]
        with np.errstate(all="ignore"):  # rows whose mean cannot be are counted
            if self.coefficients:
                eta = matrix @ np.array(self.coefficients) + offset
                mu = link.mean(eta)
            else:
                mu = family.start(y)
                eta = link.of(mu)
            slope = link.slope(eta, mu)
            residual = (y - mu) / slope if self.coefficients else eta - offset
            inside = family.is_inside(mu) & np.isfinite(eta) & (slope != 0) & np.isfinite(slope)
        sums = {"rows": len(y), "weight": weights.sum(), "outcome": weights @ y, "outside": (~inside).sum()}
        rows = y, mu, slope, weights, residual
        if not inside.all():
            matrix, rows = matrix[:0], tuple(values[:0] for values in rows)
        sums |= self._sums(table, matrix, rows)
        return {name: np.asarray(value, np.float64) for name, value in sums.items()}

    def _sums(self, table: SiteTable, matrix: np.ndarray, rows: tuple[np.ndarray, ...]) -> dict[str, Any]:
        y, mu, slope, weights, residual = rows
        family = FAMILIES[self.family]
        variance = family.variance(mu, self.alpha)
        working = weights * slope**2 / variance
        information = weighted_squares(matrix, working)
        check_leverage(table, matrix, working, information)
        found: dict[str, Any] = {"score": (working * residual) @ matrix, "information": information}
        if self.scores == "robust":
            found["products"] = weighted_squares(matrix, (working * residual) ** 2)
        elif self.scores == "sites":
            found["products"] = np.outer(found["score"], found["score"])
        found["alpha"] = [0.0, 0.0]
        if self.family == "negative binomial":
            found["alpha"] = alpha_slopes(y, mu, self.alpha, weights)
        found["extreme"] = ((mu < 1e-8) | (mu > 1 - 1e-8)).sum() if self.family == "binomial" else 0
        found["deviance"] = weights @ family.deviance(y, mu, self.alpha)
        found["pearson"] = weights @ ((y - mu) ** 2 / variance) if family.has_dispersion else 0.0
        at = ("saturated", len(y), self.family, self.alpha, self.dispersion)
        saturated = table.last("saturated", at, lambda: family.saturated(y, *at[3:], weights).sum())
        found["loglik"] = saturated - found["deviance"] / (2 * self.dispersion)
        return found

    def _rows(self, table: SiteTable) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        # outcome, weights and offset of the rows that count
        design, family = self.design, FAMILIES[self.family]
        y, rows = design.values(table, self.outcome), design.rows(table)[0]
        weights = table.numbers(self.weights)[rows] if self.weights else np.ones(len(y))
        offset = design.values(table, _factor(self.offset)) if self.offset else np.zeros(len(y))
        is_allowed, words = family.allowed
        if not is_allowed(y).all():
            raise InvalidInput(f"outcome {title(self.outcome)} of the family {self.family} must be {words}")
        if not ((weights > 0) & np.isfinite(weights)).all():
            raise InvalidInput(f"weights {self.weights} must be greater than 0 and finite")
        for what, values in {"the outcome": y, f"column {self.weights}": weights}.items():
            check_effective_rows(table, what, values)
        return y, weights, offset


def _factor(offset: str) -> Factor:
    # a column, or "log(column)"
    if offset.startswith("log("):
        return "log(x0)", (offset[4:-1],), ""
    return "x0", (offset,), ""


@dataclass(frozen=True, kw_only=True, repr=False)
class GlmResult(Estimates):
    """A generalised linear model over all sites.

    Attributes:
        model, names, coefficients, covariance, degrees, rows, left_out, sites, notes: as of `fedsolve.stats.Estimates`.
        family, link: of the outcome.
        deviance, null_deviance: of the model, and of that with an intercept (and the offset) alone.
        dispersion: Pearson's; 1 for binomial, Poisson and negative binomial outcomes.
        alpha: of the negative binomial, variance = mean + alpha mean^2; NaN for others.
        log_likelihood: at the estimate, with the dispersion deviance / rows where one is estimated, as R has it.
        aic: -2 log-likelihood + 2 (number of estimated coefficients, dispersion and alpha).
        rounds: in which sums of scores were asked for.
        design: of the columns.
        offset: its column, or ''.
    """

    family: str
    link: str
    deviance: float
    null_deviance: float
    dispersion: float
    alpha: float
    log_likelihood: float
    aic: float
    rounds: int
    design: Design
    offset: str

    def predict(self, table: Any, kind: str = "mean") -> np.ndarray:
        """The mean of the outcome for rows of a table, NaN for one without a value in some column.

        Args:
            table: with the columns of the terms (and of the offset).
            kind: "mean", or "link" for the linear predictor.

        Returns:
            float64, shape (rows,).

        Raises:
            InvalidInput: a column is missing, or `kind` is another word.
        """
        check_known("kind", kind, ("mean", "link"))
        [site] = local_sites([table], 1, 1).tables
        offset = _factor(self.offset) if self.offset else ("", (), "")
        design = replace(self.design, needed=offset[1])
        rows, _ = design.rows(site)
        eta = design.matrix(site) @ self.coefficients
        if self.offset:
            eta = eta + design.values(site, offset)
        predicted = np.full(len(next(iter(site.values()))), np.nan)
        predicted[rows] = eta if kind == "link" else LINKS[self.link].mean(eta)
        return predicted

    def _facts(self) -> list[str]:
        deviance, null = number_text(self.deviance), number_text(self.null_deviance)
        lines = [f"deviance {deviance} (null model {null}), AIC {self.aic:.2f}, {self.rounds} rounds"]
        if FAMILIES[self.family].has_dispersion:
            lines.append(f"dispersion {number_text(self.dispersion)} (Pearson)")
        if self.family == "negative binomial":
            lines.append(f"alpha {number_text(self.alpha)}: variance = mean + alpha mean^2")
        return lines


@dataclass(frozen=True)
class GlmRequest(Request):
    ANALYSIS: ClassVar[str] = "glm"
    outcome: str
    terms: Any = None
    family: str = "gaussian"
    link: str | None = None
    weights: str | None = None
    offset: str | None = None
    errors: str = "model"
    alpha: float | None = None

    def __post_init__(self) -> None:
        family, link = family_and_link(self.family, self.link)
        object.__setattr__(self, "family", family)
        object.__setattr__(self, "link", link)
        check_known("errors", self.errors, ERRORS)
        read_formula(self.outcome, self.terms)
        if self.alpha is not None and family != "negative binomial":
            raise InvalidInput(f"alpha is of the negative binomial, and the family is {family}: leave it out")
        check_range("alpha", self.alpha, above=0, optional=True)

    def _fit(self, sites: Sites) -> GlmResult:
        return _Fit(self, sites).result()


class _Fit:
    # one fit: what was asked last, and how often

    def __init__(self, request: GlmRequest, sites: Sites) -> None:
        self.request, self.sites, self.rounds = request, sites, 0
        formula = read_formula(request.outcome, request.terms)
        offset = request.offset or ""
        further = [*filter(None, [request.weights]), *(_factor(offset)[1] if offset else ())]
        plain, outcome = design_of(formula, sites, further)
        assert outcome is not None
        self.plain = plain
        self.design, moments = plain.standardised(sites)
        self.rows, self.moments = int(moments["rows"]), moments
        if self.rows <= plain.size:
            raise InvalidInput(f"{self.rows} rows are too few for {plain.size} columns: leave terms out")
        alpha = 1.0 if request.alpha is None else float(request.alpha)
        own = (request.weights or "", offset, request.family, str(request.link), alpha)
        self.question = GlmSums(self.design, outcome, *own)
        self.text = f"{title(outcome)} ~ {' + '.join(':'.join(term) or '1' for term in formula.terms)}"

    def ask(self, question: GlmSums, coefficients: np.ndarray) -> Sums:
        self.rounds += 1
        return self.sites.sums(replace(question, coefficients=tuple(coefficients.tolist())))

    def solve(self, question: GlmSums) -> tuple[np.ndarray, Sums]:
        """The coefficients of standardised columns, and the sums there."""
        p = question.design.size
        first = self.ask(question, np.zeros(0))
        mean, family = first["outcome"] / first["weight"], FAMILIES[question.family]
        if mean in family.ends:
            name = f"outcome {title(question.outcome)} is {mean:g} in all rows of all sites"
            raise InvalidInput(f"{name}: nothing can be explained")
        safe = np.zeros(p)  # the mean for all rows
        if () in question.design.products:
            safe[question.design.products.index(())] = LINKS[question.link].of(mean)
        toward = np.zeros(p)
        if not first["outside"]:
            check_not_collinear(first["information"], question.design.names)
            toward = np.linalg.solve(first["information"], first["score"]) - safe
        current, sums = self._halved(question, safe, toward, math.inf)
        if first["outside"]:
            check_not_collinear(sums["information"], question.design.names)
        step = np.zeros(p)
        for _ in range(_ROUNDS):
            step = np.linalg.lstsq(sums["information"], sums["score"], rcond=1e-16)[0]
            decrement, scale = float(sums["score"] @ step), self._dispersion(sums)
            # the steps of a separated outcome stay as long as the likelihood becomes flat
            is_short = np.abs(step).max() < 1e-4 * (1 + np.abs(current).max())
            if is_short and decrement <= 1e-18 * scale + 1e-30 * float(sums["deviance"]):
                return current, sums
            if not np.isfinite(step).all() or np.abs(step).max() > 1e6:
                break
            before, last = current, sums
            # rows whose probability is 0 or 1 to rounding stop a step that a separated outcome makes ever longer
            most = 3 if sums["extreme"] > 0 else _HALVINGS
            current, sums = self._halved(question, current, step, float(sums["deviance"]), most)
            if np.array_equal(current, before):
                if is_short:  # no step makes it better: rounding is left
                    return before, last
                break
        raise InvalidInput(self._no_estimate(step))

    def _halved(
        self, question: GlmSums, start: np.ndarray, step: np.ndarray, deviance: float, most: int = _HALVINGS
    ) -> tuple[np.ndarray, Sums]:
        # a step that keeps all means possible and does not raise the deviance, halved until it does so
        for halving in range(most):
            tried = start + step * 0.5**halving
            sums = self.ask(question, tried)
            slack = 1e-10 * (abs(deviance) + 0.1) if math.isfinite(deviance) else 0.0
            if not sums["outside"] and float(sums["deviance"]) <= deviance + slack:
                return tried, sums
        if math.isinf(deviance):
            of = f"{question.link} link some means are impossible for the family {question.family}"
            raise InvalidInput(f"with the {of}: choose another link")
        return start, self.ask(question, start)

    def _dispersion(self, sums: Sums) -> float:
        if not FAMILIES[self.question.family].has_dispersion:
            return 1.0
        return float(sums["pearson"]) / (self.rows - self.design.size)

    def _no_estimate(self, step: np.ndarray) -> str:
        size = np.abs(step) * [bool(product) for product in self.design.products]
        names = ", ".join(self.design.names[i] for i in np.flatnonzero(size > 0.1 * size.max()))
        if self.question.family == "binomial":
            why = f"no finite estimate: the outcome is separated without an error by {names}"
            return f"{why}: merge categories, leave a term out, or fit a penalised model with fs.Newton"
        why = f"after {self.rounds} rounds; the coefficients of {names} still grow"
        return f"no finite estimate {why}: leave a term out, or choose another link"

    def result(self) -> GlmResult:
        request, question = self.request, self.question
        current, sums = self.solve(question)
        if request.family == "negative binomial" and request.alpha is None:
            question, current, sums = self._with_alpha(current, sums)
        p, family = self.design.size, FAMILIES[request.family]
        dispersion, rounds = self._dispersion(sums), self.rounds
        inverse, notes = np.linalg.inv(sums["information"]), tuple[str, ...]()
        covariance = inverse * dispersion
        if sums["extreme"] > 0:
            notes += (f"the fitted probability of {int(sums['extreme']):,} rows is 0 or 1 to 1e-8",)
        if request.errors != "model":
            products = self.ask(replace(question, scores=request.errors), current)["products"]
            correction, note = self._robust()
            covariance, notes = inverse @ products @ inverse * correction, (*notes, note)
        loglik, parameters = float(sums["loglik"]), p + family.has_dispersion
        if family.has_dispersion:  # as R: the deviance per unit of weight
            at = float(sums["deviance"] / sums["weight"])
            loglik = float(self.ask(replace(question, dispersion=max(at, 1e-300)), current)["loglik"])
        estimated = request.family == "negative binomial" and request.alpha is None
        coefficients, covariance = self.design.unscaled(current, covariance)
        normal = not family.has_dispersion or request.errors != "model"
        return GlmResult(
            **self.sites.about(self.plain.columns, self.moments, notes),
            model=f"{self.text}, {request.family} with {request.link} link",
            names=self.plain.names,
            coefficients=coefficients,
            covariance=covariance,
            degrees=math.inf if normal else float(self.rows - p),
            family=request.family,
            link=str(request.link),
            deviance=float(sums["deviance"]),
            null_deviance=self._null_deviance(question, sums),
            dispersion=dispersion,
            alpha=question.alpha if request.family == "negative binomial" else math.nan,
            log_likelihood=loglik,
            aic=-2 * loglik + 2 * (parameters + estimated),
            rounds=rounds,
            design=self.plain,
            offset=request.offset or "",
        )

    def _robust(self) -> tuple[float, str]:
        # the factor of a sandwich covariance, and a note on it
        if self.request.errors == "robust":
            return 1.0, "standard errors are robust (sandwich, HC0)"
        groups, rows, p = len(self.sites.names), self.rows, self.design.size
        if groups <= p:
            few = f"{groups} sites, {p} columns"
            raise InvalidInput(f'errors = "sites" needs more sites than columns: {few}; use "robust"')
        factor = groups / (groups - 1) * (rows - 1) / (rows - p)
        return factor, f"standard errors are clustered by site, of {groups} sites"

    def _with_alpha(self, current: np.ndarray, sums: Sums) -> tuple[GlmSums, np.ndarray, Sums]:
        # Newton's steps of both at once: their information is block diagonal (Lawless 1987)
        question, at, change = self.question, math.log(self.question.alpha), math.inf
        for _ in range(_ROUNDS):
            step = np.linalg.solve(sums["information"], sums["score"])
            slope, curvature = map(float, sums["alpha"])
            change = slope / -curvature if curvature < 0 else math.copysign(1.0, slope)
            change = min(max(change, -2.0), 2.0)
            if abs(change) < 1e-9 and float(sums["score"] @ step) <= 1e-18:
                return question, current, sums
            if at + change < _LEAST_LOG_ALPHA:
                raise InvalidInput(
                    "the outcome varies as a Poisson one, or less (alpha = 0): use the family poisson"
                )
            part, tried = 1.0, sums
            for halving in range(_HALVINGS):
                part = 0.5**halving
                question = replace(question, alpha=math.exp(at + part * change))
                tried = self.ask(question, current + part * step)
                if not tried["outside"] and tried["loglik"] >= sums["loglik"] - 1e-10 * abs(sums["loglik"]):
                    break
            at, current, sums = at + part * change, current + part * step, tried
        raise InvalidInput("the coefficients and alpha do not settle: leave a term out, or give alpha")

    def _null_deviance(self, question: GlmSums, sums: Sums) -> float:
        design = self.design
        if () not in design.products:
            if question.offset or question.link == "inverse":
                return math.nan
            return float(self.ask(question, np.zeros(design.size))["deviance"])
        intercept = {"names": ("Intercept",), "products": ((),), "shift": (0.0,), "scale": (1.0,)}
        question = replace(question, design=replace(design, needed=design.columns, **intercept))
        if question.offset:
            return float(self.solve(question)[1]["deviance"])
        at = LINKS[question.link].of(sums["outcome"] / sums["weight"])
        return float(self.ask(question, np.array([at]))["deviance"])


def glm(
    sites: Any,
    outcome: str,
    terms: str | Sequence[str] | None = None,
    *,
    family: str = "gaussian",
    link: str | None = None,
    weights: str | None = None,
    offset: str | None = None,
    errors: str = "model",
    alpha: float | None = None,
    min_rows: int = 10,
    min_clients: int = 3,
) -> GlmResult:
    """Fit a generalised linear model to the tables of all sites: the estimates of the tables put together.

    Sites send sums over their rows, as on a federation (`fedsolve federate glm`), by Fisher scoring.

    Args:
        sites: a table for each site (pandas, Polars, Arrow, or a mapping from names to columns), a list, or a mapping
            from the sites' names to them.
        outcome: its column; or the whole formula, such as `"ill ~ age + smoker + age:smoker"`. A column of two texts
            has the value 1 for the second in alphabetical order.
        terms: `"age + smoker"`, or a list of terms; None if `outcome` is the whole formula. Columns of texts are
            categories, the first without a column of its own; `C(x)` makes numbers categories, and
            `C(x, Treatment("no"))` names that first one. `log`, `sqrt`, `exp`, `I(x ** 2)`, `center` and `scale` (by
            the mean over all sites) are known.
        family: "gaussian", "binomial", "poisson", "gamma" or "negative binomial".
        link: "identity", "log", "logit", "probit", "cloglog", "inverse" or "sqrt"; None for the family's: identity,
            logit, log, inverse and log.
        weights: a column of prior weights > 0 (R's `weights`): the variance of a row is divided by its weight.
        offset: a column that is added to the linear predictor, or its logarithm, such as `"log(years)"`.
        errors: "model", or those of the sandwich, "robust" (HC0) or "sites" (clustered by site, with the factor
            G / (G - 1) (n - 1) / (n - p)).
        alpha: of the negative binomial, > 0; None to estimate it by maximum likelihood.
        min_rows: rows that a site must have, and that a category, a rare outcome or another column must tell from the
            others there, >= 1; 1 allows everything, and then also models of more columns than a fifth of the rows.
        min_clients: sites that must take part, >= 1.

    Returns:
        The estimates; `summary()`, `frame()` and `to_latex()` show them.

    Raises:
        InvalidInput: a word that is not known, too few sites take part, a column that is constant or a combination of
            others, or no finite estimate (separation).

    >>> rng = np.random.default_rng(0)
    >>> tables = [{"x": (x := rng.normal(size=200)), "y": 1 + 2 * x} for _ in range(3)]
    >>> glm(tables, "y ~ x").coefficients.round(6)
    array([1., 2.])
    """
    request = GlmRequest(outcome, terms, family, link, weights, offset, errors, alpha)
    return request.fit(local_sites(sites, min_rows, min_clients))
