"""The Skellam mechanism (Agarwal, Kairouz and Liu 2021): whole noise that clients add in shares, and what it costs.

A Skellam number is the difference of two Poisson numbers with the same mean. Sums of Skellam numbers are Skellam
numbers, with variances added: n shares of variance v/n are the noise of variance v.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from scipy.special import gammaln, logsumexp

from fedsolve.core.types import Scalar
from fedsolve.methods.privacy.conditional_rounding import most_entries
from fedsolve.methods.privacy.renyi import ORDERS, Sampling

STEPS = 2**15
"""Whole numbers in a clip norm C."""
NORM = 1.01 * STEPS
"""Largest norm of what a client sends, after rounding."""
ENTRIES = most_entries(STEPS, NORM / 1.0001)  # less what the norm of float32 numbers may be wrong by
"""Largest number of entries of a model."""


def skellam_divergence(order: int, l1: float, l2: float, variance: float) -> float:
    """Renyi divergence between Skellam noise around two points of whole numbers (Corollary 4.1 there).

        alpha l2^2 / (2 v) + min(((2 alpha - 1) l2^2 + 6 l1) / (4 v^2), 3 l1 / (2 v))

    Args:
        order: alpha, a whole number of at least 2.
        l1, l2: distances of the points, at most.
        variance: v > 0.
    """
    second = min(((2 * order - 1) * l2**2 + 6 * l1) / (4 * variance**2), 3 * l1 / (2 * variance))
    return order * l2**2 / (2 * variance) + second


@lru_cache(maxsize=256)
def skellam_renyi(z: float, population: int, cohort: float, sampling: Sampling) -> tuple[float, ...]:
    """Renyi divergence of a round at each of `renyi.ORDERS`, where one client's data are replaced.

    The noise has the standard deviation z C. At orders between whole numbers it is that of the next one.

    Args:
        z: noise multiplier, at least 0.
        population, cohort: clients N, and of a round m.
        sampling: `fixed` (Wang, Balle and Kasiviswanathan 2019, Theorem 9), or `none`: no amplification.
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
    """A simulation's share of the noise, of the shape and type of `like`: normal numbers, rounded.

    From a variance of 2^13 on, that is z > 0.003 sqrt(n), they differ from Skellam numbers by less than 1e-5 in total
    variation; `jax.random.poisson` differs by more, as its logarithms of factorials have 32 bits. A deployment draws
    Skellam numbers themselves (`fedsolve.deploy.secure.noise`).
    """
    deviation = jnp.sqrt(jnp.asarray(variance, like.dtype))
    return jnp.round(deviation * jax.random.normal(key, like.shape, like.dtype))
