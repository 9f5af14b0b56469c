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
promised the same.

Epsilon comes from privacy loss distributions (`pld`), which are exact up to their grid: usually 7 to 23 % less than
Renyi's bound (`rdp`) for the same noise. `dp-accounting` has none for a subset without replacement: there it is
Renyi's.
"""

from __future__ import annotations

import math
import sys
from functools import partial
from typing import Any, Literal

import numpy as np

from fedsolve.core.errors import InvalidInput, check_integer, check_known, check_range
from fedsolve.methods.privacy.gaussian import epsilon_of
from fedsolve.methods.privacy.loss_distributions import constant_table, sampled_epsilon, sampled_table
from fedsolve.methods.privacy.renyi import LEAST, Sampling, dp_accounting, renyi, renyi_bound
from fedsolve.methods.privacy.skellam import skellam_renyi

Accountant = Literal["rdp", "pld"]
Noise = Literal["gaussian", "skellam"]


def epsilon(
    noise_multiplier: float,
    rounds: int,
    *,
    population: int,
    cohort: float,
    delta: float,
    sampling: Sampling = "fixed",
    accountant: Accountant | None = None,
    noise: Noise = "gaussian",
) -> float:
    """The epsilon of a number of rounds at delta, against an adversary who sees the model of every round.

    Args:
        noise_multiplier: z, at least 0; no noise is epsilon = infinity.
        rounds: rounds in which cohorts were drawn, those that came out empty included; at least 0.
        population: clients N, at least 1.
        cohort: clients m of a round, under `poisson` on average (q = m/N); in (0, N].
        delta: in (0, 1), well below 1/N.
        sampling: how cohorts are drawn; `none` counts on no amplification by sampling.
        accountant: `pld` (privacy loss distributions), which knows no sampling without replacement, or `rdp` (Renyi, a
            looser bound); by default `pld` where it is known.
        noise: `gaussian`, or `skellam`, that of `DP(at="distributed")`, which `rdp` alone knows.

    Returns:
        epsilon of (epsilon, delta) differential privacy of one client, at least 0; 0 for no rounds, infinity without
        noise.

    Raises:
        InvalidInput: a number out of its range, an unknown sampling or accountant, `pld` with `fixed`, or
            `dp-accounting` is missing.

    >>> round(epsilon(1.0, 10, population=100, cohort=10, delta=1e-5, sampling="poisson"), 2)
    2.85
    """
    check_setting(noise_multiplier, population, cohort, delta, sampling, accountant)
    check_known("noise", noise, ("gaussian", "skellam"))
    if check_integer("rounds", rounds) == 0:
        return 0.0
    if noise == "skellam":
        if accountant == "pld" or sampling == "poisson":
            raise InvalidInput("noise = 'skellam' is accounted for by 'rdp', with sampling='fixed' or 'none'")
        found = skellam_renyi(float(noise_multiplier), population, float(cohort), sampling)
        return renyi_bound(int(rounds) * np.array(found), delta)
    if (accountant or best_accountant(population, cohort, sampling)) == "pld":
        return _pld(float(noise_multiplier), int(rounds), population, cohort, delta, sampling)
    rdp = renyi(noise_multiplier, population=population, cohort=cohort, sampling=sampling)
    return renyi_bound(int(rounds) * rdp, delta)


def noise_multiplier_for(
    epsilon: float,
    rounds: int,
    *,
    population: int,
    cohort: float,
    delta: float,
    sampling: Sampling = "fixed",
    accountant: Accountant | None = None,
    noise: Noise = "gaussian",
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
        accountant: `pld` or `rdp`, as `epsilon` has them.
        noise: `gaussian` or `skellam`.

    Returns:
        z, the standard deviation of the sum's noise over the clipping norm, at least 0.01.

    Raises:
        InvalidInput: as `epsilon`; or no noise up to 1e6 keeps so many rounds within it.

    >>> round(noise_multiplier_for(4.0, 10, population=100, cohort=10, delta=1e-5, sampling="poisson"), 2)
    0.85
    """
    from scipy.optimize import brentq

    check_range("epsilon", epsilon, above=0)
    setting: Any = {"population": population, "cohort": cohort, "delta": delta, "sampling": sampling}
    ask = partial(_epsilon_of, rounds=rounds, accountant=accountant, noise=noise, **setting)
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


def _epsilon_of(noise_multiplier: float, **setting: Any) -> float:
    return epsilon(noise_multiplier, **setting)


def gaussian_table(
    noise_multiplier: float, *, population: int, cohort: float, delta: float, sampling: Sampling
) -> np.ndarray:
    """What a program needs for epsilon of any number of rounds (`loss_distributions.tabled_epsilon`).

    Infinite where no privacy loss distribution is known.
    """
    z = float(noise_multiplier)
    if best_accountant(population, cohort, sampling) == "rdp" or z < LEAST:
        return constant_table(math.inf)
    if not _is_sampled(population, cohort, sampling):
        return constant_table(_sensitivity(sampling) / z)
    return np.array(sampled_table(z, cohort / population, float(delta), _first(z, population, cohort, delta)))


def best_accountant(population: int, cohort: float, sampling: Sampling) -> Accountant:
    """`pld`, or `rdp` where no privacy loss distribution is known."""
    return "rdp" if sampling == "fixed" and cohort < population else "pld"


def _pld(z: float, rounds: int, population: int, cohort: float, delta: float, sampling: Sampling) -> float:
    if z < LEAST:
        return math.inf
    if not _is_sampled(population, cohort, sampling):
        return epsilon_of(_sensitivity(sampling) * math.sqrt(rounds) / z, delta)
    dp_accounting()
    first = _first(z, population, cohort, delta)
    return sampled_epsilon(z, cohort / population, rounds, delta, first)[0]


def _is_sampled(population: int, cohort: float, sampling: Sampling) -> bool:
    return sampling != "none" and cohort < population


def _sensitivity(sampling: Sampling) -> int:
    """How much one client can change the sum by, in units of C."""
    return 1 if sampling == "poisson" else 2


def _first(z: float, population: int, cohort: float, delta: float) -> float:
    """Renyi's bound of epsilon of one round of Poisson sampling."""
    rdp = renyi(z, population=population, cohort=cohort, sampling="poisson")
    return renyi_bound(rdp, delta)


def check_setting(
    noise_multiplier: Any,
    population: Any,
    cohort: Any,
    delta: Any,
    sampling: str,
    accountant: str | None = None,
) -> None:
    """Raise `InvalidInput` unless these are a mechanism that can be accounted for."""
    check_known("sampling", sampling, ("fixed", "poisson", "none"))
    if accountant is not None:
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
