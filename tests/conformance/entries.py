"""The methods under test: every row of the catalogue, and compositions that exercise what rows do not."""

from __future__ import annotations

import optax

import fedsolve as fs
from fedsolve.algorithms.catalogue import ALGORITHMS
from fedsolve.geometry import PNorm

CLIENT_LR = 0.3
COMPOSED = {
    "SCAFFOLD+FedDuAdam": lambda lr: fs.build("SCAFFOLD+FedDuAdam", {"client_lr": lr}),
    "FedProx+FedAdam": lambda lr: fs.build("FedProx+FedAdam", {"client_lr": lr}),
    "optax": lambda lr: fs.FedOpt(
        fs.local.Optax(optax.adam, learning_rate=lr), fs.rules.Optax(optax.adam, learning_rate=0.1)
    ),
    "FedDuA(PNorm)": lambda lr: fs.FedDuA(PNorm(1.5), lr),
}
METHODS = {name: (lambda lr, name=name: fs.build(name, {"client_lr": lr})) for name in ALGORITHMS} | COMPOSED
