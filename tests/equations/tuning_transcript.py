"""FedLiLS, FedLiLU, FedExProx and the Polyak step in NumPy, written from the papers alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Vector = np.ndarray


@dataclass
class Work:
    """What one client did: where it ended, what it can report, and what its line search found."""

    y: Vector
    start: float = 0.0  # loss on all examples at w
    end: float = 0.0  # loss on all examples at y
    last: float = 0.0  # loss on the last minibatch at y
    mean: float = 0.0  # mean of the losses seen on the way
    eta: float = 0.0
    evaluations: int = 0
    rate_sum: float = 0.0
    examples: int = 0


def rounds(
    cohorts: list[list[int]], w: Vector, client: Callable, server: Callable, weights: Callable
) -> tuple[Vector, dict[str, Vector]]:
    """w_0, w_1, ..., and what the server logs; a round without a cohort repeats the last log."""
    iterates, logs, log = [w], [], {}
    for t, cohort in enumerate(cohorts):
        if cohort:
            works = [client(t, i, w) for i in cohort]
            n = np.array([weights(i) for i in cohort], float)
            w, log = server(w, works, n / n.sum(), t)
        iterates.append(w)
        logs.append(log)
    return np.stack(iterates), {name: np.array([row[name] for row in logs]) for name in logs[0]}


def mean(p: Vector, values: list[Any]) -> Any:
    return sum(q * v for q, v in zip(p, values, strict=True))


def local_sgd(fed: Any, lr: float, mu: float = 0.0) -> Callable:
    """K steps of y -= lr (g + mu (y - w)), with every loss that could be reported (mu's term included)."""

    def client(t: int, i: int, w: Vector) -> Work:
        y, seen = w, []

        def value(y: Vector, rows: Vector | None = None) -> float:
            return fed.loss(i, y, rows) + mu / 2 * (y - w) @ (y - w)

        batches = fed.minibatches(t, i)
        for rows in batches:
            seen.append(value(y, rows))
            y = y - lr * (fed.gradient(i, y, rows) + mu * (y - w))
        return Work(
            y,
            value(w),
            value(y),
            value(y, batches[-1]),
            float(np.mean(seen)),
            rate_sum=lr * len(batches),
            examples=fed.size(i),
        )

    return client


@dataclass
class ArmijoSGD:
    """Algorithm 3 of FedLi with Algorithm 4's reset (as corrected: growth delta^(b/n), capped at eta_max).

    Reset "code" grows by delta^(1/500) without a cap, the first trial of a round included. `decay` is of the loss,
    `clip` of the gradient with it. `h` is SCAFFOLD's correction, added to the gradient afterwards; `accept` then says
    by how much the loss without <h, .> must fall (the rules of the public code, by their names).
    """

    eta_max: float = 1.0
    c: float = 0.1
    beta: float = 0.9
    delta: float = 2.0
    reset: int | str = 1
    decay: float = 0.0
    clip: float = np.inf
    accept: str = "surrogate_armijo"
    slack: float = 0.0

    def falls_enough(self, change: float, eta: float, g: Vector, h: Vector) -> bool:
        gg, hh, c, b = g @ g, h @ h, self.c, self.slack
        both = (g + h) @ (g + h)
        return bool(
            change
            <= {
                "surrogate_armijo": eta * (h @ (g + h)) - c * eta * both,
                "original": -eta / 2 * gg + eta / 2 * hh - c * eta / 2 * both,
                "grad_control": -(1 - c) * eta / 2 * gg + (2 + c) * eta / 4 * hh,
                "no_control_reward": -eta / 2 * gg - c * eta / 2 * both,
                "drift_slack": -c * eta * gg + b * eta * hh,
                "quadratic_drift_slack": -c * eta * gg + b / 2 * eta**2 * hh,
            }[self.accept]
        )

    def __call__(
        self, value: Callable, gradient: Callable, w: Vector, batches: list, b: int, n: int, h: Any = None
    ) -> Work:
        y, eta, evaluations, rate_sum = w, self.eta_max, 0, 0.0
        h = np.zeros_like(w) if h is None else h
        for k, rows in enumerate(batches):

            def objective(y: Vector, rows: Vector = rows) -> float:
                return value(y, rows) + self.decay / 2 * (y @ y)

            f, g = objective(y), gradient(y, rows) + self.decay * y
            g = g * min(1.0, self.clip / max(np.linalg.norm(g), 1e-30))
            if np.linalg.norm(g + h) < 1e-8:
                continue
            grown = {0: eta, 1: self.eta_max, 2: min(eta * self.delta ** (b / n), self.eta_max)}
            trial = eta * self.delta ** (1 / 500) if self.reset == "code" else grown[self.reset]
            if k == 0 and self.reset != "code":
                trial = self.eta_max
            for _ in range(100):
                evaluations += 1
                if self.falls_enough(objective(y - trial * (g + h)) - f, trial, g, h):
                    break
                trial *= self.beta
            else:
                trial = 1e-6
            eta = trial
            y = y - eta * (g + h)
            rate_sum += eta
        return Work(y, value(w, None), eta=eta, evaluations=evaluations, rate_sum=rate_sum)


def searching(fed: Any, search: ArmijoSGD, mu: float = 0.0) -> Callable:
    """Line-searched clients, on f_i + (mu/2) |y - w|^2."""

    def client(t: int, i: int, w: Vector) -> Work:
        def value(y: Vector, rows: Vector | None) -> float:
            return fed.loss(i, y, rows) + mu / 2 * (y - w) @ (y - w)

        def gradient(y: Vector, rows: Vector) -> Vector:
            return fed.gradient(i, y, rows) + mu * (y - w)

        return search(value, gradient, w, fed.minibatches(t, i), min(fed.batch, fed.size(i)), fed.size(i))

    return client


def with_search_log(server: Callable) -> Callable:
    """The server's log, and what it hears of line searches: the largest last step, the mean count."""

    def step(w: Vector, works: list[Work], p: Vector, t: int) -> tuple[Vector, dict]:
        new, log = server(w, works, p, t)
        counts = [work.evaluations for work in works]
        return new, log | {
            "client_step": max(work.eta for work in works),
            "loss_evaluations": sum(counts) / len(counts),
        }

    return step


def displaced(rule: Callable) -> Callable:
    """A rule of `server_rules` as a server here."""

    def step(w: Vector, works: list[Work], p: Vector, t: int) -> tuple[Vector, dict]:
        D = mean(p, [work.y - w for work in works])
        spread = mean(p, [(work.y - w) @ (work.y - w) for work in works])
        new, eta = rule(w, D, spread, len(works), t)
        return new, {"server_lr": eta}

    return step


def largest_step(w: Vector, works: list[Work], p: Vector, t: int) -> tuple[Vector, dict]:
    """FedLi's StepSizeSync for losses that are not convex."""
    eta = max(work.eta for work in works)
    return w - eta * mean(p, [w - work.y for work in works]), {"server_lr": eta}


class LinearUpdate:
    """FedLiLU's server (Algorithm 2, with Deep Frank-Wolfe's gamma and Nesterov momentum)."""

    def __init__(
        self, eta: Any, lam: float, mu: float, eps: float, where: str = "end", average: str = "same"
    ) -> None:
        self.eta, self.lam, self.mu, self.eps, self.where, self.average = eta, lam, mu, eps, where, average
        self.z = 0.0

    def __call__(self, w: Vector, works: list[Work], p: Vector, t: int) -> tuple[Vector, dict]:
        eta = self.eta(t) if callable(self.eta) else self.eta
        losses = [getattr(work, self.where) for work in works]
        n = [work.examples for work in works]
        f = {"same": mean(p, losses), "plain": np.mean(losses), "examples": np.dot(n, losses) / sum(n)}[
            self.average
        ]
        delta, r = mean(p, [w - work.y for work in works]), self.lam * w
        gamma = min(1.0, max(0.0, (f - eta * (delta @ r)) / (eta * (delta @ delta) + self.eps)))
        w = w - eta * (r + gamma * delta)
        self.z = self.mu * self.z - eta * gamma * (delta + r)
        return w + self.mu * self.z, {"gamma": gamma, "f": f, "server_lr": eta * gamma}


def diversity(w: Vector, works: list[Work], p: Vector, t: int) -> tuple[Vector, dict]:
    """GraDS: the mean squared displacement over the squared mean displacement."""
    D = mean(p, [work.y - w for work in works])
    alpha = mean(p, [(work.y - w) @ (work.y - w) for work in works]) / (D @ D)
    return w + alpha * D, {"server_lr": alpha}


def envelope_polyak(gamma: float, lower: float) -> Callable:
    """StoPS: gradients of envelopes are (w - p_i) / gamma; Work.end is f_i(p_i) + |p_i - w|^2 / (2 gamma)."""

    def step(w: Vector, works: list[Work], p: Vector, t: int) -> tuple[Vector, dict]:
        envelope = mean(p, [work.end for work in works])
        gradient = mean(p, [(w - work.y) / gamma for work in works])
        polyak = max(envelope - lower, 0.0) / (gradient @ gradient)  # the step along the envelopes' gradient
        return w - polyak * gradient, {"server_lr": polyak / gamma, "f": envelope}

    return step


def polyak(f_star: float) -> Callable:
    """Polyak's step on G = mean of tau_i f_i, of which the displacements are minus the gradient."""

    def step(w: Vector, works: list[Work], p: Vector, t: int) -> tuple[Vector, dict]:
        gradient = mean(p, [w - work.y for work in works])
        above = mean(p, [work.rate_sum * work.start for work in works])
        above -= mean(p, [work.rate_sum * f_star for work in works])
        eta = max(above, 0.0) / (gradient @ gradient)
        return w - eta * gradient, {"server_lr": eta, "f": mean(p, [work.start for work in works])}

    return step
