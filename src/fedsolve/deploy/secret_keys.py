"""Random keys that nobody can predict, for privacy, and their files; everything else follows from the run's seed.

Amplification by sampling is worth nothing against those who know the cohorts, and a seed is no secret: orders carry
keys that follow from it. Where a guarantee rests on it, cohorts follow from bytes that never leave the server's folder.
"""

from __future__ import annotations

import hashlib
import secrets
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from fedsolve.core.errors import InvalidInput
from fedsolve.folders.files import write_atomically
from fedsolve.folders.untrusted import read_if_there

SECRET_FILE = "cohorts.key"
"""Where the server of a private run keeps what its cohorts follow from, until the run has ended."""
_BYTES = 32
_MOST = 2**20  # bytes that are read, to say how many there are


def secret_key() -> jax.Array:
    """A key from the system's cryptographic generator: 64 bits, all that JAX's default generator takes."""
    return _key(secrets.token_bytes(8))


def new_secret() -> bytes:
    """32 bytes from the system's cryptographic generator; also a private key of X25519 or Ed25519."""
    return secrets.token_bytes(_BYTES)


def load_or_create_identity(path: Path) -> bytes:
    """The private Ed25519 key in a file, or a new one, written with mode 0600."""
    private = read_if_there(path, _BYTES)
    if private is None:
        private = new_secret()
        write_atomically(path, private, private=True)
    elif path.stat().st_mode & 0o077:
        raise InvalidInput(f"{path} can be read by others: chmod 600 it, or remove it for a new identity")
    if len(private) != _BYTES:
        raise InvalidInput(
            f"{path} has {len(private)} bytes, not {_BYTES}: restore it, or remove it for a new identity"
        )
    return private


def load_or_create_secret(folder: Path) -> bytes:
    """What the cohorts of the run in a folder follow from, or a new one: a resumed run draws those it would have."""
    path = folder / SECRET_FILE
    secret = read_if_there(path, _MOST, follow=False)
    if secret is None:
        secret = new_secret()
        write_atomically(path, secret, private=True)
    if len(secret) != _BYTES:
        raise InvalidInput(
            f"{path} has {len(secret)} bytes, not {_BYTES}: remove it; cohorts are then drawn with a new key"
        )
    return secret


def round_key(secret: bytes, round: int) -> jax.Array:
    """The key of one round's cohort. From it neither the secret nor another round's key can be computed."""
    return _key(hashlib.blake2b(f"cohort {round}".encode(), key=secret, digest_size=8).digest())


def _key(data: bytes) -> jax.Array:
    return jax.random.wrap_key_data(jnp.asarray(np.frombuffer(data, np.uint32)), impl="threefry2x32")
