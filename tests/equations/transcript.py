"""The papers' pseudo-code in NumPy, one client after another, on softmax regression with a hand-written gradient.

Written from the papers alone: nothing here is imported from fedsolve. The random choices (cohorts and the
order in which a client visits its rows) come in as data.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import brentq

Vector = np.ndarray


@dataclass
class Federation:
    """Clients' data, batch size, epochs or steps, cohorts[t], and orders[t][i][pass] (rows, then padding)."""

    clients: list[Any]
    cohorts: list[list[int]]
    orders: Any
    batch: int
    epochs: int | None = 2
    steps: int | None = None

    def size(self, i: int) -> int:
        return len(self.clients[i].y)

    def gradient(self, i: int, w: Vector, rows: Vector | None = None) -> Vector:
        """Gradient of mean over the rows of -log softmax(x W + b)[y], flat: W row by row, then b."""
        x, y = self.clients[i].x, self.clients[i].y
        if rows is not None:
            x, y = x[rows], y[rows]
        features, classes = x.shape[1], len(w) // (x.shape[1] + 1)
        weight, bias = w[: features * classes].reshape(features, classes), w[features * classes :]
        logits = x @ weight + bias
        p = np.exp(logits - logits.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        p[np.arange(len(y)), y] -= 1.0
        return np.concatenate([(x.T @ p).ravel(), p.sum(axis=0)]) / len(y)

    def minibatches(self, t: int, i: int) -> list[Vector]:
        """Rows of each local step: passes over a shuffled client, the last minibatch of a pass may be short."""
        n = self.size(i)
        per_pass = math.ceil(n / self.batch)
        steps = self.steps if self.steps is not None else self.epochs * per_pass
        found = []
        for k in range(steps):
            e, j = divmod(k, per_pass)
            if per_pass == 1:
                found.append(np.arange(n))
                continue
            rows = np.asarray(self.orders[t][i][e])[:n]
            assert sorted(rows) == list(range(n)), "a pass visits every row of the client once"
            found.append(rows[j * self.batch : (j + 1) * self.batch])
        return found


@dataclass
class LocalSGD:
    """y <- y - lr b,  b <- momentum b + g~,  g~ = clip(g + mu (y - w) + decay y) + correction."""

    lr: float | Callable[[int], float]
    momentum: float = 0.0
    decay: float = 0.0
    clip: float = math.inf
    mu: float = 0.0

    def rate(self, t: int) -> float:
        return self.lr(t) if callable(self.lr) else self.lr

    def __call__(self, fed: Federation, t: int, i: int, w: Vector, correction: Any = 0.0) -> Vector:
        y, b = w.copy(), np.zeros_like(w)
        for rows in fed.minibatches(t, i):
            g = fed.gradient(i, y, rows) + self.mu * (y - w) + self.decay * y
            norm = np.linalg.norm(g)
            if norm > self.clip:
                g = g * self.clip / norm
            b = self.momentum * b + (g + correction)
            y = y - self.rate(t) * b
        return y


def shares(fed: Federation, cohort: list[int], weighting: str) -> Vector:
    """p_i: 1/|S| or n_i / sum of n."""
    n = np.array([fed.size(i) if weighting == "examples" else 1.0 for i in cohort])
    return n / n.sum()


def fedopt(
    fed: Federation, w: Vector, local: Any, rule: Any, weighting: str = "uniform"
) -> tuple[Vector, Vector]:
    """Algorithm 1 of Reddi et al.: iterates w_0, w_1, ... and the server's rate by round."""
    iterates, rates, eta = [w], [], 0.0
    for t, cohort in enumerate(fed.cohorts):
        if cohort:  # nobody there: nothing happens
            deltas = [local(fed, t, i, w) - w for i in cohort]
            p = shares(fed, cohort, weighting)
            mean = sum(q * d for q, d in zip(p, deltas, strict=True))
            spread = sum(q * (d @ d) for q, d in zip(p, deltas, strict=True))
            w, eta = rule(w, mean, spread, len(cohort), t)
        iterates.append(w)
        rates.append(eta)
    return np.stack(iterates), np.array(rates)


def scaffold(
    fed: Federation, w: Vector, local: LocalSGD, rule: Any, option: str
) -> tuple[Vector, Vector, Vector, Vector]:
    """SCAFFOLD (Karimireddy et al., Algorithm 1), uniform weights; also c and all c_i at the end."""
    population = len(fed.clients)
    c, ci = np.zeros_like(w), np.zeros((population, len(w)))
    iterates, rates, eta = [w], [], 0.0
    for t, cohort in enumerate(fed.cohorts):
        if cohort:
            deltas, changes = [], []
            for i in cohort:
                y = local(fed, t, i, w, correction=c - ci[i])
                if option == "I":
                    new = fed.gradient(i, w)
                else:
                    unit = unit_displacement(len(fed.minibatches(t, i)), local, t)
                    new = ci[i] - c + (w - y) / unit
                deltas.append(y - w)
                changes.append(new - ci[i])
                ci[i] = new
            mean = np.mean(deltas, axis=0)
            spread = np.mean([d @ d for d in deltas])
            w, eta = rule(w, mean, spread, len(cohort), t)
            c = c + np.sum(changes, axis=0) / population
        iterates.append(w)
        rates.append(eta)
    return np.stack(iterates), np.array(rates), c, ci


def unit_displacement(steps: int, local: LocalSGD, t: int) -> float:
    """How far the local steps would go on a gradient of 1: K eta_l without momentum."""
    b = moved = 0.0
    for _ in range(steps):
        b = local.momentum * b + 1.0
        moved += local.rate(t) * b
    return moved


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
    """Algorithm 2 of Reddi et al.; `bias` is Flower's and Keras's correction with exponent t + 1, t from 1."""

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

    def __init__(self, geometry: str, b1: float | None, b2: float, eps: float, eps_g: float) -> None:
        self.geometry, self.b1, self.b2, self.eps, self.eps_g = geometry, b1, b2, eps, eps_g
        self.s = self.v = self.m = 0.0

    def __call__(self, w: Vector, D: Vector, spread: float, size: int, t: int) -> tuple[Vector, float]:
        self.v, self.m = momentum(self.b1, self.v, self.m, D, spread)
        if self.geometry == "adagrad":
            self.s = self.s + D**2
        if self.geometry == "adam":
            self.s = self.b2 * self.s + (1 - self.b2) * D**2
        G = np.ones_like(w) if self.geometry == "identity" else np.sqrt(self.s) + self.eps
        step = divide(self.v, G)
        length = self.v @ step + self.eps_g
        eta = self.m / length if length > 0 else 0.0
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
