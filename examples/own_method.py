"""A server optimiser of one's own, in twenty lines: a step that the momentum's own agreement makes longer or shorter.

Run it: python examples/own_method.py
It needs nothing else to run in sweeps, inside SCAFFOLD or FedProx, on Flower, and from the command line in this folder:
fedsolve run digits own_method:Careful
"""

from typing import Any

import jax.numpy as jnp

import fedsolve as fs
from fedsolve.core import trees
from fedsolve.core.algorithm import Cohort
from fedsolve.core.types import Params, Scalar, module, reported
from fedsolve.methods.server.server_optimizer import ServerOptimizer


@module
class CarefulState:
    """Running mean of the client updates, and the last step."""

    mean: Params
    server_lr: Scalar = reported()


@module
class Agreement(ServerOptimizer):
    """m <- b m + (1 - b) D;  w <- w + lr (1 + cos(m, D)) / 2 D: where D points away from the past, a short step."""

    lr: Scalar = 1.0
    beta: Scalar = 0.9

    def init(self, params: Params) -> CarefulState:
        """Nothing is known yet."""
        return CarefulState(trees.zeros_like(params), jnp.zeros((), trees.dtype_of(params)))

    def step(
        self, params: Params, state: Any, delta: Params, measured: Any, cohort: Cohort
    ) -> tuple[Params, CarefulState]:
        """The server's step."""
        mean = trees.axpy(self.beta, state.mean, trees.scale(1 - self.beta, delta))
        lengths = jnp.sqrt(trees.squared_norm(mean) * trees.squared_norm(delta))
        cosine = trees.dot(mean, delta) / jnp.where(lengths > 0, lengths, 1)
        rate = (self.lr * (1 + cosine) / 2).astype(state.server_lr.dtype)
        return trees.axpy(rate, delta, params), CarefulState(mean, rate)


def Careful(client_lr: float = 0.1, *, server_lr: float = 1.0, beta: float = 0.9) -> fs.FedOpt:
    """Local SGD with that server; `FedOpt` puts any client solver and any server optimiser together."""
    return fs.FedOpt(fs.client.SGD(client_lr), Agreement(server_lr, beta))


if __name__ == "__main__":
    methods = {
        "FedAvg": fs.FedAvg(0.3),
        "Careful": Careful(0.3),
        "SCAFFOLD + Careful": fs.ControlVariates(Careful(0.3)),
    }
    found = fs.compare(methods, fs.tasks.digits(), seeds=3, rounds=60, clients_per_round=20)
    for name, accuracies in found.final("test_accuracy").items():
        print(f"{name:20} {100 * accuracies.mean():.1f} ± {100 * accuracies.std(ddof=1):.1f} %")
