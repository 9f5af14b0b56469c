"""The papers' methods for F + psi and for F over a set, in NumPy, one client after another.

FedMiD and FedDualAvg: Yuan, Zaheer and Reddi 2021, Algorithms 2 to 5. FedFW: Dadras et al. 2024, Algorithm 1
with the server line that is right when clients are absent. FedDR: Tran Dinh et al. 2021, Algorithm 1. Written
from the papers alone: nothing here is imported from fedsolve.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from equations.transcript import Federation, Vector, shares

ALL, WEIGHT, BIAS = slice(0, 15), slice(0, 12), slice(12, 15)
Rate = float | Callable[[int], float]


def at(rate: Rate, t: int) -> float:
    return rate(t) if callable(rate) else rate


def soft(v: Vector, by: float | Vector) -> Vector:
    return np.sign(v) * np.maximum(np.abs(v) - by, 0)


def onto_l1(v: Vector, radius: float) -> Vector:
    """Projection by sorting (Duchi et al. 2008)."""
    if np.abs(v).sum() <= radius:
        return v
    u = np.sort(np.abs(v))[::-1]
    level = (np.cumsum(u) - radius) / np.arange(1, len(u) + 1)
    return soft(v, level[np.flatnonzero(u > level)[-1]])


def onto_l2(v: Vector, radius: float) -> Vector:
    return v * min(1.0, radius / np.linalg.norm(v))


@dataclass
class Psi:
    """Parts (where, kind, size): a penalty `l1`, or a set `l1ball` or `l2ball`; the other entries are free."""

    parts: list[tuple[slice, str, float]]

    def prox(self, v: Vector, step: float) -> Vector:
        """argmin_u step psi(u) + |u - v|^2 / 2; of a set the projection, whatever the step."""
        v = v.copy()
        for where, kind, size in self.parts:
            if kind == "l1":
                v[where] = soft(v[where], step * size)
            else:
                v[where] = (onto_l1 if kind == "l1ball" else onto_l2)(v[where], size)
        return v

    def penalty(self, like: Vector) -> Vector:
        """The factor of |u_j| for every j, where all parts are l1."""
        weights = np.zeros_like(like)
        for where, kind, size in self.parts:
            assert kind == "l1"
            weights[where] = size
        return weights

    def lmo(self, g: Vector) -> Vector:
        """argmin over the set of <g, s>."""
        s = np.full_like(g, np.nan)
        for where, kind, radius in self.parts:
            part = g[where]
            if kind == "l1ball":
                own = np.zeros_like(part)
                j = np.argmax(np.abs(part))
                own[j] = -radius * np.sign(part[j])
                s[where] = own
            else:
                s[where] = -radius * part / np.linalg.norm(part)
        return s


class Euclid:
    """h = |w|^2 / 2."""

    def grad(self, w: Vector) -> Vector:
        return w

    def inverse(self, z: Vector) -> Vector:
        return z

    def composite(self, psi: Psi, z: Vector, step: float) -> Vector:
        return psi.prox(z, step)


class Power:
    """h = |w|_p^2 / 2; its gradient keeps signs and zeros, so that l1 thresholds the dual vector."""

    def __init__(self, p: float) -> None:
        self.p = p

    def grad(self, w: Vector) -> Vector:
        return _power(w, self.p)

    def inverse(self, z: Vector) -> Vector:
        return _power(z, self.p / (self.p - 1))

    def composite(self, psi: Psi, z: Vector, step: float) -> Vector:
        return self.inverse(soft(z, step * psi.penalty(z)))


def _power(w: Vector, p: float) -> Vector:
    norm = (np.abs(w) ** p).sum() ** (1 / p)
    return np.sign(w) * np.abs(w) ** (p - 1) * norm ** (2 - p)


class Logarithm:
    """h = sum w log w - w on w > 0, where |w|_1 is linear."""

    def grad(self, w: Vector) -> Vector:
        return np.log(w)

    def inverse(self, z: Vector) -> Vector:
        return np.exp(z)

    def composite(self, psi: Psi, z: Vector, step: float) -> Vector:
        return np.exp(z - step * psi.penalty(z))


class Diagonal:
    """h = sum g_j w_j^2 / 2."""

    def __init__(self, g: Vector) -> None:
        self.g = g

    def grad(self, w: Vector) -> Vector:
        return self.g * w

    def inverse(self, z: Vector) -> Vector:
        return z / self.g

    def composite(self, psi: Psi, z: Vector, step: float) -> Vector:
        return soft(z, step * psi.penalty(z)) / self.g


@dataclass
class Settings:
    """eta_c, eta_s, psi, h, the clients' weights, and whether the prox is on the server only."""

    psi: Psi
    client: Rate
    server: Rate
    mirror: Any
    weighting: str = "uniform"
    osp: bool = False


def fedmid(fed: Federation, w: Vector, s: Settings) -> Vector:
    """Algorithms 2 and 4: w_0, w_1, ...; K eta_c is the weighted mean of the clients' own K_i eta_c."""
    h, found = s.mirror, [w]
    for t, cohort in enumerate(fed.cohorts):
        if cohort:
            eta, rate = at(s.client, t), at(s.server, t)
            moved, rate_sum = np.zeros_like(w), 0.0
            for p, i in zip(shares(fed, cohort, s.weighting), cohort, strict=True):
                own, batches = w, fed.minibatches(t, i)
                for rows in batches:
                    z = h.grad(own) - eta * fed.gradient(i, own, rows)
                    own = h.inverse(z) if s.osp else h.composite(s.psi, z, eta)
                moved, rate_sum = moved + p * (own - w), rate_sum + p * eta * len(batches)
            w = h.composite(s.psi, h.grad(w) + rate * moved, rate * rate_sum)
        found.append(w)
    return np.stack(found)


