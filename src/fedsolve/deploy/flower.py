"""Flower's client and server apps for any method, and oracles for clients: `fedsolve.flower` (`fedsolve[flower]`).

server = fs.flower.server_app(fs.FedDuAdam(client_lr=0.1), params, rounds=20, population=3)
client = fs.flower.client_app(lambda node: fs.flower.TorchOracle(module, loss, loader_of(node.client)))
"""

from __future__ import annotations

import importlib
import importlib.metadata
from typing import TYPE_CHECKING, Any

from fedsolve.core.errors import InvalidInput

if TYPE_CHECKING:
    from fedsolve.deploy.client.app import client_app as client_app
    from fedsolve.deploy.oracles.command import CommandLoop as CommandLoop
    from fedsolve.deploy.oracles.jax import JaxOracle as JaxOracle
    from fedsolve.deploy.oracles.node_oracle import NodeContext as NodeContext
    from fedsolve.deploy.oracles.sklearn import SklearnOracle as SklearnOracle
    from fedsolve.deploy.oracles.torch import TorchOracle as TorchOracle
    from fedsolve.deploy.oracles.trained import TrainedClient as TrainedClient
    from fedsolve.deploy.oracles.trained import TrainingRound as TrainingRound
    from fedsolve.deploy.oracles.trainers import HuggingFaceLoop as HuggingFaceLoop
    from fedsolve.deploy.oracles.trainers import LightningLoop as LightningLoop
    from fedsolve.deploy.server.server import server_app as server_app

OLDEST, BELOW = (1, 41), (2, 0)
"""Versions of Flower: from (the one that was tested), up to but not including. Only its stable interface is used."""

_HOMES = {
    "NodeContext": "oracles.node_oracle:NodeContext",
    "client_app": "client.app:client_app",
    "server_app": "server.server:server_app",
    "CommandLoop": "oracles.command:CommandLoop",
    "HuggingFaceLoop": "oracles.trainers:HuggingFaceLoop",
    "JaxOracle": "oracles.jax:JaxOracle",
    "LightningLoop": "oracles.trainers:LightningLoop",
    "SklearnOracle": "oracles.sklearn:SklearnOracle",
    "sklearn_assign": "oracles.sklearn:assign",
    "sklearn_parameters": "oracles.sklearn:parameters",
    "TorchOracle": "oracles.torch:TorchOracle",
    "torch_assign": "oracles.torch:assign",
    "torch_buffers": "oracles.torch:buffers",
    "torch_parameters": "oracles.torch:parameters",
    "TrainedClient": "oracles.trained:TrainedClient",
    "TrainingRound": "oracles.trained:TrainingRound",
    "trained_assign": "oracles.trained:assign",
    "trained_parameters": "oracles.trained:parameters",
}

__all__ = sorted(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll]


def check_flower() -> None:
    """Raise `InvalidInput` unless a supported Flower is installed."""
    try:
        version = importlib.metadata.version("flwr")
    except importlib.metadata.PackageNotFoundError:
        raise InvalidInput('Flower is not installed: pip install "fedsolve[flower]"') from None
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if not OLDEST <= numbers < BELOW:
        raise InvalidInput(
            f"Flower {version} is installed, fedsolve works with {'.'.join(map(str, OLDEST))} up to, not "
            f'including, {".".join(map(str, BELOW))}: pip install "fedsolve[flower]"'
        )


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'fedsolve.flower' has no attribute '{name}'")
    home, _, attribute = _HOMES[name].partition(":")
    if not home.startswith("oracles"):
        check_flower()
    value = getattr(importlib.import_module(f"fedsolve.deploy.{home}"), attribute)
    globals()[name] = value
    return value
