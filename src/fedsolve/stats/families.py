"""Families and links of generalised linear models (McCullagh and Nelder 1989)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import digamma, expit, gammaln, logit, ndtr, ndtri, polygamma, xlogy

from fedsolve.core.errors import InvalidInput, unknown

Array = np.ndarray


@dataclass(frozen=True)
class Link:
    """A link eta = g(mu): `of` is g, `mean` its inverse, and `slope` d mu / d eta as a function of eta and mu."""

    of: Callable[[Array], Array]
    mean: Callable[[Array], Array]
    slope: Callable[[Array, Array], Array]


LINKS = {
    "identity": Link(lambda m: m, lambda e: e, lambda e, _: np.ones_like(e)),
    "log": Link(np.log, np.exp, lambda _, m: m),
    "logit": Link(logit, expit, lambda _, m: m * (1 - m)),
    "probit": Link(ndtri, ndtr, lambda e, _: np.exp(-(e**2) / 2) / np.sqrt(2 * np.pi)),
    "cloglog": Link(
        lambda m: np.log(-np.log1p(-m)), lambda e: -np.expm1(-np.exp(e)), lambda e, _: np.exp(e - np.exp(e))
    ),
    "inverse": Link(lambda m: 1 / m, lambda e: 1 / e, lambda _, m: -(m**2)),
    "sqrt": Link(np.sqrt, np.square, lambda e, _: 2 * e),
}


@dataclass(frozen=True)
class Family:
    """How outcomes are distributed around their mean; functions of alpha take that of the negative binomial."""

    links: tuple[str, ...]  # that it may have; the first is the default
    variance: Callable[[Array, float], Array]  # V(mu), of mu and alpha
    deviance: Callable[[Array, Array, float], Array]  # of each row, of y, mu and alpha, without weight
    # log-likelihood of each row with mu = y, of y, alpha, dispersion and weight; the deviance divided by twice the
    # dispersion is what it is above that of another mu
    saturated: Callable[[Array, float, float, Array], Array]
    has_dispersion: bool  # whether one is estimated
    allowed: tuple[Callable[[Array], Array], str]  # which outcomes there are, and in words
    is_inside: Callable[[Array], Array]  # which means there are
    ends: tuple[float, ...] = ()  # means of all rows at which nothing can be explained

    def start(self, y: Array) -> Array:
        """Means of rows to begin with: their outcomes, moved inside where they are at an end."""
        if self.is_inside is _is_share:
            return (y + 0.5) / 2
        return np.where(y > 0, y, 1 / 6) if self.is_inside is _is_positive else y


def _binomial_deviance(y: Array, mu: Array, _: float) -> Array:
    if ((y == 0) | (y == 1)).all():
        return -2 * np.log(np.where(y == 1, mu, 1 - mu))
    return 2 * (xlogy(y, y / mu) + xlogy(1 - y, (1 - y) / (1 - mu)))


def _binomial(y: Array, _: float, __: float, weights: Array) -> Array:
    yes, no = weights * y, weights * (1 - y)
    choices = gammaln(weights + 1) - gammaln(yes + 1) - gammaln(no + 1)
    return choices + xlogy(yes, y) + xlogy(no, 1 - y)


def _negative_binomial_deviance(y: Array, mu: Array, alpha: float) -> Array:
    return 2 * (xlogy(y, y / mu) - (y + 1 / alpha) * np.log((1 + alpha * y) / (1 + alpha * mu)))


def _negative_binomial(y: Array, alpha: float, _: float, weights: Array) -> Array:
    theta = 1 / alpha
    choices = gammaln(y + theta) - gammaln(theta) - gammaln(y + 1)
    return weights * (choices + xlogy(y, alpha * y) - (y + theta) * np.log1p(alpha * y))


def _gamma(y: Array, _: float, dispersion: float, weights: Array) -> Array:
    shape = weights / dispersion
    return shape * np.log(shape) - shape - np.log(y) - gammaln(shape)


def _is_positive(m: Array) -> Array:
    return m > 0


def _is_share(m: Array) -> Array:
    return (m > 0) & (m < 1)


_POSITIVE = (lambda y: y > 0), "greater than 0"
_COUNTS = (lambda y: (y >= 0) & (y == np.floor(y))), "a whole number from 0"
_SHARE = (lambda y: (y >= 0) & (y <= 1)), "0 or 1, or a share of trials, whose number is its weight"

FAMILIES = {
    "gaussian": Family(
        ("identity", "log", "inverse"),
        lambda m, _: np.ones_like(m),
        lambda y, m, _: (y - m) ** 2,
        lambda y, _, dispersion, w: -0.5 * np.log(2 * np.pi * dispersion / w),
        True,
        (np.isfinite, "finite"),
        np.isfinite,
    ),
    "binomial": Family(
        ("logit", "probit", "cloglog", "log", "identity"),
        lambda m, _: m * (1 - m),
        _binomial_deviance,
        _binomial,
        False,
        _SHARE,
        _is_share,
        (0.0, 1.0),
    ),
    "poisson": Family(
        ("log", "identity", "sqrt"),
        lambda m, _: m,
        lambda y, m, _: 2 * (xlogy(y, y / m) - (y - m)),
        lambda y, _, __, w: w * (xlogy(y, y) - y - gammaln(y + 1)),
        False,
        _COUNTS,
        _is_positive,
        (0.0,),
    ),
    "gamma": Family(
        ("inverse", "log", "identity"),
        lambda m, _: m**2,
        lambda y, m, _: 2 * ((y - m) / m - np.log(y / m)),
        _gamma,
        True,
        _POSITIVE,
        _is_positive,
    ),
    "negative binomial": Family(
        ("log", "identity", "sqrt"),
        lambda m, alpha: m + alpha * m**2,
        _negative_binomial_deviance,
        _negative_binomial,
        False,
        _COUNTS,
        _is_positive,
        (0.0,),
    ),
}


def alpha_slopes(y: Array, mu: Array, alpha: float, weights: Array) -> tuple[float, float]:
    """First and second derivative in log(alpha) of the negative binomial's log-likelihood at fixed means."""
    theta = 1 / alpha
    first = digamma(y + theta) - digamma(theta) + np.log(theta / (theta + mu)) + (mu - y) / (theta + mu)
    second = polygamma(1, y + theta) - polygamma(1, theta) + 1 / theta - 2 / (theta + mu)
    second = second + (y + theta) / (theta + mu) ** 2
    of_theta, twice = float(weights @ first), float(weights @ second)
    return -theta * of_theta, theta**2 * twice + theta * of_theta


def family_and_link(family: str, link: str | None) -> tuple[str, str]:
    """A family's name as it is known, and its link: the default one for None."""
    name = family.strip().lower().replace("_", " ").replace("-", " ") if isinstance(family, str) else family
    others = {"normal": "gaussian", "logistic": "binomial", "negativebinomial": "negative binomial"}
    name = others.get(name, name)
    if name not in FAMILIES:
        raise unknown("family", family, FAMILIES)
    known = FAMILIES[name].links
    if link is not None and link not in known:
        if link in LINKS:
            raise InvalidInput(f"link = {link!r} is none of the family {name}: {', '.join(known)}")
        raise unknown("link", link, LINKS)
    return name, link or known[0]
