"""The Gaussian mechanism, counted exactly (Balle and Wang 2018, "Improving the Gaussian Mechanism", Theorem 8).

With mu = sensitivity / standard deviation it is (epsilon, delta)-private if and only if

    delta >= Phi(mu/2 - epsilon/mu) - exp(epsilon) Phi(-mu/2 - epsilon/mu),

also for epsilon above 1, where the classic sqrt(2 ln(1.25/delta)) / epsilon does not hold. Mechanisms in a row are one:
mu_1^2 + ... + mu_t^2 is the square of its mu.
"""

from __future__ import annotations

import math

import jax.numpy as jnp
from jax import lax
from jax.scipy.special import log_ndtr
from jaxtyping import Array

from fedsolve.core.types import Scalar


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
