"""What Geetika et al. 2024 prove of FedLi-LS, in numbers: conditions, bounds, and counter-examples by hand."""

from __future__ import annotations

import numpy as np

CUBICS = ((3.0, -1.0), (-1.0, 1.0))
"""(a, b) of the two clients a x^3 + b x^2 of Remark 2."""
STATED = (0.8, 1.5)
"""Where it takes them in one local step from 1."""


def condition(c: float, eta: float, smooth: float, share: float, steps: int) -> bool:
    """Whether c and eta_max meet that of Theorems 1 and 2, with server step 1 and a share rho of clients.

    max(L eta (1 + 2 K rho) / (2 rho (2 + L eta K)), 1 / (2 rho) + eta L K / 2) < c <= 1.

    >>> condition(0.9, 0.1, 1.0, 1.0, 4), condition(1.0, 1e-9, 1.0, 0.1, 4)
    (True, False)
    """
    product = smooth * eta
    first = product * (1 + 2 * steps * share) / (2 * share * (2 + product * steps))
    return max(first, 1 / (2 * share) + product * steps / 2) < c <= 1


def constants(smooth: float, steps: int) -> dict[str, float]:
    """eta_max and c that meet the condition with all clients."""
    return {"eta_max": 0.7 / (smooth * steps), "c": 0.9}


def sublinear(smooth: float, steps: int, rounds: int, distance: float) -> float:
    """Theorem 1's bound (15) on F(mean of the iterates) - F* with all clients: |w_0 - w*|^2 / (min(R, K) T)."""
    eta, c = constants(smooth, steps).values()
    curvature = eta * smooth * steps / c
    r = eta * steps * (2 - smooth * eta / (2 * (1 - c) * c) - curvature)
    k = eta * steps * (2 - 1 / c - curvature)
    return distance / (min(r, k) * rounds)


def linear(smooth: float, steps: int, mu: float, distance: np.ndarray, rounds: np.ndarray) -> np.ndarray:
    """Theorem 2's bound (16) on |w_T - w*|^2: (1 - eta_max mu K)^(T + 1) |w_0 - w*|^2 after `rounds` T."""
    eta = constants(smooth, steps)["eta_max"]
    return (1 - eta * mu * steps) ** (rounds + 1.0) * distance


def searched(eta_max: float, c: float, beta: float, smooth: float) -> float:
    """The step that the search accepts on L x^2 / 2: the first of eta_max beta^j that is at most 2 (1 - c) / L."""
    eta = eta_max
    while eta > 2 * (1 - c) / smooth:
        eta *= beta
    return eta


def remark_2(c: float = 0.1) -> tuple[list[float], list[bool], float]:
    """Steps that lead to the stated points, whether they meet Armijo's condition, and x^3 at their mean."""
    slopes = [3 * a + 2 * b for a, b in CUBICS]
    steps = [(1 - x) / g for x, g in zip(STATED, slopes, strict=True)]
    met = [
        a * x**3 + b * x**2 <= a + b - c * eta * g * g
        for (a, b), x, eta, g in zip(CUBICS, STATED, steps, slopes, strict=True)
    ]
    return steps, met, (sum(STATED) / 2) ** 3
