"""One release of a round and its price: how noise is shared among its parts, and epsilon while rounds go on."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from fedsolve.core.types import Scalar
from fedsolve.methods.privacy.accounting import ORDERS


def multipliers(z: Scalar, m: float, scalars: int, share: Scalar, adaptive: bool) -> tuple[Any, Any, Any]:
    """z_D of the client update, z_s of each scalar and sigma_b of the count, together worth z.

        1/z^2 = 1/z_D^2 + k/z_s^2 + 1/(2 sigma_b)^2

    Independent Gaussian releases of parts with multipliers z_j are one release with the inverse squares added up; the
    count's part is 2 sigma_b because centred bits change it by 1/2 (Andrew et al. 2021, Theorem 1).
    """
    count = jnp.where(z > 0, jnp.maximum(m / 20, z), 0)
    rest = z / jnp.sqrt(1 - (z / jnp.where(z > 0, 2 * count, 1)) ** 2) if adaptive else z
    if not scalars:
        return rest, 0.0, count
    return rest / jnp.sqrt(1 - share), rest * jnp.sqrt(scalars / share), count


def renyi_epsilon(renyi: Any, rounds: Scalar, delta: Scalar) -> Any:
    """epsilon of so many rounds at delta, from the Renyi divergences of one at each of `ORDERS`.

        min over alpha of  r + log(1 - 1/alpha) - log(delta alpha) / (alpha - 1),   r = rounds x divergence

    (Canonne, Kamath and Steinke 2020, Proposition 12); 0 where delta^2 > 1 - exp(-r), which bounds what r can tell.
    """
    alpha, r = jnp.array(ORDERS), rounds * jnp.asarray(renyi)
    epsilons = r + jnp.log1p(-1 / alpha) - jnp.log(delta * alpha) / (alpha - 1)
    return jnp.maximum(jnp.min(jnp.where(delta**2 + jnp.expm1(-r) > 0, 0, epsilons)), 0)
