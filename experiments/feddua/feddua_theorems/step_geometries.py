"""Distance-generating functions as formulas, and the library's FedDuA step in each of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fedsolve as fs
from fedsolve.geometry import DiagonalQuadratic, Entropy, Euclidean, PNorm

P = 1.5


@dataclass(frozen=True)
class Geometry:
    """A distance-generating function psi on vectors, as the library has it and as a formula.

    Attributes:
        step: momentum (None for none) -> the library's server optimiser.
        value: psi, over the last axis.
        forward, inverse: grad psi and its inverse, elementwise or over the last axis.
        positive: whether models must be positive.
    """

    step: Callable[[float | None], Any]
    value: Callable[[np.ndarray], np.ndarray]
    forward: Callable[[np.ndarray], np.ndarray]
    inverse: Callable[[np.ndarray], np.ndarray]
    positive: bool = False

    def divergence(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """D_psi(a | b), over the last axis."""
        return self.value(a) - self.value(b) - np.sum(self.forward(b) * (a - b), axis=-1)


def quadratic(diagonal: np.ndarray | float) -> Geometry:
    """psi(w) = (1/2) w' diag(g) w."""

    def step(momentum: float | None) -> Any:
        mirror = Euclidean() if np.isscalar(diagonal) else DiagonalQuadratic(jnp.asarray(diagonal))
        return fs.server.MirrorDescent(mirror, beta1=momentum)

    return Geometry(
        step,
        lambda w: 0.5 * np.sum(diagonal * w**2, axis=-1),
        lambda w: diagonal * w,
        lambda t: t / diagonal,
    )


def _norm(x: np.ndarray, p: float) -> np.ndarray:
    return np.sum(np.abs(x) ** p, axis=-1, keepdims=True) ** (1 / p)


def _power(x: np.ndarray, p: float) -> np.ndarray:
    return np.sign(x) * np.abs(x) ** (p - 1) * np.maximum(_norm(x, p), 1e-300) ** (2 - p)


def p_norm() -> Geometry:
    """psi(w) = (1/2) |w|_p^2."""
    return Geometry(
        lambda momentum: fs.server.MirrorDescent(PNorm(P), beta1=momentum),
        lambda w: 0.5 * _norm(w, P)[..., 0] ** 2,
        lambda w: _power(w, P),
        lambda t: _power(t, P / (P - 1)),
    )


def entropy() -> Geometry:
    """psi(w) = sum of w log w - w, on positive models."""
    return Geometry(
        lambda momentum: fs.server.MirrorDescent(Entropy(), beta1=momentum),
        lambda w: np.sum(w * np.log(w) - w, axis=-1),
        np.log,
        np.exp,
        positive=True,
    )


def geometry(name: str, features: int) -> Geometry:
    """By its name in `NAMES`."""
    if name == "Euclidean":
        return quadratic(1.0)
    if name == "diagonal":
        return quadratic(10.0 ** np.linspace(-1, 1, features))
    return p_norm() if name == "p-norm" else entropy()


@cache
def server_step(name: str, features: int, momentum: float | None) -> tuple[Any, Callable[..., Any]]:
    """The library's server optimiser and its compiled step."""
    if name in PRECONDITIONED:
        optimizer: Any = fs.server.DoublyAdaptive(preconditioner=PRECONDITIONED[name], beta1=momentum)
    else:
        optimizer = geometry(name, features).step(momentum)
    return optimizer, jax.jit(optimizer.step)


NAMES = ("Euclidean", "diagonal", "p-norm", "entropy")
PRECONDITIONED: dict[str, Any] = {"Adagrad": "adagrad", "Adam": "adam"}
"""Quadratic geometries that change from round to round, as the library calls them."""
