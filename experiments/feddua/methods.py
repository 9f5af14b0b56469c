"""The FedDuA paper's synthetic problem, its eight methods with their grids, and the iterate that judges each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import jax

import fedsolve as fs
from fedsolve.studies import Method, Problem
from fedsolve.studies.public import Params, Wrapper, module


def decades(first: float, last: float, step: float = 0.5) -> tuple[float, ...]:
    """Powers of ten from 10^first to 10^last, to six digits.

    >>> decades(-1, 0)
    (0.1, 0.316228, 1.0)
    """
    return tuple(float(f"{10 ** (first + k * step):.6g}") for k in range(round((last - first) / step) + 1))


def regression(data_dir: Path | None, seed: int, **smaller: int) -> fs.Task:
    """The regression on the data of a seed."""
    return fs.tasks.build("regression", seed=seed, **smaller)


SMALL = Problem(
    "small", "4 clients of 8 examples", partial(regression, num_clients=4, examples_per_client=8, features=40),
    {"rounds": 2}, metric="train_loss", data_by_seed=True,
)  # fmt: skip
"""For the quick forms."""


@module
class TwoServer:
    """The inner server, and the model before its last update."""

    inner: Any
    previous: Params


@module
class MeanOfTwo(Wrapper):
    """Any method, judged at the mean of its last two iterates; it never trains from that."""

    title: ClassVar[str] = "MeanOfTwo"
    inner: fs.Algorithm

    def init(self, params: Params) -> TwoServer:
        """The inner server; both iterates are the start."""
        return TwoServer(self.inner.init(params), params)

    def broadcast(self, server: TwoServer, cohort: fs.Cohort) -> Any:
        """The inner broadcast."""
        return self.inner.broadcast(server.inner, cohort)

    def update(self, server: TwoServer, message: Any, cohort: fs.Cohort) -> TwoServer:
        """The inner update, and the model before it."""
        return TwoServer(self.inner.update(server.inner, message, cohort), self.inner.export(server.inner))

    def export(self, server: TwoServer) -> Params:
        """(w_t + w_{t-1}) / 2."""
        last = self.inner.export(server.inner)
        return jax.tree.map(lambda a, b: (a + (b - a) / 2).astype(a.dtype), last, server.previous)


CLIENT_LR = decades(-2, 0)
AVERAGING_LR = decades(-0.5, 1)
ADAPTIVE_LR = decades(-2, 1)
PLAIN = ("FedAvg", "FedExP", "FedAdagrad", "FedDuAdagrad")
"""Without server momentum: the upper panel of Figure 1, FedDuA last."""
MOMENTUM = ("FedAvgM", "FedExPM", "FedAdam", "FedDuAdam")
"""With it: the lower panel."""


def making(
    build: Callable[..., fs.Algorithm], others: Mapping[str, Any], averaged: bool, decay: float = 1.0
) -> Callable[..., fs.Algorithm]:
    """From a client rate and further settings by keyword to a method.

    Args:
        build: of the library.
        others: settings, unless the keywords have them.
        averaged: whether it is judged at the mean of its last two iterates, as FedExP(M) and FedDuA are.
        decay: of the client rate, a round.
    """

    def make(client_lr: float, **settings: float) -> fs.Algorithm:
        rate: Any = client_lr if decay == 1.0 else fs.schedules.Exponential(client_lr, decay)
        method = build(rate, **{**others, **settings})
        return MeanOfTwo(method) if averaged else method

    return make


MAKE = {
    "FedAvg": making(fs.FedAvg, {}, False),
    "FedExP": making(fs.FedExP, {"eps_g": 0.0}, True),
    "FedAdagrad": making(fs.FedAdagrad, {"tau": 0.0}, False),
    "FedDuAdagrad": making(fs.FedDuAdagrad, {"eps_g": 0.0, "eps": 0.0}, True),
    "FedAvgM": making(fs.FedAvgM, {}, False),
    "FedExPM": making(fs.FedExPM, {"eps_g": 0.0}, True),
    "FedAdam": making(fs.FedAdam, {"tau": 0.0}, False),
    "FedDuAdam": making(fs.FedDuAdam, {"eps_g": 0.0, "eps": 0.0}, True),
}
"""From the client rate, and server_lr, eps_g, eps or tau by keyword, to the method; those are 0 on this problem."""
_SERVER_LR = {
    "FedAvg": AVERAGING_LR,
    "FedAvgM": AVERAGING_LR,
    "FedAdagrad": ADAPTIVE_LR,
    "FedAdam": ADAPTIVE_LR,
}


def tuned(name: str, **axes: tuple[float, ...]) -> Method:
    """A method over the client rate, its server rate if it has one, and further axes."""
    server = {"server_lr": _SERVER_LR[name]} if name in _SERVER_LR else {}
    return Method(MAKE[name], grid={"client_lr": CLIENT_LR, **server, **axes})


METHODS = {name: tuned(name) for name in (*PLAIN, *MOMENTUM)}
"""By name; FedDuA and FedExP(M) have the client rate alone."""
