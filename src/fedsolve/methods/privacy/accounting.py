"""Privacy accounting of the Gaussian mechanism over several rounds, by `dp-accounting`.

z is the noise multiplier: the standard deviation of the noise on a cohort's sum, in units of the clip norm C. What
one client can change decides what z is worth, and each sampling has its own neighbouring relation:

    sampling    cohorts                              neighbours          a client changes the sum by    multiplier
    poisson     each client with probability q,      one client more     C (its whole message)          z
                on its own                           or less
    fixed       a uniform subset of m clients        one client's data   2C (C against -C)              z / 2
                                                     replaced
    none        any rule that looks at no data       one client's data   2C                             z / 2
                                                     replaced

Neither relation implies the other at the same epsilon: do not compare figures of different samplings as if they
promised the same. The accountants of `dp-accounting` differ in what they call a noise multiplier under
replacement (measured; a test holds them to the closed form): Renyi's takes it relative to the sensitivity, 2C here,
that of privacy loss distributions relative to C and doubles the sensitivity itself.
"""

from __future__ import annotations

import math
import sys
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from fedsolve.core.checks import check_integer, check_range
from fedsolve.core.errors import InvalidInput, check_known

Sampling = Literal["fixed", "poisson", "none"]
Accountant = Literal["rdp", "pld"]


_LEAST, _MOST = 1e-100, 1e6  # noise multipliers beyond which the accountant leaves the range of floats
ORDERS: tuple[float, ...] = (*(1 + x / 10 for x in range(1, 100)), *range(11, 64), 128, 256, 512, 1024)
"""Renyi orders alpha at which rounds are added up, those that `dp-accounting` takes by itself."""


def epsilon(
    noise_multiplier: float,
    rounds: int,
    *,
    population: int,
    cohort: float,
    delta: float,
    sampling: Sampling = "fixed",
    accountant: Accountant = "rdp",
) -> float:
    """The epsilon of a number of rounds at delta, against an adversary who sees the model of every round.

    Args:
        noise_multiplier: z, at least 0; no noise is epsilon = infinity.
        rounds: rounds in which cohorts were drawn, those that came out empty included; at least 0.
        population: clients N, at least 1.
        cohort: clients m of a round, under `poisson` on average (q = m/N); in (0, N].
        delta: in (0, 1), well below 1/N.
        sampling: how cohorts are drawn; `none` counts on no amplification by sampling.
        accountant: `rdp` (Renyi, an upper bound in closed form), or `pld` (privacy loss distributions, tighter,
            seconds a call), which knows no sampling without replacement.

    Returns:
        epsilon of (epsilon, delta) differential privacy of one client, at least 0; 0 for no rounds, infinity without
        noise.

    Raises:
        InvalidInput: a number out of its range, an unknown sampling or accountant, `pld` with `fixed`, or
            `dp-accounting` is missing.

    >>> round(epsilon(1.0, 10, population=100, cohort=10, delta=1e-5, sampling="poisson"), 2)
    3.44
    """
    check_setting(noise_multiplier, population, cohort, delta, sampling, accountant)
    if check_integer("rounds", rounds) == 0:
        return 0.0
    if accountant == "pld":
        return _pld(float(noise_multiplier), int(rounds), cohort / population, delta, sampling)
    rdp = renyi(noise_multiplier, population=population, cohort=cohort, sampling=sampling)
    return float(_library().rdp.compute_epsilon(ORDERS, int(rounds) * rdp, delta)[0])


def noise_multiplier_for(
    epsilon: float,
    rounds: int,
    *,
    population: int,
    cohort: float,
    delta: float,
    sampling: Sampling = "fixed",
    accountant: Accountant = "rdp",
) -> float:
    """The smallest noise multiplier, to 0.1 % and rounded up, with which a number of rounds stays within epsilon.

    Arguments and errors are those of `epsilon`; what it returns is at least 0.01.

    Args:
        epsilon: the budget, above 0.
        rounds: rounds in which cohorts are drawn.
        population: clients N, at least 1.
        cohort: clients m of a round, under `poisson` on average; in (0, N].
        delta: in (0, 1), well below 1/N.
        sampling: how cohorts are drawn; `none` counts on no amplification.
        accountant: `rdp` or `pld`, as `epsilon` has them.

    Returns:
        z, the standard deviation of the sum's noise over the clipping norm, at least 0.01.

    Raises:
        InvalidInput: as `epsilon`; or no noise up to 1e6 keeps so many rounds within it.

    >>> round(noise_multiplier_for(4.0, 10, population=100, cohort=10, delta=1e-5, sampling="poisson"), 2)
    0.93
    """
    from scipy.optimize import brentq

    check_range("epsilon", epsilon, above=0)
    ask = _epsilon_of(rounds, population, cohort, delta, sampling, accountant)
    high = 1.0
    while ask(high) > epsilon:
        high *= 2
        if high > 1e6:
            raise InvalidInput(f"no noise up to 1e6 keeps {rounds} rounds at epsilon = {epsilon}")
    low = high / 2
    while ask(low) <= epsilon:
        low, high = low / 2, low
        if low < 0.01:
            return 0.01
    # nearly a straight line between logarithms, on which a root is found in a few steps
    excess = lambda x: math.log(max(ask(math.exp(x)), sys.float_info.min) / epsilon)  # noqa: E731
    root: Any = brentq(excess, math.log(low), math.log(high), xtol=2e-4)
    found = math.exp(root)
    while ask(found) > epsilon:
        found *= 1.0005
    return found


