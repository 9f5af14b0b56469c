"""The league's methods, their defaults, and the ranges that the other settings are drawn from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fedsolve.algorithm import Algorithm
from fedsolve.building import build
from fedsolve.studies import Method
from fedsolve.studies.budgets import drawn

BUDGETS = (1, 3, 10, 30)
RANGES = {"client_lr": (1e-4, 10.0), "eta_max": (1e-4, 10.0), "server_lr": (1e-3, 10.0), "mu": (1e-3, 1.0)}
"""Log-uniform. A client's rate has one range whatever it is called; 1e-4 is what LASSO's data need."""
DEFAULTS: dict[str, Mapping[str, float]] = {
    "FedAvg": {"client_lr": 0.1},
    "FedProx": {"client_lr": 0.1, "mu": 0.1},
    "SCAFFOLD": {"client_lr": 0.1},
    "FedAdam": {"client_lr": 0.1, "server_lr": 0.1},
    "FedExP": {"client_lr": 0.1},
    "FedDuAdam": {"client_lr": 0.1},
    "FedLiLS": {"eta_max": 1.0},
}
"""What each method has to tune, at its documented default."""


def _maker(name: str) -> Callable[..., Algorithm]:
    def make(**axis: tuple[float, ...]) -> Algorithm:
        ((names, values),) = axis.items()
        settings: dict[str, Any] = dict(zip(names.split(", "), values, strict=True))
        return build(name, {"weighting": "examples", **settings})

    return make


def _method(name: str) -> Method:
    axis = drawn(DEFAULTS[name], RANGES, BUDGETS[-1])
    return Method(_maker(name), {names: values[0] for names, values in axis.items()}, axis)


METHODS = {name: _method(name) for name in DEFAULTS}
