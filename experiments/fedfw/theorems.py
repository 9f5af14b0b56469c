"""What Dadras et al. 2024 prove of federated Frank-Wolfe, in numbers: the bounds of Theorems 1 to 3 with constants."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Constants:
    """Of a problem with n clients; numbers, or arrays that broadcast with rounds.

    Attributes:
        smooth: L of every f_i.
        clients: n.
        diameter: D of the set.
        dual: |Y*|, Frobenius norm of a dual solution; Y* has (grad F - grad f_i)(x*) / n in column i.
        gradient: |grad Fhat(X*)|, of the matrix with grad f_i(x*) / n in column i.
        variance: sigma^2, of a client's stochastic gradient anywhere in the set; of no matter to full batches.
        height: E of Theorem 2, the mean of f_i(x_1) less that of each least value.
    """

    smooth: Any
    clients: int
    diameter: Any
    dual: Any
    gradient: Any
    variance: Any = 0.0
    height: Any = 0.0

    @property
    def bound_of_gradients(self) -> Any:
        """G of Lemma 2: L D / sqrt(n) + |grad Fhat(X*)|."""
        return self.smooth * self.diameter / np.sqrt(self.clients) + self.gradient


def theorem_1(c: Constants, lam0: float, t: Any) -> Any:
    """(38): on F(xbar_t) - F*, all clients; xbar_1 is the start."""
    n, d = c.clients, c.diameter
    apart = c.dual + d * np.sqrt(lam0 * (c.smooth / np.sqrt(t) + n * lam0))
    surrogate = 2 * n * d**2 * (c.smooth / n / t + lam0 / np.sqrt(t))
    return surrogate + c.bound_of_gradients * 2 / (lam0 * np.sqrt(t)) * apart


def theorem_1_partial(c: Constants, lam0: float, p: float, t: Any) -> Any:
    """End of Appendix B.2: on the expectation of F(xbar_t) - F*, each client with probability p."""
    n, d, clock = c.clients, c.diameter, p * t + 2 - p
    apart = c.dual + d * np.sqrt(lam0 * (c.smooth + n * lam0))
    slow = 2 * n * d**2 * lam0 + 2 * c.bound_of_gradients / (np.sqrt(n) * lam0) * apart
    return 2 * d**2 * c.smooth / clock + slow / np.sqrt(clock)


def theorem_2(c: Constants, lam0: float, rounds: Any, p: float | None = None) -> Any:
    """(62) with (52) and (55): on the least gap of T rounds, for p with p T in place of T as in (65)."""
    n, d = c.clients, c.diameter
    clock, horizon = (rounds, rounds) if p is None else (p * rounds, p * rounds + 1)
    weight = lam0 * horizon ** (1 / 3)
    gap = (c.height + n * d**2 * lam0 / 2) / clock ** (1 / 3) + c.smooth * d**2 / 2 / clock ** (2 / 3)
    apart = c.bound_of_gradients / weight + np.sqrt(gap / weight)
    return gap + (c.bound_of_gradients + c.smooth * d) * apart


def theorem_3(c: Constants, lam0: float, t: Any) -> Any:
    """(68): on the expectation of F(xbar_t) - F*, minibatches and all clients; d_i begins as a stochastic gradient."""
    n, d = c.clients, c.diameter
    q = 16 * n * c.variance + 81 * c.smooth**2 * d**2 / n  # above 7^(2/3) sigma^2 / n, the other term
    constant = 9 ** (1 / 3) * (81 / 2 * n * d**2 * (c.smooth / n + lam0) + 9 * d * np.sqrt(q))
    apart = 2 * c.dual / (lam0 * np.sqrt(t + 7)) + 2 * np.sqrt(2 * constant / lam0) / (t + 7) ** (5 / 12)
    return constant / (t + 7) ** (1 / 3) + c.bound_of_gradients * apart
