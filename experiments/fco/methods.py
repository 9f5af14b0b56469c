"""What the composite studies share: the methods and rates of Yuan et al. 2021, the centralised solution beside them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Array

import fedsolve as fs
from fedsolve.geometry import Blocks
from fedsolve.studies import Method
from fedsolve.studies.public import module

PAPER_GRID = {
    "client_lr": (1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0),
    "server_lr": (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0),
}
"""The paper's 49 pairs of rates."""
GRID = PAPER_GRID | {"client_lr": (1e-4, 3e-4, *PAPER_GRID["client_lr"])}
"""With two smaller client rates, which its synthetic data as described need."""

Builder = Callable[[Any, float, float], fs.Algorithm]
METHODS: dict[str, Builder] = {
    "FedDualAvg": lambda psi, c, s: fs.FedDualAvg(psi, c, server_lr=s),
    "FedDualAvgOSP": lambda psi, c, s: fs.FedDualAvgOSP(psi, c, server_lr=s),
    "FedMiD": lambda psi, c, s: fs.FedMiD(psi, c, server_lr=s),
    "FedMiDOSP": lambda psi, c, s: fs.FedMiDOSP(psi, c, server_lr=s),
    "Subgradient": lambda psi, c, s: fs.Subgradient(fs.FedAvg(c, server_lr=s), psi),
}
"""From a penalty or set, client rate and server rate: the paper's four methods, and FedAvg with subgradients."""
OTHERS = ("FedDualAvgOSP", "FedMiD", "FedMiDOSP")
"""What the paper's figures of synthetic data compare FedDualAvg with."""
CENTRAL = "centralised"
"""What the columns of the centralised solution begin with."""


def method(build: Builder, psi: Blocks, grid: Mapping[str, tuple[float, ...]] = GRID) -> Method:
    """A method under a penalty or in a set, over a grid of rates."""
    return Method(lambda client_lr, server_lr: build(psi, client_lr, server_lr), grid=grid)


@module
class Known(fs.diagnostics.Diagnostic):
    """Numbers that are the same at every model: what the centralised solution has."""

    numbers: dict[str, Any]

    def __call__(self, point: fs.diagnostics.Point) -> dict[str, Array]:
        """As they were given."""
        return dict(self.numbers)


def solved(task: fs.Task, psi: Blocks, iterations: int = 500, tolerance: float = 1e-7) -> dict[str, Array]:
    """The task's diagnostics at its centralised solution, by FISTA."""
    best = fs.baselines.fista(task, psi, iterations=iterations, tolerance=tolerance)
    point = fs.diagnostics.Point(best.params, np.float32(best.value - float(psi.value(best.params))), None)
    return {name: x for measure in task.diagnostics for name, x in measure(point).items()}


def beside(task: fs.Task, known: Mapping[str, Mapping[str, Any]]) -> fs.Task:
    """The task with numbers of other solutions among its columns, under their names: `centralised_density`."""
    numbers = {f"{name}_{key}": np.float32(x) for name, one in known.items() for key, x in one.items()}
    return replace(task, diagnostics=(*task.diagnostics, Known(numbers)))
