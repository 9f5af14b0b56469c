"""Shamir's secret sharing over a prime field (1979): any `threshold` points of a polynomial give its value at 0."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

PRIME = 2**256 + 297
"""The smallest prime above 2^256: every secret of 32 bytes is an element."""
SHARE = 33
"""Bytes of a share."""


def share(secret: int, threshold: int, count: int, prime: int = PRIME) -> list[int]:
    """The values at 1, ..., count of a random polynomial of degree threshold - 1 whose value at 0 is the secret."""
    coefficients = [secrets.randbelow(prime) for _ in range(threshold - 1)]
    return [_value(secret, coefficients, x) % prime for x in range(1, count + 1)]


def _value(secret: int, coefficients: Sequence[int], x: int) -> int:
    """Horner's rule; x is small, so the one remainder at the end is cheaper than one a step."""
    total = 0
    for coefficient in coefficients:
        total = (total + coefficient) * x
    return total + secret


def weights(points: Sequence[int], at: int = 0, prime: int = PRIME) -> list[int]:
    """Lagrange's weights: the value at `at` is the sum of weights times shares at these points."""
    found = []
    for i, x in enumerate(points):
        above = below = 1
        for j, other in enumerate(points):
            if i != j:
                above, below = above * (at - other) % prime, below * (x - other) % prime
        found.append(above * pow(below, -1, prime) % prime)
    return found


def combine(weights: Sequence[int], shares: Sequence[int], prime: int = PRIME) -> int:
    """The value of the polynomial from shares, with the weights of their points."""
    return sum(w * s for w, s in zip(weights, shares, strict=True)) % prime
