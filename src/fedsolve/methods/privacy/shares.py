"""Client updates as whole numbers with a share of the noise: what `fs.Secure` sends for `fs.DP(at="distributed")`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array

from fedsolve.core import trees
from fedsolve.core.algorithm import Algorithm, name_of
from fedsolve.core.errors import InvalidInput, check_integer, check_range
from fedsolve.core.types import Params, Scalar, module, static
from fedsolve.methods.compression.compressor import blocks
from fedsolve.methods.compression.hadamard import hadamard, random_signs, row_size
from fedsolve.methods.privacy.conditional_rounding import norm_of, round_within
from fedsolve.methods.privacy.protected_parts import released
from fedsolve.methods.privacy.skellam import ENTRIES, NORM, STEPS, simulated_noise
from fedsolve.methods.secure.coder import Coder

_MOST = 32 * STEPS
_TAIL = 10.0  # standard deviations of a share that `_MOST` leaves room for
_SEED, _ROUNDING, _NOISE = 0x5CE1, 1, 0x4015E


@module
class SkellamCoder(Coder):
    """Rotation, clipping, scaling, conditional rounding, and a Skellam share (Agarwal et al. 2021, Algorithm 1).

        client:  x = (s/C) H R D_i min(1, C / |D_i|),   q_i = round(x) with |q_i| <= 1.01 s,   q_i + Sk(v)
        sum:     D = R H (C/s) sum of q_i

    H is the orthonormal Hadamard transform of rows of 1,024 numbers, R random signs that follow from the round,
    s = 2^15.

    Attributes:
        clip_norm: C > 0.
        variance: v > 0, of one client's noise.
    """

    clip_norm: Scalar
    variance: Scalar
    most: float = static(default=_MOST)

    def encode(self, update: Params, round: Scalar, client: Scalar) -> list[Array]:
        """One array of whole numbers, shape (rows, entries of a row)."""
        flat = ravel_pytree(update)[0]
        rows = blocks(flat, row_size(flat.size))
        if rows.size > ENTRIES:
            raise InvalidInput(
                f"DP(at='distributed') is for at most {ENTRIES:,} parameters, and the model has {flat.size:,}: "
                "train fewer"
            )
        rotated = hadamard(rows * self._signs(rows, round))
        norm = norm_of(rotated)
        x = rotated * (STEPS / jnp.maximum(norm, self.clip_norm))
        key = jax.random.fold_in(jax.random.fold_in(_key(round), _ROUNDING), client)
        return [round_within(x, NORM / 1.0001, key)]

    def noise(self, numbers: list[Array], key: Any) -> list[Array]:
        """A simulation's share of the noise."""
        return [simulated_noise(jax.random.fold_in(key, _NOISE), x, self.variance) for x in numbers]

    def decode(self, sums: list[Array], clients: Scalar, like: Params, round: Scalar) -> Params:
        """The mean client update, with the mean of the noise."""
        (rows,) = sums
        flat, structure = ravel_pytree(jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), like))
        plain = hadamard(rows) * self._signs(rows, round) * (self.clip_norm / STEPS / clients)
        return structure(plain.ravel()[: flat.size].astype(flat.dtype))

    def _signs(self, rows: Array, round: Scalar) -> Array:
        return random_signs(_key(round), rows.shape, rows.dtype)


def share_of(noise_multiplier: Scalar, min_sum: int, corrupt: float) -> Scalar:
    """The variance of one client's noise, in whole numbers: (z s)^2 / (n - ceil(corrupt n)), n the smallest sum."""
    steps = float(STEPS)  # no integer, whose product with another one could wrap around
    return (noise_multiplier * steps) ** 2 / honest(min_sum, corrupt)


def honest(min_sum: int, corrupt: float) -> int:
    """Clients of the smallest sum that add their noise."""
    return min_sum - math.ceil(corrupt * min_sum)


def check_shared(method: Any) -> None:
    """Raise `InvalidInput` unless `DP(at="distributed")` has what it needs, and others none of it."""
    z, min_sum, corrupt = method.noise_multiplier, method.min_sum, method.corrupt
    if method.at != "distributed":
        if min_sum is not None or corrupt:
            raise InvalidInput("min_sum and corrupt are of DP(at='distributed') alone")
        return
    if min_sum is None:
        raise InvalidInput(
            "DP(at='distributed') needs min_sum, the messages of the smallest sum that is opened"
        )
    check_integer("min_sum", min_sum, 1)
    check_range("min_sum", min_sum, at_most=method.cohort)
    check_range("corrupt", corrupt, at_least=0, below=1)
    if method.clipping != "fixed":
        raise InvalidInput(
            "DP(at='distributed') needs clipping='fixed': the bits that adapt it would have no noise"
        )
    if method.sampling == "poisson":
        raise InvalidInput(
            "DP(at='distributed') needs sampling='fixed' or 'none': a Poisson cohort may have fewer than "
            "min_sum clients, and whether a sum is opened would depend on one of them"
        )
    if honest(min_sum, corrupt) < 1:
        raise InvalidInput(f"corrupt = {corrupt} of min_sum = {min_sum} leaves nobody to add noise")
    largest = (_MOST - NORM) / STEPS / _TAIL * math.sqrt(honest(min_sum, corrupt))
    if trees.is_not_traced(z) and float(z) > largest:
        raise InvalidInput(
            f"noise_multiplier = {float(z):g} is more than {largest:.3g}, the most that "
            f"{honest(min_sum, corrupt)} clients can share: raise min_sum"
        )


def check_left_out(method: Algorithm, bounds: Mapping[str, Any]) -> None:
    """Raise `InvalidInput` if a scalar beside the client update is not left out: the noise is on the update alone."""
    if some := released(bounds):
        raise InvalidInput(
            f"DP(at='distributed') sends nothing beside the client update, and {name_of(method)} sends {some[0]}: "
            f"leave it out by scalars={{'{some[0]}': 0}} if it is only logged; else take another method, or at='client'"
        )


def _key(round: Scalar) -> Any:
    return jax.random.fold_in(jax.random.key(_SEED), round)