def _epsilon_of(rounds: int, *setting: Any) -> Any:
    population, cohort, delta, sampling, accountant = setting
    return lambda z: epsilon(
        z, rounds, population=population, cohort=cohort, delta=delta, sampling=sampling, accountant=accountant
    )


def renyi(noise_multiplier: float, *, population: int, cohort: float, sampling: Sampling) -> np.ndarray:
    """Renyi divergence of one round at each of `ORDERS`, shape (orders,); infinite where it has no bound.

    Rounds add up. Poisson: Mironov, Talwar and Zhang 2019; fixed: Wang, Balle and Kasiviswanathan 2019, Theorem 27.
    """
    return np.array(_renyi(float(noise_multiplier), population, float(cohort), sampling))


@lru_cache(maxsize=1024)
def _renyi(z: float, population: int, cohort: float, sampling: Sampling) -> tuple[float, ...]:
    library = _library()
    if z < _LEAST:
        return (math.inf,) * len(ORDERS)
    z = min(z, _MOST)  # an upper bound of the divergence
    event, relation = _event(library, z, population, cohort, sampling)
    accountant = library.rdp.RdpAccountant(ORDERS, relation)
    with _quiet():
        accountant.compose(event)
    return tuple(accountant.rdp.tolist())


def _event(library: Any, z: float, population: int, cohort: float, sampling: Sampling) -> tuple[Any, Any]:
    """One round as the Renyi accountant takes it: multipliers relative to the sensitivity of the relation."""
    relations = library.NeighboringRelation
    if sampling == "poisson":
        event = library.PoissonSampledDpEvent(cohort / population, library.GaussianDpEvent(z))
        return event, relations.ADD_OR_REMOVE_ONE
    event = library.GaussianDpEvent(z / 2)  # sensitivity 2C
    if sampling == "fixed":
        event = library.SampledWithoutReplacementDpEvent(population, int(cohort), event)
    return event, relations.REPLACE_ONE


@lru_cache(maxsize=256)
def _pld(z: float, rounds: int, q: float, delta: float, sampling: Sampling) -> float:
    library = _library()
    if z == 0:
        return math.inf
    from dp_accounting.pld import PLDAccountant

    gaussian = library.GaussianDpEvent(z)  # relative to C: this accountant doubles it for replacement itself
    relations = library.NeighboringRelation
    poisson = sampling == "poisson"
    accountant = PLDAccountant(relations.ADD_OR_REMOVE_ONE if poisson else relations.REPLACE_ONE)
    accountant.compose(library.PoissonSampledDpEvent(q, gaussian) if poisson else gaussian, rounds)
    return float(accountant.get_epsilon(delta))


def check_setting(
    noise_multiplier: Any, population: Any, cohort: Any, delta: Any, sampling: str, accountant: str = "rdp"
) -> None:
    """Raise `InvalidInput` unless these are a mechanism that can be accounted for."""
    check_known("sampling", sampling, ("fixed", "poisson", "none"))
    check_known("accountant", accountant, ("rdp", "pld"))
    if accountant == "pld" and sampling == "fixed":
        raise InvalidInput(
            "accountant = 'pld' does not support sampling without replacement: take 'rdp', or sampling='none', which "
            "assumes no amplification, or draw cohorts by Bernoulli (sampling='poisson')"
        )
    check_range("noise_multiplier", noise_multiplier, at_least=0)
    check_range("delta", delta, above=0, below=1)
    check_integer("population", population, 1)
    check_range("cohort", cohort, above=0, at_most=float(population))
    if sampling == "fixed" and cohort != int(cohort):
        raise InvalidInput(f"cohort = {cohort} must be an integer where sampling = 'fixed'")


def _library() -> Any:
    """`dp_accounting`, which only privacy needs."""
    try:
        import dp_accounting
        import dp_accounting.rdp
    except ImportError:
        raise InvalidInput(
            'privacy accounting needs dp-accounting: pip install "fedsolve[privacy]"'
        ) from None
    return dp_accounting


@contextmanager
def _quiet() -> Any:
    """Without the library's warning for each order that has no bound: such an order is infinite, and left out."""
    from absl import logging

    before = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)
    try:
        yield
    finally:
        logging.set_verbosity(before)
