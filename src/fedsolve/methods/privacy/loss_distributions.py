"""Epsilon from privacy loss distributions (Koskela et al. 2020), and what stands for them inside compiled programs.

`dp-accounting` composes the distribution of one round with itself (Doroshenko et al. 2022) on the host. A program
cannot: it has, for round counts t in equal steps of log t, the mu_t of the Gaussian mechanism with the same epsilon at
delta. mu_t^2 / t varies slowly with t (it is constant without sampling, where the Gaussian mechanism is the mechanism
itself, and tends to a constant otherwise): between two values of t it is interpolated.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import jax.numpy as jnp
import numpy as np

from fedsolve.core.types import Scalar
from fedsolve.methods.privacy.gaussian import gaussian_epsilon, gaussian_mu

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

    Args:
        z: noise multiplier relative to what one client adds, above 0.
        q: probability of each client.
        delta: in (0, 1).
        first: a bound of epsilon of one round.

    Returns:
        The table; infinite where epsilon of one round is more than 500.
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
