"""The league's methods, their defaults, and the ranges that the other settings are drawn from."""

from __future__ import annotations

from collections.abc import Mapping

from fedsolve.building import build
from fedsolve.studies import Method
from fedsolve.studies.budgets import budgeted

BUDGETS = (1, 3, 10, 30)
RANGES = {
    "client_lr": (1e-4, 10.0),
    "eta_max": (1e-4, 10.0),
    "server_lr": (1e-3, 10.0),
    "mu": (1e-3, 1.0),
    "gamma": (0.1, 1e3),
    "alpha": (1e-3, 1.0),
}
"""Log-uniform. A client's rate has one range whatever it is called; 1e-4 is what LASSO's data need."""
DEFAULTS: dict[str, Mapping[str, float]] = {
    "FedAvg": {"client_lr": 0.1},
    "FedAvgM": {"client_lr": 0.1, "server_lr": 1.0},
    "FedProx": {"client_lr": 0.1, "mu": 0.1},
    "SCAFFOLD": {"client_lr": 0.1},
    "FedDyn": {"client_lr": 0.1, "alpha": 0.01},
    "FedAdagrad": {"client_lr": 0.1, "server_lr": 0.1},
    "FedAdam": {"client_lr": 0.1, "server_lr": 0.1},
    "FedYogi": {"client_lr": 0.1, "server_lr": 0.1},
    "FedExP": {"client_lr": 0.1},
    "FedExPM": {"client_lr": 0.1},
    "FedDuAdagrad": {"client_lr": 0.1},
    "FedDuAdam": {"client_lr": 0.1},
    "FedExProx": {"client_lr": 0.1, "gamma": 1.0},
    "DiLoCo": {"client_lr": 4e-4, "server_lr": 0.7},
    "FedLiLS": {"eta_max": 1.0},
    "FedLiLU": {"client_lr": 0.1, "server_lr": 1.0},
}
"""What each method has to tune, at its documented default."""
ALIKE = ("FedDyn",)
"""Whose clients all count alike, whatever they hold."""


def _method(name: str) -> Method:
    weighting = {} if name in ALIKE else {"weighting": "examples"}
    return budgeted(lambda **axes: build(name, weighting | axes), DEFAULTS[name], RANGES, BUDGETS[-1])


METHODS = {name: _method(name) for name in DEFAULTS}
