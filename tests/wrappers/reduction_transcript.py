"""The papers' reductions in NumPy, written from the papers alone: (vectors (n, d), shares p (n,)) -> vector (d,)."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from itertools import combinations
from typing import Any

import numpy as np

from equations.transcript import Federation, LocalSGD, Vector, shares

Reduce = Callable[[np.ndarray, np.ndarray], np.ndarray]


def median(vectors: np.ndarray, p: np.ndarray) -> np.ndarray:
    """Yin et al. 2018, Definition 1."""
    return np.median(vectors, axis=0)


def trimmed(trim: float) -> Reduce:
    """Yin et al. 2018, Definition 2: each coordinate without its floor(trim n) largest and smallest values."""

    def reduce(vectors: np.ndarray, p: np.ndarray) -> np.ndarray:
        cut = math.floor(Fraction(str(trim)) * len(vectors))
        return np.array([np.mean(sorted(column)[cut : len(column) - cut]) for column in vectors.T])

    return reduce


def geometric_median(iterations: int, nu: float) -> Reduce:
    """Pillutla et al. 2022, Algorithm 2, from the coordinate-wise median."""

    def reduce(vectors: np.ndarray, p: np.ndarray) -> np.ndarray:
        v = np.median(vectors, axis=0)
        for _ in range(iterations):
            beta = [q / max(nu, float(np.linalg.norm(x - v))) for q, x in zip(p, vectors, strict=True)]
            v = np.array(beta) @ vectors / sum(beta)
        return v

    return reduce


def multi_krum(attackers: int, keep: int) -> Reduce:
    """Blanchard et al. 2017: the score of i is the least sum of squared distances to n - f - 2 others.

    Equal scores (two that are each other's nearest) go by length, as fedsolve has it; the paper leaves it open.
    """

    def reduce(vectors: np.ndarray, p: np.ndarray) -> np.ndarray:
        scores = krum_scores(vectors, attackers)
        key = [(score, float(np.linalg.norm(x))) for score, x in zip(scores, vectors, strict=True)]
        return np.mean([vectors[i] for i in sorted(range(len(vectors)), key=key.__getitem__)[:keep]], axis=0)

    return reduce


def krum_scores(vectors: np.ndarray, attackers: int) -> list[float]:
    """By brute force: over all sets of so many neighbours."""
    neighbours = max(1, len(vectors) - attackers - 2)
    found = []
    for i, x in enumerate(vectors):
        others = [float(np.sum((x - y) ** 2)) for j, y in enumerate(vectors) if j != i]
        found.append(min((sum(some) for some in combinations(others, neighbours)), default=0.0))
    return found


def clipped(bound: float | None) -> Reduce:
    """The mean of vectors no longer than the bound, which is their median length if None."""

    def reduce(vectors: np.ndarray, p: np.ndarray) -> np.ndarray:
        lengths = np.linalg.norm(vectors, axis=1)
        most = np.median(lengths) if bound is None else bound
        return (p * np.minimum(1.0, most / lengths)) @ vectors

    return reduce


def centred(radius: float | None, iterations: int) -> Reduce:
    """Karimireddy et al. 2021, centred clipping, from the coordinate-wise median; None is the median distance."""

    def reduce(vectors: np.ndarray, p: np.ndarray) -> np.ndarray:
        v = np.median(vectors, axis=0)
        for _ in range(iterations):
            apart = [float(np.linalg.norm(x - v)) for x in vectors]
            most = float(np.median(apart)) if radius is None else radius
            factors = [1.0 if far <= most else most / far for far in apart]
            v = v + sum(q * f * (x - v) for q, f, x in zip(p, factors, vectors, strict=True))
        return v

    return reduce


def robust(
    fed: Federation,
    w: Vector,
    local: LocalSGD,
    rule: Any,
    weighting: str,
    reduce: Reduce,
    of_scalars: Reduce = median,
    fewest: int = 1,
    attack: Callable[[np.ndarray, np.ndarray], np.ndarray] = lambda cohort, vectors: vectors,
) -> np.ndarray:
    """Algorithm 1 of Reddi et al. with another reduction; |D_i|^2, which rules ask for, is reduced by `of_scalars`.

    Cohorts of less than `fewest` leave w. `attack` makes of a cohort's numbers and displacements, one a row, what
    is sent.
    """
    iterates = [w]
    for t, cohort in enumerate(fed.cohorts):
        if len(cohort) >= fewest:
            honest = [local(fed, t, i, w) - w for i in cohort]
            vectors = attack(np.array(cohort), np.stack(honest))
            p = shares(fed, cohort, weighting)
            spread = of_scalars(np.array([[d @ d] for d in honest]), p)[0]
            w, _ = rule(w, reduce(vectors, p), spread, len(cohort), t)
        iterates.append(w)
    return np.stack(iterates)
