"""Random keys that nobody can foresee, for noise that protects; everything else follows from the run's seed."""

from __future__ import annotations

import secrets

import jax
import jax.numpy as jnp
import numpy as np


def secret_key() -> jax.Array:
    """A key from the system's cryptographic generator: 64 bits, all that JAX's default generator takes."""
    return jax.random.wrap_key_data(jnp.asarray(np.frombuffer(secrets.token_bytes(8), np.uint32)))
