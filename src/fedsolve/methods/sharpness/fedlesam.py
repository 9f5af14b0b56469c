"""FedLESAM (Fan et al. 2024): sharpness-aware gradients for the price of one, moved along what the server did last."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Unpack

from fedsolve.core import trees
from fedsolve.core.building import by_name, class_by_name
from fedsolve.core.oracle import Oracle, WrappedOracle
from fedsolve.core.schedules import Rate
from fedsolve.core.types import Params, Scalar, Weighting, module
from fedsolve.methods.client.sgd import ClientOptions
from fedsolve.methods.server.sgd import FedAvg
from fedsolve.methods.sharpness.fedsam import Sharpness, of_length


@dataclass(frozen=True)
class MovedOracle(WrappedOracle):
    """Losses and gradients at y + e, with e the same for every y."""

    move: Params

    def __call__(self, params: Params, step: Scalar) -> tuple[Scalar, Params]:
        """Loss and gradient on a minibatch, at the moved model."""
        return self.inner(trees.add(params, self.move), step)

    def loss(self, params: Params, step: Scalar) -> Scalar:
        """Loss on a minibatch, at the moved model."""
        return self.inner.loss(trees.add(params, self.move), step)

    def full(self, params: Params) -> tuple[Scalar, Params]:
        """Loss and gradient on all examples, at the moved model."""
        return self.inner.full(trees.add(params, self.move))


@module
class RememberingClient:
    """The inner client, and the model that it was sent last (shapes of the model)."""

    inner: Any
    model: Params


@class_by_name("FedLESAM")
@module
class EstimatedSharpness(Sharpness):
    """FedLESAM around any method: see `FedLESAM`. Around `SCAFFOLD` and `FedDyn` it is the paper's FedLESAM-S and -D.

    Args:
        inner: the method that runs on the moved gradients.
        rho: length of the move, at least 0, in units of the parameters.

    Raises:
        InvalidInput: an `inner` that is no method or has models of its clients' own, a negative rho.
    """

    title: ClassVar[str] = "FedLESAM"
    parts: ClassVar[tuple[type, ...]] = (RememberingClient,)

    def init_client(self, broadcast: Any) -> RememberingClient:
        """The inner client, and the model of the first round."""
        return RememberingClient(self.inner.init_client(broadcast), self.model(broadcast))

    def train(
        self, broadcast: Any, client: RememberingClient, oracle: Oracle
    ) -> tuple[Any, RememberingClient]:
        """Run the inner local work on gradients that are moved back towards the last model."""
        model = self.model(broadcast)
        move = of_length(self.rho, trees.sub(client.model, model))
        message, inner = self.inner.train(broadcast, client.inner, MovedOracle(oracle, move))
        return message, RememberingClient(inner, model)


@by_name("FedLESAM")
def FedLESAM(
    client_lr: Rate = 0.1,
    *,
    rho: Scalar = 0.1,
    server_lr: Rate = 1.0,
    weighting: Weighting = "uniform",
    **client: Unpack[ClientOptions],
) -> EstimatedSharpness:
    """FedLESAM (Fan et al. 2024): FedSAM with one gradient a step, moved along what the server did since last time.

        client i in S:  e = rho (v_i - w) / |v_i - w|,   v_i <- w                (v_i: the model that it was sent last)
                        y <- y - eta_l g_i(y + e), K times from w;   D_i = y - w
        server:         w <- w + eta_g sum_i p_i D_i

    Up: D_i (d numbers) and the mean local loss at y + e. Down: w. Kept: v_i on each client (d), the initial model at
    first. It is `EstimatedSharpness(FedAvg(...), rho)`; rho = 0 is FedAvg. The authors' code takes the server's last
    step in the place of v_i - w for all clients, which is the same if all take part, and divides by the sum of the
    layers' lengths.

    Args:
        client_lr: eta_l > 0, a number or a schedule by round. 0.1 is where to begin: the paper tunes it.
        rho: length of e, at least 0, in units of the parameters. 0.1 is where to begin: the paper tunes it.
        server_lr: eta_g > 0, a number or a schedule by round (1).
        weighting: p_i `uniform` (the authors' code) or by `examples`.
        **client: `client_momentum`, `weight_decay`, `clip_norm` of the clients' SGD, none by default (`client.SGD`).

    Returns:
        `EstimatedSharpness(FedAvg(...), rho)`.

    Raises:
        InvalidInput: a number out of its range, an unknown weighting.

    Reference: Fan, Hu, Yao, Niu, Zhang, Sugiyama and Wang, "Locally Estimated Global Perturbations are Better than
    Local Perturbations for Federated Sharpness-aware Minimization", ICML 2024.
    """
    return EstimatedSharpness(FedAvg(client_lr, server_lr=server_lr, weighting=weighting, **client), rho)
