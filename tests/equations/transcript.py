"""The papers' pseudo-code in NumPy, one client after another, on softmax regression with a hand-written
gradient.

Written from the papers alone: nothing here is imported from fedsolve. The random choices (cohorts and the
order in which a client visits its rows) come in as data.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

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

    def loss(self, i: int, w: Vector, rows: Vector | None = None) -> float:
        """Mean over the rows of -log softmax(x W + b)[y]; all of the client's without rows."""
        x, y = self.clients[i].x, self.clients[i].y
        if rows is not None:
            x, y = x[rows], y[rows]
        features, classes = x.shape[1], len(w) // (x.shape[1] + 1)
        logits = x @ w[: features * classes].reshape(features, classes) + w[features * classes :]
        top = logits.max(axis=1)
        return float(
            np.mean(top + np.log(np.exp(logits - top[:, None]).sum(axis=1)) - logits[range(len(y)), y])
        )

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
        """Rows of each local step: passes over a shuffled client, the last minibatch of a pass may be
        short.
        """
        n = self.size(i)
        per_pass = math.ceil(n / self.batch)
        steps = self.steps if self.steps is not None else self.epochs * per_pass
        found = []
        for k in range(steps):
            e, j = divmod(k, per_pass)
            if per_pass == 1:
                found.append(np.arange(n))
                continue
            rows = np.asarray(self.orders[t][i][e])[:n]  # fewer than n where no step looks that far
            assert len(set(rows) & set(range(n))) == len(rows), (
                "a pass visits a row of the client at most once"
            )
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
    fed: Federation, w: Vector, local: LocalSGD, rule: Any, option: str, uncorrected: bool = False
) -> tuple[Vector, Vector, Vector, Vector]:
    """SCAFFOLD (Karimireddy et al., Algorithm 1), uniform weights; also c and all c_i at the end.

    The rule has mean |D_i|^2, or, `uncorrected`, mean |K eta_l h_i|^2 with h_i the mean of i's own gradients.
    """
    population = len(fed.clients)
    c, ci = np.zeros_like(w), np.zeros((population, len(w)))
    iterates, rates, eta = [w], [], 0.0
    for t, cohort in enumerate(fed.cohorts):
        if cohort:
            deltas, changes, own = [], [], []
            for i in cohort:
                y = local(fed, t, i, w, correction=c - ci[i])
                unit = unit_displacement(len(fed.minibatches(t, i)), local, t)
                by_step = ci[i] - c + (w - y) / unit
                new = fed.gradient(i, w) if option == "I" else by_step
                own.append(unit * by_step)
                deltas.append(y - w)
                changes.append(new - ci[i])
                ci[i] = new
            mean = np.mean(deltas, axis=0)
            spread = np.mean([d @ d for d in (own if uncorrected else deltas)])
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