@dataclass
class Dual:
    """What FedDualAvg went through: models, dual states and e after every round; the mean of Theorem 4.2."""

    models: Vector
    duals: Vector
    rate_sum: Vector
    averaged: Vector


def feddualavg(fed: Federation, w: Vector, s: Settings) -> Dual:
    """Algorithms 3 and 5; e = eta_s eta_c r K is accumulated. `averaged`: equation (4.4) up to every round."""
    h, z, e = s.mirror, s.mirror.grad(w), 0.0
    models, duals, times, shadows, means = [h.composite(s.psi, z, e)], [z], [e], [], []
    means.append(models[0])
    for t, cohort in enumerate(fed.cohorts):
        if cohort:
            eta, rate = at(s.client, t), at(s.server, t)
            moved, rate_sum, paths = np.zeros_like(z), 0.0, []
            for p, i in zip(shares(fed, cohort, s.weighting), cohort, strict=True):
                own, path = z, []
                for k, rows in enumerate(fed.minibatches(t, i)):
                    model = h.inverse(own) if s.osp else h.composite(s.psi, own, e + eta * k)
                    own = own - eta * fed.gradient(i, model, rows)
                    path.append(p * own)
                moved, rate_sum = moved + p * (own - z), rate_sum + p * eta * len(path)
                paths.append(path)
            if len({len(path) for path in paths}) == 1:
                for k, states in enumerate(zip(*paths, strict=True), 1):
                    shadows.append(h.composite(s.psi, np.sum(states, axis=0), e + eta * k))
            z, e = z + rate * moved, e + rate * rate_sum
        models.append(h.composite(s.psi, z, e))
        duals.append(z)
        times.append(e)
        means.append(np.mean(shadows, axis=0) if shadows else models[0])
    return Dual(np.stack(models), np.stack(duals), np.array(times), np.stack(means))


@dataclass
class Walk:
    """What FedFW went through: xbar after every round; x_i, y_i and d_i of all clients after every round."""

    mean: Vector
    x: Vector
    y: Vector
    d: Vector


def fedfw(
    fed: Federation, w: Vector, sets: list[Psi], variant: str, eta: Any, lam: Any, rho: Any, lam0: float
) -> Walk:
    """Algorithm 1 of Dadras et al., t = 1, 2, ...; sets[i] is D_i; absent clients keep all they have."""
    n = len(fed.clients)
    x, y, d, mean = np.tile(w, (n, 1)), np.zeros((n, len(w))), np.zeros((n, len(w))), w
    steps = [(mean, x.copy(), y.copy(), d.copy())]
    for t, cohort in enumerate(fed.cohorts, 1):
        change = np.zeros_like(w)
        for i in cohort:
            g = lam(t) * (x[i] - mean)
            if variant == "stochastic":
                rows = fed.minibatches(t - 1, i)[0]
                d[i] = (1 - rho(t)) * d[i] + rho(t) / n * fed.gradient(i, x[i], rows)
                g = g + d[i]
            else:
                g = g + fed.gradient(i, x[i]) / n
            if variant == "plus":
                y[i] = y[i] + lam0 * (x[i] - mean)
                g = g + y[i]
            s = sets[i].lmo(g)
            change = change + (s - x[i])
            x[i] = (1 - eta(t)) * x[i] + eta(t) * s
        mean = mean + eta(t) / n * change
        steps.append((mean, x.copy(), y.copy(), d.copy()))
    return Walk(*(np.stack(column) for column in zip(*steps, strict=True)))


@dataclass
class Splitting:
    """What FedDR went through: xbar after every round; x_i, y_i, xhat_i and xtilde at the end."""

    mean: Vector
    x: Vector
    y: Vector
    reflected: Vector
    raw: Vector


def feddr(clients: int, cohorts: Any, w: Vector, psi: Psi, solve: Any, eta: float, alpha: float) -> Splitting:
    """y += alpha (xbar - x), x = solve(t, i, x, y), xhat = 2 x - y; xtilde the mean of all xhat, xbar its prox."""
    x, y, hat = (np.tile(w, (clients, 1)) for _ in range(3))
    mean, found = w, [w]
    for t, cohort in enumerate(cohorts):
        for i in cohort:
            y[i] = y[i] + alpha * (mean - x[i])
            x[i] = solve(t, i, x[i], y[i])
            hat[i] = 2 * x[i] - y[i]
        if len(cohort):
            mean = psi.prox(hat.mean(axis=0), eta)
        found.append(mean)
    return Splitting(np.stack(found), x, y, hat, hat.mean(axis=0))


def fista(gradient: Any, psi: Psi, start: Vector, step: float, iterations: int = 20_000) -> Vector:
    """The minimiser of F + psi, centralised (Beck and Teboulle 2009), restarted where momentum points uphill."""
    w, v, s = start, start, 1.0
    for _ in range(iterations):
        new = psi.prox(v - step * gradient(v), step)
        if (v - new) @ (new - w) > 0:
            s, v = 1.0, w
            new = psi.prox(v - step * gradient(v), step)
        after = (1 + np.sqrt(1 + 4 * s * s)) / 2
        v, s, w = new + (s - 1) / after * (new - w), after, new
    return w
