"""Shamir's secret sharing (1979), of many secrets at once: any `threshold` points of a polynomial give its value at 0.

A secret of 32 bytes is 18 numbers of 15 bits, each the value at 0 of a polynomial of its own over the integers modulo
a prime just above 2^15. So sharing is one product of matrices.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

PRIME = 32771
"""The smallest prime above 2^15: a value fits into two bytes."""
LIMBS, _BITS = 18, 15
SHARE = 2 * LIMBS
"""Bytes of a share."""
_SECRET = 32
_FAIR = 2**32 // PRIME * PRIME


def share(values: bytes, threshold: int, count: int) -> list[bytes]:
    """For each of the points 1, ..., count its shares of secrets, 36 bytes each.

    Args:
        values: the secrets, 32 bytes each.
        threshold: points that give them back.
        count: of points, below the prime.
    """
    constants = _to_limbs(values)
    coefficients = np.vstack(
        [constants, _uniform((threshold - 1) * len(constants)).reshape(threshold - 1, -1)]
    )
    shares = (_powers(threshold, count) @ coefficients) % PRIME
    return [row.tobytes() for row in shares.astype("<u2")]


def combine(points: Sequence[int], shares: Sequence[bytes]) -> bytes:
    """The secrets, 32 bytes each, from the shares that these points have of them.

    Shares of no such polynomials give some other secrets.
    """
    values = np.stack([np.frombuffer(row, "<u2") for row in shares]).astype(np.int64)
    return _from_limbs((np.array(weights(points), np.int64) @ (values % PRIME)) % PRIME)


@lru_cache(maxsize=64)
def weights(points: Sequence[int], prime: int = PRIME) -> list[int]:
    """Lagrange's weights: the value at 0 is the sum of weights times shares at these points."""
    found = []
    for x in points:
        above = below = 1
        for other in points:
            if other != x:
                above, below = above * -other % prime, below * (x - other) % prime
        found.append(above * pow(below, -1, prime) % prime)
    return found


@lru_cache(maxsize=8)
def _powers(threshold: int, count: int) -> np.ndarray:
    """x^k modulo the prime for the points x = 1, ..., count and k below the threshold."""
    return np.array([[pow(x, k, PRIME) for k in range(threshold)] for x in range(1, count + 1)], np.int64)


def _uniform(count: int) -> np.ndarray:
    """Numbers below the prime, each as likely as any other."""
    found = np.empty(0, np.uint32)
    while len(found) < count:
        drawn = np.frombuffer(secrets.token_bytes(4 * (count + 16)), "<u4")
        found = np.append(found, drawn[drawn < _FAIR])
    return (found[:count] % PRIME).astype(np.int64)


def _to_limbs(values: bytes) -> np.ndarray:
    """Secrets as numbers of 15 bits, one after the other."""
    bits = np.unpackbits(np.frombuffer(values, np.uint8).reshape(-1, _SECRET), axis=1, bitorder="little")
    padded = np.pad(bits, ((0, 0), (0, LIMBS * _BITS - bits.shape[1])))
    return (padded.reshape(-1, _BITS) @ (1 << np.arange(_BITS))).ravel()


def _from_limbs(numbers: np.ndarray) -> bytes:
    """The secrets of such numbers."""
    bits = (numbers[:, None] >> np.arange(_BITS)) & 1
    whole = bits.astype(np.uint8).reshape(-1, LIMBS * _BITS)[:, : 8 * _SECRET]
    return np.packbits(whole, axis=1, bitorder="little").tobytes()
