"""The methods of two papers' tables with the papers' best rates: Reddi et al. 2021 and Takakura et al. 2025."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import fedsolve as fs
from experiments.feddua.methods import making
from fedsolve.studies import Method

Pairs = Mapping[str, tuple[float, float]]
Triples = Mapping[str, tuple[float, float, float | None]]

_ADAPTIVE = {"FedAdagrad": fs.FedAdagrad, "FedAdam": fs.FedAdam, "FedYogi": fs.FedYogi}
_PLAIN = {"FedAvg": fs.FedAvg, "FedAvgM": fs.FedAvgM}
_DOUBLY = {name: getattr(fs, name) for name in ("FedExP", "FedExPM", "FedDuAdagrad", "FedDuAdam")}
DECAY = 0.998
"""Of the clients' rate a round, in the image tasks of Takakura et al."""
IMAGE_EXTRAS: Mapping[str, Any] = {"weight_decay": 1e-4, "clip_norm": 10.0}
"""Their other extras there; the norm is that of FedExP's public code, the paper gives none."""


def around(exponent: float) -> tuple[float, ...]:
    """10^exponent between its neighbours half a decade away.

    >>> [round(rate, 4) for rate in around(-1)]
    [0.0316, 0.1, 0.3162]
    """
    return tuple(10.0 ** (exponent + step) for step in (-0.5, 0.0, 0.5))


def of_fedopt(best: Triples, **client: Any) -> dict[str, Method]:
    """FedOpt's methods: the best log10 client rate, server rate and tau (None where there is none) of each.

    Clients count by their examples, FedAvgM's momentum is 0.9, Adam's and Yogi's decays are 0.9 and 0.99. The sweep is
    over the client rate, half a decade to either side.

    Args:
        best: method -> exponents of ten, as the documentation of the paper's code has them.
        **client: of the clients' SGD, such as `weight_decay`.
    """
    methods = {}
    for name, (client_lr, server_lr, tau) in best.items():
        second = {"server_lr": 10.0**server_lr} | ({} if tau is None else {"tau": 10.0**tau})
        methods[name] = _method(making((_ADAPTIVE | _PLAIN)[name], client, False), client_lr, second)
    return methods


def of_feddua(best: Pairs, decay: float = 1.0, **client: Any) -> dict[str, Method]:
    """FedDuA's methods: the best log10 client rate and second number (server rate, or eps_g) of each (Table 6).

    Clients count alike; eps is 1e-9, also as FedAdagrad's and FedAdam's tau. The FedExP family and FedDuA are judged at
    the mean of their last two iterates, as in FedExP's code. The sweep is over the client rate, half a decade to
    either side.

    Args:
        best: method -> exponents of ten.
        decay: of the clients' rate, a round.
        **client: of the clients' SGD, such as `weight_decay`.
    """
    client = {"weighting": "uniform", **client}
    methods = {}
    for name, (client_lr, second) in best.items():
        doubly, more = name in _DOUBLY, {"tau": 1e-9} if name in _ADAPTIVE else {}
        make = making((_ADAPTIVE | _PLAIN | _DOUBLY)[name], {**client, **more}, doubly, decay)
        methods[name] = _method(make, client_lr, {"eps_g" if doubly else "server_lr": 10.0**second})
    return methods


def untuned(methods: Mapping[str, Method]) -> dict[str, Method]:
    """The same at the paper's rates alone."""
    return {name: replace(method, grid={}) for name, method in methods.items()}


def _method(make: Callable[..., fs.Algorithm], client_lr: float, second: Mapping[str, float]) -> Method:
    rates = around(client_lr)
    grid = {"client_lr": rates} | {axis: (value,) for axis, value in second.items()}
    return Method(make, {"client_lr": rates[1], **second}, grid)
