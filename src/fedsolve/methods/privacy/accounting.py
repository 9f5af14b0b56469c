"""Privacy accounting of Gaussian and Skellam noise over several rounds, by `dp-accounting`.

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
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.special import log_ndtr
from jaxtyping import Array
from scipy.special import gammaln, logsumexp

from fedsolve.core.errors import InvalidInput, check_integer, check_known, check_range, require
from fedsolve.core.types import Scalar

# The Gaussian mechanism, counted exactly (Balle and Wang 2018, "Improving the Gaussian Mechanism", Theorem 8).
#
# With mu = sensitivity / standard deviation it is (epsilon, delta)-private if and only if
#
#     delta >= Phi(mu/2 - epsilon/mu) - exp(epsilon) Phi(-mu/2 - epsilon/mu),
#
# also for epsilon above 1, where the classic sqrt(2 ln(1.25/delta)) / epsilon does not hold. Mechanisms in a row are
# one: mu_1^2 + ... + mu_t^2 is the square of its mu.


def gaussian_delta(mu: Scalar, epsilon: Scalar) -> Array:
    """The least delta at epsilon; shapes broadcast."""
    above, below = log_ndtr(mu / 2 - epsilon / mu), log_ndtr(-mu / 2 - epsilon / mu)
    # Phi(a) - exp(epsilon) Phi(b) as Phi(a) (1 - exp(...)): both terms may underflow, their quotient does not
    return -jnp.exp(above) * jnp.expm1(jnp.minimum(epsilon + below - above, 0))


def gaussian_epsilon(mu: Scalar, delta: Scalar) -> Array:
    """The least epsilon at delta, by bisection to the last bits of its type; inside compiled programs too."""
    mu = jnp.asarray(mu, jnp.result_type(float))

    def halve(_: Scalar, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = ends
        middle = (low + high) / 2
        private = gaussian_delta(mu, middle) <= delta
        return jnp.where(private, low, middle), jnp.where(private, middle, high)

    # the privacy loss is N(mu^2/2, mu^2): its Chernoff bound is an epsilon that suffices
    most = mu**2 / 2 + mu * jnp.sqrt(-2 * jnp.log(delta))
    epsilon = lax.fori_loop(0, 64, halve, (jnp.zeros_like(mu), most))[1]
    return jnp.where(gaussian_delta(mu, 0.0) <= delta, 0, epsilon)


def gaussian_multiplier(epsilon: float, delta: float) -> float:
    """The least standard deviation for (epsilon, delta), in units of the sensitivity: 1/mu, by bisection.

    >>> round(gaussian_multiplier(1.0, 1e-5), 3)  # the classic bound asks for 4.845
    3.731
    """
    low, high = 0.0, 1.0
    while _delta(high, epsilon) > delta:
        low, high = high, 2 * high
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if _delta(middle, epsilon) > delta else (low, middle)
    return high


def epsilon_of(mu: float, delta: float) -> float:
    """The least epsilon at delta, of plain numbers in 64 bits whatever JAX is set to; infinite if mu is."""
    if not math.isfinite(mu):
        return math.inf
    if mu == 0:
        return 0.0
    low, high = 0.0, mu**2 / 2 + mu * math.sqrt(-2 * math.log(delta))  # as in `gaussian_epsilon`
    if _delta(1 / mu, low) <= delta:
        return 0.0
    for _ in range(64):
        middle = (low + high) / 2
        low, high = (low, middle) if _delta(1 / mu, middle) <= delta else (middle, high)
    return high


def _delta(multiplier: float, epsilon: float) -> float:
    """`gaussian_delta` in 64 bits whatever JAX is set to."""
    from scipy.special import log_ndtr as log_phi

    mu = 1 / multiplier if multiplier else math.inf
    above, below = float(log_phi(mu / 2 - epsilon / mu)), float(log_phi(-mu / 2 - epsilon / mu))
    return -math.exp(above) * math.expm1(min(epsilon + below - above, 0.0))


def gaussian_mu(epsilon: float, delta: float) -> float:
    """The mu of the Gaussian mechanism that is (epsilon, delta)-private and nothing less, by bisection."""
    low, high = -60.0, 60.0  # of log mu
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if _delta(math.exp(-middle), epsilon) <= delta else (low, middle)
    return math.exp(high)


# Renyi divergences of the Gaussian mechanism by `dp-accounting`, and epsilon from those of several rounds.

Sampling = Literal["fixed", "poisson", "none"]

LEAST, _MOST = 1e-100, 1e6  # noise multipliers beyond which the accountant leaves the range of floats
ORDERS: tuple[float, ...] = (*(1 + x / 10 for x in range(1, 100)), *range(11, 64), 128, 256, 512, 1024)
"""Renyi orders alpha at which rounds are added up, those that `dp-accounting` takes by itself."""


def renyi(noise_multiplier: float, *, population: int, cohort: float, sampling: Sampling) -> np.ndarray:
    """Renyi divergence of one round at each of `ORDERS`, shape (orders,); infinite where it has no bound."""
    # Rounds add up. Poisson: Mironov, Talwar and Zhang 2019; fixed: Wang, Balle and Kasiviswanathan 2019, Theorem 27.
    return np.array(_renyi(float(noise_multiplier), population, float(cohort), sampling))


@lru_cache(maxsize=1024)
def _renyi(z: float, population: int, cohort: float, sampling: Sampling) -> tuple[float, ...]:
    library = dp_accounting()
    if z < LEAST:
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


def renyi_bound(divergences: np.ndarray, delta: float) -> float:
    """Epsilon at delta from the summed divergences at `ORDERS`, by `dp-accounting`."""
    return float(dp_accounting().rdp.compute_epsilon(ORDERS, divergences, delta)[0])


def renyi_epsilon(renyi: Any, rounds: Scalar, delta: Scalar, xp: Any = jnp) -> Any:
    """epsilon of so many rounds at delta, from the Renyi divergences of one at each of `ORDERS`; with NumPy in 64 bits.

        min over alpha of  r + log(1 - 1/alpha) - log(delta alpha) / (alpha - 1),   r = rounds x divergence

    (Canonne, Kamath and Steinke 2020, Proposition 12); 0 where delta^2 > 1 - exp(-r), which bounds what r can tell.
    """
    alpha, r = xp.array(ORDERS), rounds * xp.asarray(renyi)
    epsilons = r + xp.log1p(-1 / alpha) - xp.log(delta * alpha) / (alpha - 1)
    return xp.maximum(xp.min(xp.where(delta**2 + xp.expm1(-r) > 0, 0, epsilons)), 0)


def dp_accounting() -> Any:
    """`dp_accounting`, which only privacy needs."""
    require("dp_accounting", "privacy accounting needs", "privacy", "dp-accounting")
    import dp_accounting.rdp

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


# Epsilon from privacy loss distributions (Koskela et al. 2020), and what stands for them inside compiled programs.
#
# `dp-accounting` composes the distribution of one round with itself (Doroshenko et al. 2022) on the host. A program
# cannot: it has, for round counts t in equal steps of log t, the mu_t of the Gaussian mechanism with the same epsilon
# at delta. mu_t^2 / t varies slowly with t (it is constant without sampling, where the Gaussian mechanism is the
# mechanism itself, and tends to a constant otherwise): between two values of t it is interpolated.

_A_DOUBLING, _DOUBLINGS = 16, 14
TABLE_ENTRIES = _A_DOUBLING * _DOUBLINGS + 1
"""Entries of a table: t = 1 to 2^14; after that mu_t^2 / t is that of 2^14, rather too large than too small."""

_LARGEST = 500.0  # epsilon above which no distribution is composed


def constant_table(mu: float) -> np.ndarray:
    """The table where every round is the Gaussian mechanism with parameter mu; infinite where nothing is known."""
    return np.full(TABLE_ENTRIES, mu**2)


@lru_cache(maxsize=256)
def sampled_table(z: float, q: float, delta: float, first: float) -> tuple[float, ...]:
    """mu_t^2 / t at delta of t rounds of Poisson sampling with probability q < 1, shape (TABLE_ENTRIES,).

    `z` is the noise multiplier relative to what one client adds, `first` a bound of epsilon of one round. Infinite
    where epsilon of one round is more than 500.
    """
    from scipy.interpolate import CubicSpline

    if not first <= _LARGEST:
        return tuple(constant_table(math.inf).tolist())
    counts, found = [], []
    for t in np.unique(np.round(2 ** np.arange(0, _DOUBLINGS + 0.1, 0.5)).astype(int)):
        epsilon, at = sampled_epsilon(z, q, int(t), delta, first)
        if not epsilon <= _LARGEST:
            break
        counts.append(math.log2(t))
        found.append(math.log(gaussian_mu(epsilon, at) ** 2 / t))
    places = np.minimum(np.arange(TABLE_ENTRIES) / _A_DOUBLING, counts[-1] if counts else 0)
    if len(counts) < 2:
        return tuple(np.full(TABLE_ENTRIES, math.exp(found[0]) if found else math.inf).tolist())
    return tuple(np.exp(CubicSpline(counts, found)(places)).tolist())


def sampled_epsilon(z: float, q: float, rounds: int, delta: float, first: float) -> tuple[float, float]:
    """Epsilon of Poisson-sampled rounds at delta, and the delta that it holds at: less than `delta` at epsilon = 0."""
    composed = _round(z, q, first).self_compose(rounds)
    epsilon = float(composed.get_epsilon_for_delta(delta))
    return epsilon, (delta if epsilon > 0 else float(composed.get_delta_for_epsilon(0.0)))


@lru_cache(maxsize=4)
def _round(z: float, q: float, first: float) -> Any:
    """The privacy loss distribution of one round, for whichever of adding and removing a client is worse.

    Its grid is 1/25 of the standard deviation that many rounds have per round, which makes epsilon 0.02 to 0.05 %
    too large; more where that would take long.
    """
    from dp_accounting.pld import privacy_loss_distribution

    deviation = q * math.sqrt(math.expm1(min(1 / z**2, 50.0)))
    return privacy_loss_distribution.from_gaussian_mechanism(
        standard_deviation=z,
        sampling_prob=q,
        value_discretization_interval=min(max(deviation / 25, first / 2000), 0.01),
    )


def tabled_epsilon(table: Any, rounds: Scalar, delta: Scalar) -> Any:
    """Epsilon of so many rounds at delta, from the table of one; infinite where that is. Inside programs too."""
    table, rounds = jnp.asarray(table), jnp.asarray(rounds)
    place = _A_DOUBLING * jnp.log2(jnp.maximum(rounds, 1))
    mu = jnp.sqrt(jnp.interp(place, jnp.arange(TABLE_ENTRIES), table) * rounds)
    epsilon = gaussian_epsilon(jnp.where(mu == 0, 1, mu), delta)  # NaN of what is infinite
    return jnp.where(mu == 0, 0, jnp.where(epsilon >= 0, epsilon, jnp.inf))


# Rounding at random to whole numbers whose norm stays within a bound (Kairouz, Liu and Steinke 2021, Section 4.2).

_BETA = 2.0**-40
_TRIES = 50


def rounded_norm(norm: float, entries: int, beta: float = _BETA) -> float:
    """The bound on the norm of a rounded vector that one rounding exceeds with probability at most beta.

        min(c + sqrt(d), sqrt(c^2 + d/4 + sqrt(2 log(1/beta)) (c + sqrt(d)/2)))

    The vector has d entries and a norm of at most c; beta lies in (0, 1).
    """
    root = math.sqrt(entries)
    squared = norm**2 + entries / 4 + math.sqrt(-2 * math.log(beta)) * (norm + root / 2)
    return min(norm + root, math.sqrt(squared))


def most_entries(norm: float, bound: float) -> int:
    """The largest number of entries, a power of two, whose `rounded_norm` is within a bound; 0 for none."""
    entries = 1
    while rounded_norm(norm, entries) <= bound:
        entries *= 2
    return entries // 2


def norm_of(rows: Array) -> Array:
    """The norm of an array of two axes: in 32 bits sums of sums are more exact than one sum."""
    return jnp.linalg.norm(jnp.linalg.norm(rows, axis=1))


def round_within(x: Array, bound: float, key: Any) -> Array:
    """The vector rounded down or up at random, each entry without bias, again until its norm is within the bound."""
    # Rounded towards 0 where 50 tries exceed it, or where it is not finite. The bound is at least `rounded_norm` of
    # the norm of x, of two axes, so that no try is expected to fail.

    def once(tries: Any) -> Array:
        below = jnp.floor(x)
        up = jax.random.uniform(jax.random.fold_in(key, tries), x.shape, x.dtype) < x - below
        return below + up.astype(x.dtype)

    def again(state: tuple[Any, Array]) -> tuple[Any, Array]:
        return state[0] + 1, once(state[0] + 1)

    def exceeds(whole: Array) -> Array:
        return jnp.logical_not(norm_of(whole) <= bound)

    _, whole = lax.while_loop(
        lambda state: (state[0] < _TRIES) & exceeds(state[1]), again, (jnp.int32(1), once(1))
    )
    return jnp.where(exceeds(whole), jnp.trunc(x), whole)


# The Skellam mechanism (Agarwal, Kairouz and Liu 2021): whole noise that clients add in shares, and what it costs.
#
# A Skellam number is the difference of two Poisson numbers with the same mean. Sums of Skellam numbers are Skellam
# numbers, with variances added: n shares of variance v/n are the noise of variance v.

STEPS = 2**15
"""Whole numbers in a clip norm C."""
NORM = 1.01 * STEPS
"""Largest norm of what a client sends, after rounding."""
ENTRIES = most_entries(STEPS, NORM / 1.0001)  # less what the norm of float32 numbers may be wrong by
"""Largest number of entries of a model."""


def skellam_divergence(order: int, l1: float, l2: float, variance: float) -> float:
    """Renyi divergence between Skellam noise around two points of whole numbers (Corollary 4.1 there).

        alpha l2^2 / (2 v) + min(((2 alpha - 1) l2^2 + 6 l1) / (4 v^2), 3 l1 / (2 v))

    The order alpha is a whole number of at least 2; the points are at most `l1` and `l2` apart; v > 0.
    """
    second = min(((2 * order - 1) * l2**2 + 6 * l1) / (4 * variance**2), 3 * l1 / (2 * variance))
    return order * l2**2 / (2 * variance) + second


@lru_cache(maxsize=256)
def skellam_renyi(z: float, population: int, cohort: float, sampling: Sampling) -> tuple[float, ...]:
    """Renyi divergence of a round at each of `renyi.ORDERS`, where one client's data are replaced.

    The noise has the standard deviation z C. At orders between whole numbers it is that of the next one. Cohorts are
    `fixed` (Wang, Balle and Kasiviswanathan 2019, Theorem 9), or `none`: no amplification.
    """
    if z * STEPS < 1:
        return (math.inf,) * len(ORDERS)
    l2 = 2 * NORM
    l1 = 2 * NORM * min(math.sqrt(ENTRIES), NORM)
    orders = [math.ceil(order) for order in ORDERS]
    plain = np.array([skellam_divergence(a, l1, l2, (z * STEPS) ** 2) for a in range(2, max(orders) + 1)])
    if sampling == "fixed" and cohort < population:
        return tuple(min(subsampled(plain, a, cohort / population), plain[a - 2]) for a in orders)
    return tuple(float(plain[a - 2]) for a in orders)


def subsampled(divergences: np.ndarray, order: int, share: float) -> float:
    """Renyi divergence of any mechanism on a uniform subset without replacement, from its own at orders 2, 3, ..."""
    j = np.arange(2, order + 1)
    binomial = gammaln(order + 1) - gammaln(j + 1) - gammaln(order - j + 1)
    terms = binomial + j * math.log(share) + (j - 1) * divergences[: order - 1] + math.log(2)
    second = divergences[0]
    least = min(math.log(4) + second + math.log(-math.expm1(-second)), math.log(2) + second)
    terms[0] = binomial[0] + 2 * math.log(share) + least
    return float(np.logaddexp(0.0, logsumexp(terms)) / (order - 1))


def simulated_noise(key: Any, like: Array, variance: Scalar) -> Array:
    """A simulation's share of the noise, of the shape and type of `like`: normal numbers, rounded."""
    # From a variance of 2^13 on, that is z > 0.003 sqrt(n), they differ from Skellam numbers by less than 1e-5 in
    # total variation; `jax.random.poisson` differs by more, as its logarithms of factorials have 32 bits. A
    # deployment draws Skellam numbers themselves (`fedsolve.deploy.secure.primitives`).
    deviation = jnp.sqrt(jnp.asarray(variance, like.dtype))
    return jnp.round(deviation * jax.random.normal(key, like.shape, like.dtype))


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
    """What a program needs for epsilon of any number of rounds (`loss_distributions.tabled_epsilon`)."""
    # Infinite where no privacy loss distribution is known.
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
