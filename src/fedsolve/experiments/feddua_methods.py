"""The eight methods of the FedDuA paper, their grids, and the iterate by which each is judged."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import jax

import fedsolve as fs
from fedsolve.algorithm import Algorithm, Cohort
from fedsolve.types import Params, module
from fedsolve.wrappers.base import Wrapper


def decades(first: float, last: float, step: float = 0.5) -> tuple[float, ...]:
    """Powers of ten from 10^first to 10^last.

    >>> decades(-1, 0)
    (0.1, 0.31622776601683794, 1.0)
    """
    return tuple(float(10 ** (first + k * step)) for k in range(round((last - first) / step) + 1))


CLIENT_LR = decades(-3, -1)
AVERAGING_LR = decades(-1, 1)
ADAPTIVE_LR = decades(-2, 0)


@module
class TwoServer:
    """The inner server, and the model before its last update."""

    inner: Any
    previous: Params


@module
class MeanOfTwo(Wrapper):
    """Any method, judged at the mean of its last two iterates; it never trains from that."""

    title: ClassVar[str] = "MeanOfTwo"
    inner: Algorithm

    def init(self, params: Params) -> TwoServer:
        """The inner server; both iterates are the start."""
        return TwoServer(self.inner.init(params), params)

    def broadcast(self, server: TwoServer, cohort: Cohort) -> Any:
        """The inner broadcast."""
        return self.inner.broadcast(server.inner, cohort)

    def update(self, server: TwoServer, message: Any, cohort: Cohort) -> TwoServer:
        """The inner update, and the model before it."""
        return TwoServer(self.inner.update(server.inner, message, cohort), self.inner.export(server.inner))

    def export(self, server: TwoServer) -> Params:
        """(w_t + w_{t-1}) / 2."""
        last = self.inner.export(server.inner)
        return jax.tree.map(lambda a, b: (a + (b - a) / 2).astype(a.dtype), last, server.previous)


@dataclass(frozen=True)
class Method:
    """One method of the study.

    Attributes:
        build: the method, from the axes of its grid (and `eps_g`, `eps` where it has them).
        server_lr: the grid of eta_g; None where the method has no server rate to tune.
        averaged: whether it is judged at the mean of its last two iterates.
        momentum: whether the server has momentum: which panel of the paper's Figure 1 shows it.
    """

    build: Callable[..., Algorithm]
    server_lr: tuple[float, ...] | None
    averaged: bool
    momentum: bool

    @property
    def grid(self) -> dict[str, tuple[float, ...]]:
        """The paper's grid."""
        return {"client_lr": CLIENT_LR} | ({"server_lr": self.server_lr} if self.server_lr else {})

    def judged(self, **settings: Any) -> Algorithm:
        """The method, exporting the iterate by which it is judged."""
        algorithm = self.build(**settings)
        return MeanOfTwo(algorithm) if self.averaged else algorithm


def _du(build: Callable[..., Algorithm]) -> Callable[..., Algorithm]:
    """FedDuA as on the synthetic problem: eps = 0 unless it is varied."""
    return lambda client_lr, eps_g=0.0, eps=0.0: build(client_lr, eps_g=eps_g, eps=eps)


def _opt(build: Callable[..., Algorithm]) -> Callable[..., Algorithm]:
    """FedOpt as the paper runs it on the synthetic problem: tau is its epsilon, 0."""
    return lambda client_lr, server_lr, tau=0.0: build(client_lr, server_lr=server_lr, tau=tau)


METHODS: Mapping[str, Method] = {
    "FedAvg": Method(fs.FedAvg, AVERAGING_LR, False, False),
    "FedExP": Method(lambda client_lr, eps_g=0.0: fs.FedExP(client_lr, eps_g=eps_g), None, True, False),
    "FedAdagrad": Method(_opt(fs.FedAdagrad), ADAPTIVE_LR, False, False),
    "FedDuAdagrad": Method(_du(fs.FedDuAdagrad), None, True, False),
    "FedAvgM": Method(fs.FedAvgM, AVERAGING_LR, False, True),
    "FedExPM": Method(lambda client_lr, eps_g=0.0: fs.FedExPM(client_lr, eps_g=eps_g), None, True, True),
    "FedAdam": Method(_opt(fs.FedAdam), ADAPTIVE_LR, False, True),
    "FedDuAdam": Method(_du(fs.FedDuAdam), None, True, True),
}  # fmt: skip
"""By name, those without server momentum first (the upper panel of Figure 1)."""
OURS = ("FedDuAdagrad", "FedDuAdam")


def family(momentum: bool) -> tuple[str, ...]:
    """The methods of one panel of Figure 1, FedDuA last."""
    return tuple(name for name, method in METHODS.items() if method.momentum == momentum)
