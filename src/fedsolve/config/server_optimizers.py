"""Server optimisers by name, as a configuration writes them: those made of numbers that go with any client solver."""

from __future__ import annotations

from typing import Any

from fedsolve.geometry.by_name import build_part
from fedsolve.methods.server.adaptive import Adaptive
from fedsolve.methods.server.dua import DoublyAdaptive
from fedsolve.methods.server.server_optimizer import ServerOptimizer
from fedsolve.methods.server.sgd import ServerSGD

SERVER_OPTIMIZERS = {cls.__name__: cls for cls in (ServerSGD, Adaptive, DoublyAdaptive)}
"""By class name: FedAvg's, FedAvgM's and Nesterov's; FedAdam's family; FedExP's and FedDuAdam's."""


def build_server_optimizer(where: str, value: Any) -> ServerOptimizer:
    """A server optimiser from its name, or from a table with `name` and its parameters.

    Raises:
        InvalidInput: an unknown name or parameter (the nearest match is named), a missing one, a bad value.

    >>> build_server_optimizer("server_optimizer", {"name": "Adaptive", "lr": 0.01, "second": "yogi"}).second
    'yogi'
    """
    return build_part(f"server optimiser of {where}", value, SERVER_OPTIMIZERS)
