"""The clients of a run, and who of them takes part in a round. No Flower here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedsolve.core.algorithm import Algorithm, check_shares
from fedsolve.core.sampling import Sampling
from fedsolve.deploy.secret_keys import new_secret, round_key
from fedsolve.engine.compute.casting import cast, run_key


@dataclass(frozen=True)
class Federation:
    """The clients of a run, and how cohorts of them are drawn.

    Attributes:
        population: number of clients, numbered from 0.
        sampling: how cohorts are drawn.
        seed: of cohorts, and of the clients' shuffles.
        experiment: name of the experiment, part of every message and of the clients' state files.
        secret: what cohorts follow from in place of the seed where the method's guarantee needs it (32 bytes);
            None for a new one.
    """

    population: int
    sampling: Sampling
    seed: int
    experiment: str
    secret: bytes | None = None

    def check(self, algorithm: Algorithm) -> None:
        """Raise `InvalidInput` unless cohorts can be drawn so, and for a method."""
        self.sampling.check(self.population)
        check_shares(algorithm.traits)
        algorithm.check(self.sampling, self.population)


class Cohorts:
    """The cohorts of a method's rounds on a federation: the same whenever they are asked for."""

    def __init__(self, federation: Federation, algorithm: Algorithm, dtype: Any) -> None:
        self._population = federation.population
        self._sampling, self._key = cast(federation.sampling, dtype), run_key(federation.seed)
        self._secret = (federation.secret or new_secret()) if algorithm.traits.secret_cohorts else None

    def key(self, round: int) -> jax.Array:
        """The random key of a round, which requests carry."""
        return jax.random.fold_in(self._key, round)

    def draw(self, round: int) -> np.ndarray:
        """The clients of a round, in order."""
        # requests carry its key: where nobody may know the cohort it follows from the secret instead
        key = self.key(round) if self._secret is None else round_key(self._secret, round)
        ids, present = self._sampling.draw(key, jnp.int32(round), self._population)
        return np.sort(np.asarray(ids)[np.asarray(present)])
