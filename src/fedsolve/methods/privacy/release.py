"""One release of a round: how noise is shared among its parts."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from fedsolve.core.types import Scalar


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
