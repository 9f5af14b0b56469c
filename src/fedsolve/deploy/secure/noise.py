"""A client's share of the noise: Skellam numbers whose random bits come from AES in counter mode.

A Skellam number is the difference of two Poisson numbers with the same mean. Poisson numbers with a mean of at least
10 are drawn by transformed rejection (Hoermann 1993, "The transformed rejection method for generating Poisson random
variables", Algorithm PTRS), others by inversion of a table. Both are exact up to the rounding of 64-bit numbers.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import gammaln

from fedsolve.core.errors import InvalidInput
from fedsolve.deploy.secure.primitives import Cipher, algorithms, modes, new_secret

_LARGEST = 2.0**50
_TABLE_BELOW, _EXPANDED_FROM = 10.0, 1e6


def skellam_share(count: int, variance: float, key: bytes | None = None) -> np.ndarray:
    """Independent Skellam numbers with mean 0.

    Args:
        count: how many, at least 0.
        variance: of each, in (0, 2^50].
        key: 32 bytes that they follow from, for tests; by default from the system's generator.

    Returns:
        Whole numbers, int64 of shape (count,).

    Raises:
        InvalidInput: a variance out of its range.
    """
    if not 0 < variance <= _LARGEST:
        raise InvalidInput(f"variance = {variance!r} of a share of noise must be above 0 and at most 2^50")
    bits = RandomBits(new_secret() if key is None else key)
    return _poisson(count, variance / 2, bits) - _poisson(count, variance / 2, bits)


class RandomBits:
    """A stream of uniform numbers from AES-256 in counter mode with one key."""

    def __init__(self, key: bytes) -> None:
        self._stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()

    def uniform(self, count: int) -> np.ndarray:
        """Numbers in (0, 1): odd multiples of 2^-54."""
        words = np.frombuffer(self._stream.update(bytes(8 * count)), "<u8")
        return ((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53


def _poisson(count: int, mean: float, bits: RandomBits) -> np.ndarray:
    if mean < _TABLE_BELOW:
        values = np.arange(200)
        table = np.cumsum(np.exp(values * math.log(mean) - mean - gammaln(values + 1)))
        return np.searchsorted(table, bits.uniform(count)).astype(np.int64)
    found = np.empty(count, np.int64)
    missing = np.arange(count)
    while len(missing):
        tried, accepted = _transformed_rejection(len(missing), mean, bits)
        found[missing[accepted]] = tried[accepted]
        missing = missing[~accepted]
    return found


def _transformed_rejection(count: int, mean: float, bits: RandomBits) -> tuple[np.ndarray, np.ndarray]:
    """Proposals of PTRS, with its constants, and which are accepted."""
    b = 0.931 + 2.53 * math.sqrt(mean)
    a = -0.059 + 0.02483 * b
    u, v = bits.uniform(count) - 0.5, bits.uniform(count)
    side = 0.5 - np.abs(u)
    k = np.floor((2 * a / side + b) * u + mean + 0.43)
    accepted = (side >= 0.07) & (v <= 0.9277 - 3.6224 / (b - 2))
    rest = np.flatnonzero(~accepted & (k >= 0) & ~((side < 0.013) & (v > side)))
    height = np.log(v[rest]) + math.log(1.1239 + 1.1328 / (b - 3.4)) - np.log(a / side[rest] ** 2 + b)
    accepted[rest] = height <= _log_probability(k[rest], mean)
    return np.where(accepted, k, 0).astype(np.int64), accepted


def _log_probability(k: np.ndarray, mean: float) -> np.ndarray:
    """log(mean^k exp(-mean) / k!); by Stirling's series where the terms are large and nearly cancel."""
    if mean < _EXPANDED_FROM:
        return k * math.log(mean) - mean - gammaln(k + 1)
    k = np.maximum(k, 1.0)
    x = (k - mean) / mean
    return -mean * ((1 + x) * np.log1p(x) - x) - np.log(2 * math.pi * k) / 2 - 1 / (12 * k)
