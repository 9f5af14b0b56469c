"""Server steps on plain local steps and with control variates, by the corrected or the clients' own gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import fedsolve as fs
from experiments.client_drift.control_variates.problems import ALL, RATES
from fedsolve import client, server
from fedsolve.studies import Method

CAPS = {"FedExP": 3.0, "FedDuAdagrad": 10.0}
"""Of the step by the clients' own gradients, in units of the plain step; chosen on two other data sets."""
FREE = 1e9
PRECONDITIONER: dict[str, Literal["identity", "adagrad"]] = {"FedExP": "identity", "FedDuAdagrad": "adagrad"}


def corrected(step: str) -> str:
    """A server step with control variates.

    >>> corrected("FedExP"), own("FedExP"), own("FedExP", capped=False)
    ('SCAFFOLD+FedExP', 'SCAFFOLD+FedExP, own gradients', 'SCAFFOLD+FedExP, own gradients, no cap')
    """
    return f"SCAFFOLD+{step}"


def own(step: str, capped: bool = True) -> str:
    """The same, its length from the clients' own gradients."""
    return f"{corrected(step)}, own gradients{'' if capped else ', no cap'}"


def making(
    step: str | None, with_variates: bool, most: float | None = None, clip_norm: float | None = None
) -> Callable[[float], fs.Algorithm]:
    """From a client rate to FedAvg or a server step, on plain local steps or with control variates.

    `most` is the cap of the step by the clients' own gradients, None for the step by the corrected ones.
    """

    def make(client_lr: float) -> fs.Algorithm:
        if step is None:
            optimizer: fs.server.ServerOptimizer = server.ServerSGD(1.0)
        else:
            optimizer = server.DoublyAdaptive(preconditioner=PRECONDITIONER[step], uncorrected=most)
        made = fs.FedOpt(
            client.SGD(client_lr, clip_norm=clip_norm), optimizer, weighting="uniform", name=step or "FedAvg"
        )
        return fs.ControlVariates(made) if with_variates else made

    return make


def by_rate(problem: str) -> dict[str, Method]:
    """The methods of a problem over its client rates; without a cap where not all clients take part."""
    made = {"SCAFFOLD": making(None, True)}
    for step, cap in CAPS.items():
        made |= {
            step: making(step, False),
            corrected(step): making(step, True),
            own(step): making(step, True, cap),
        }
    if ALL not in problem:
        made[own("FedExP", capped=False)] = making("FedExP", True, FREE)
    rates = next(values for kind, values in RATES.items() if problem.startswith(kind))
    return {name: Method(made[name], grid={"client_lr": rates}) for name in made}
