"""A window: which clients of a population are on the device, and for which rounds' cohorts that is enough."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from fedsolve.core.types import Scalar, module, static


@module
class Window:
    """What packed clients are, where they are not all: everything random still follows from their own numbers.

    Attributes:
        first: the first round that the window serves.
        slots: the cohort of each of its rounds, as places among the packed clients.
        numbers: the packed clients' own numbers, ascending; the population's size where a place is empty.
        population: clients in all.
    """

    first: Scalar
    slots: Int[Array, "rounds capacity"]
    numbers: Int[Array, " clients"]
    population: int = static()

    @classmethod
    def of_no_round(cls, numbers: np.ndarray, population: int) -> Window:
        """Clients by their numbers, for what is done with them outside rounds."""
        return cls(np.int32(0), jnp.zeros((0, 0), jnp.int32), jnp.asarray(numbers, jnp.int32), population)
