"""The papers' server steps in NumPy: (w, D, mean |D_i|^2, |S|, t) -> (w, eta). State starts at 0 unless
given.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy.optimize import brentq

Vector = np.ndarray


def divide(a: Vector, b: Vector) -> Vector:
    """a / b, and 0 where both are 0: a coordinate that has never moved stays."""
    return np.divide(a, b, out=np.zeros_like(a), where=b != 0)


class Average:
    """w += eta D;  heavy ball: m = beta m + D, w += eta m;  EMA: m = beta m + (1 - beta) D."""

    def __init__(self, eta: Any = 1.0, beta: float | None = None, ema: bool = False) -> None:
        self.eta, self.beta, self.ema, self.m = eta, beta, ema, 0.0

    def __call__(self, w: Vector, D: Vector, spread: float, size: int, t: int) -> tuple[Vector, float]:
        eta = self.eta(t) if callable(self.eta) else self.eta
        if self.beta is None:
            return w + eta * D, eta
        self.m = self.beta * self.m + ((1 - self.beta) * D if self.ema else D)
        return w + eta * self.m, eta


class FedOptRule:
    """Algorithm 2 of Reddi et al.; `bias` is Flower's and Keras's correction with exponent t + 1, t from
    1.
    """

    def __init__(
        self, second: str, eta: float, tau: float, b1: float, b2: float, v0: float, bias: bool
    ) -> None:
        self.second, self.eta, self.tau, self.b1, self.b2, self.bias = second, eta, tau, b1, b2, bias
        self.m, self.v = 0.0, v0

    def __call__(self, w: Vector, D: Vector, spread: float, size: int, t: int) -> tuple[Vector, float]:
        b1, b2 = self.b1, self.b2
        self.m = b1 * self.m + (1 - b1) * D
        if self.second == "adagrad":
            self.v = self.v + D**2
        if self.second == "yogi":
            self.v = self.v - (1 - b2) * D**2 * np.sign(self.v - D**2)
        if self.second == "adam":
            self.v = b2 * self.v + (1 - b2) * D**2
        eta = self.eta
        if self.bias:
            round_number = t + 1
            eta = eta * math.sqrt(1 - b2 ** (round_number + 1)) / (1 - b1 ** (round_number + 1))
        return w + eta * divide(self.m, np.sqrt(self.v) + self.tau), eta


class FedExPRule:
    """Jhunjhunwala et al.: eta = (1/2) sum p_i |D_i|^2 / (|D|^2 + eps); clamp: at least 1; eps times |S|."""

    def __init__(self, eps: float, clamp: bool = False, times_size: bool = False) -> None:
        self.eps, self.clamp, self.times_size = eps, clamp, times_size

    def __call__(self, w: Vector, D: Vector, spread: float, size: int, t: int) -> tuple[Vector, float]:
        eps = self.eps * size if self.times_size else self.eps
        eta = 0.5 * spread / (D @ D + eps)
        if self.clamp:
            eta = max(1.0, eta)
        return w + eta * D, eta


class FedDuA:
    """Takakura et al., Algorithm 1: geometry 'adagrad', 'adam' or 'identity' (FedExPM with b1)."""

    def __init__(
        self, geometry: str, b1: float | None, b2: float, eps: float, eps_g: float, most: float = math.inf,
        least: float = 0.0, q: float = 0.5,
    ) -> None:  # fmt: skip
        self.geometry, self.b1, self.b2, self.eps, self.eps_g = geometry, b1, b2, eps, eps_g
        self.least, self.q = least, q  # least: 1 under noise, where m is at least |v|^2
        self.most = most  # of the step along v in units of v, with G = I
        self.s = self.v = self.m = 0.0

    def __call__(self, w: Vector, D: Vector, spread: float, size: int, t: int) -> tuple[Vector, float]:
        self.v, self.m = momentum(self.b1, self.v, self.m, D, 2 * self.q * spread)
        if self.geometry == "adagrad":
            self.s = self.s + D**2
        if self.geometry == "adam":
            self.s = self.b2 * self.s + (1 - self.b2) * D**2
        G = np.ones_like(w) if self.geometry == "identity" else np.sqrt(self.s) + self.eps
        step = divide(self.v, G)
        length = self.v @ step + self.eps_g
        far = max(self.m, self.least * (self.v @ self.v))
        eta = min(far, self.most * (self.v @ self.v)) / length if length > 0 else 0.0
        return w + eta * step, eta


def momentum(b1: float | None, v: Any, m: Any, D: Vector, spread: float) -> tuple[Vector, float]:
    """v and m (Theorems 3.2 and 3.3): the factor of m is b1/2, not b1."""
    if b1 is None:
        return D, spread / 2
    return b1 * v + (1 - b1) * D, b1 / 2 * m + (1 - b1) / 2 * spread


class MirrorFedDuA:
    """Takakura et al., equation (3): theta' = theta + eta v with h(eta) = <w(theta + eta v) - w, v> = m."""

    def __init__(self, gradient: Any, inverse: Any, b1: float | None = None) -> None:
        self.gradient, self.inverse, self.b1 = gradient, inverse, b1
        self.v = self.m = 0.0

    def __call__(self, w: Vector, D: Vector, spread: float, size: int, t: int) -> tuple[Vector, float]:
        self.v, self.m = momentum(self.b1, self.v, self.m, D, spread)
        theta = self.gradient(w)

        def excess(eta: float) -> float:
            return float((self.inverse(theta + eta * self.v) - w) @ self.v - self.m)

        high = 1.0
        while excess(high) < 0:
            high *= 2
        eta = brentq(excess, 0.0, high, xtol=1e-300, rtol=4 * np.finfo(float).eps, maxiter=1000)
        return self.inverse(theta + eta * self.v), eta
