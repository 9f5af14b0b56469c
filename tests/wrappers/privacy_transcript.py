"""Private federated averaging in NumPy, from McMahan et al. 2018 and Andrew et al. 2021 alone; noise comes in as data.

Nothing here is imported from fedsolve.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Vector = np.ndarray


@dataclass
class Mechanism:
    """Noise multiplier z, clip norm C, cohort m; `replace`: a client is replaced (fixed size) and not removed."""

    z: float
    clip: float
    m: float
    replace: bool = True
    gamma: float | None = None
    eta: float = 0.2
    share: float = 0.1

    def multipliers(self, scalars: int) -> tuple[float, float, float]:
        """z of the displacement and of each scalar, and sigma_b: inverse squares add up to 1/z^2."""
        left, sigma_b = 1 / self.z**2, 0.0
        if self.gamma is not None:
            sigma_b = max(self.m / 20, self.z)
            left -= 1 / (2 * sigma_b) ** 2
        if not scalars:
            return left**-0.5, math.inf, sigma_b
        return ((1 - self.share) * left) ** -0.5, (self.share * left / scalars) ** -0.5, sigma_b


def central(
    fed: Any,
    w: Vector,
    local: Any,
    rule: Any,
    how: Mechanism,
    noise: Callable[[int], tuple[Vector, float, float]],
    scalars: int,
) -> tuple[Vector, Vector]:
    """Iterates and clip norms; `noise(t)` is a standard normal vector, one for |D|^2 and one for the count."""
    iterates, norms, clip_norm = [w], [], how.clip
    z_delta, z_scalar, sigma_b = how.multipliers(scalars)
    for t, cohort in enumerate(fed.cohorts):
        vector, scalar, bit = noise(t)
        total, squares, within = np.zeros_like(w), 0.0, 0.0
        for i in cohort:
            delta = local(fed, t, i, w) - w
            length = np.linalg.norm(delta)
            within += (1.0 if length <= clip_norm else 0.0) - 0.5
            total = total + (delta if length <= clip_norm else delta * clip_norm / length)
            squares += min(length**2, clip_norm**2)
        mean = (total + z_delta * clip_norm * vector) / how.m
        spread = 0.0
        if scalars:
            radius = clip_norm**2 / 2 if how.replace else clip_norm**2
            spread = min(max((squares + z_scalar * radius * scalar) / how.m, 0.0), clip_norm**2)
        if how.gamma is not None:
            fraction = (within + sigma_b * bit) / how.m + 0.5
            clip_norm = clip_norm * math.exp(-how.eta * (fraction - how.gamma))
        w, _ = rule(w, mean, spread, len(cohort), t)
        iterates.append(w)
        norms.append(clip_norm)
    return np.stack(iterates), np.array(norms)


def local_noise(
    fed: Any,
    w: Vector,
    local: Any,
    clip_norm: float,
    z: float,
    noise: Callable[[int, int], Vector],
    rule: Any = None,
) -> Vector:
    """Clipped displacements to which each client adds z C times its own normal vector; FedAvg, or a rule of their mean
    and of the mean squared length of what was sent."""
    iterates = [w]
    for t, cohort in enumerate(fed.cohorts):
        sent = []
        for i in cohort:
            delta = local(fed, t, i, w) - w
            delta = delta * min(1.0, clip_norm / np.linalg.norm(delta))
            sent.append(delta + z * clip_norm * noise(t, i))
        mean = np.mean(sent, axis=0)
        w = w + mean if rule is None else rule(w, mean, np.mean([x @ x for x in sent]), len(cohort), t)[0]
        iterates.append(w)
    return np.stack(iterates)
