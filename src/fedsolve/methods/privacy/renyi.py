"""Renyi divergences of the Gaussian mechanism by `dp-accounting`, and epsilon from those of several rounds."""

from __future__ import annotations

import math
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np

from fedsolve.core.errors import require
from fedsolve.core.types import Scalar

Sampling = Literal["fixed", "poisson", "none"]

LEAST, _MOST = 1e-100, 1e6  # noise multipliers beyond which the accountant leaves the range of floats
ORDERS: tuple[float, ...] = (*(1 + x / 10 for x in range(1, 100)), *range(11, 64), 128, 256, 512, 1024)
"""Renyi orders alpha at which rounds are added up, those that `dp-accounting` takes by itself."""


def renyi(noise_multiplier: float, *, population: int, cohort: float, sampling: Sampling) -> np.ndarray:
    """Renyi divergence of one round at each of `ORDERS`, shape (orders,); infinite where it has no bound.

    Rounds add up. Poisson: Mironov, Talwar and Zhang 2019; fixed: Wang, Balle and Kasiviswanathan 2019, Theorem 27.
    """
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
