"""FedSAM (Qu et al. 2022): any method with sharpness-aware gradients on the clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Unpack

from fedsolve.core import trees
from fedsolve.core.algorithm import Algorithm
from fedsolve.core.building import by_name, class_by_name
from fedsolve.core.errors import check_range
from fedsolve.core.oracle import Oracle, WrappedOracle
from fedsolve.core.schedules import Rate
from fedsolve.core.types import Params, Scalar, Weighting, module
from fedsolve.methods.client.sgd import ClientOptions
from fedsolve.methods.server.adaptive import quotient
from fedsolve.methods.server.sgd import FedAvg
from fedsolve.methods.wrappers.wrapper import Wrapper


def of_length(rho: Scalar, direction: Params) -> Params:
    """A vector of length rho along a direction, 0 where there is none."""
    return trees.scale(quotient(rho, trees.norm(direction)), direction)


@dataclass(frozen=True)
class SharpnessOracle(WrappedOracle):
    """Losses and gradients at y + rho g / |g|, with g the gradient at y on the same examples."""

    rho: Scalar

    def __call__(self, params: Params, step: Scalar) -> tuple[Scalar, Params]:
        """Loss and gradient on a minibatch, at the moved model."""
        return self.inner(self._moved(params, self.inner(params, step)[1]), step)

    def loss(self, params: Params, step: Scalar) -> Scalar:
        """Loss on a minibatch, at the moved model."""
        return self.inner.loss(self._moved(params, self.inner(params, step)[1]), step)

    def full(self, params: Params) -> tuple[Scalar, Params]:
        """Loss and gradient on all examples, at the moved model."""
        return self.inner.full(self._moved(params, self.inner.full(params)[1]))

    def _moved(self, params: Params, gradient: Params) -> Params:
        return trees.add(params, of_length(self.rho, gradient))


@class_by_name("FedSAM")
@module
class Sharpness(Wrapper):
    """FedSAM (Qu et al. 2022) around any method: clients' gradients are taken where their losses are larger.

        client:  y <- y - eta_l g_i(y + rho g_i(y) / |g_i(y)|)                 (both on the step's minibatch)

    Travels and is kept: what `inner` sends and keeps; clients are weighted as `inner` weights them. rho = 0 is
    `inner`. A gradient costs two. Losses are those at the moved model, which line searches compare and tables call
    local losses; what `inner` adds to gradients or does with them (control variates, clipping) comes after the move.

    Args:
        inner: the method that runs on the moved gradients.
        rho: length of the move, at least 0, in units of the parameters.

    Raises:
        InvalidInput: an `inner` that is no method, a negative rho.
    """

    title: ClassVar[str] = "FedSAM"
    inner: Algorithm
    rho: Scalar = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("rho", self.rho, at_least=0)

    def train(self, broadcast: Any, client: Any, oracle: Oracle) -> tuple[Any, Any]:
        """Run the inner local work on the moved gradients."""
        return self.inner.train(broadcast, client, SharpnessOracle(oracle, self.rho))


@by_name("FedSAM")
def FedSAM(
    client_lr: Rate = 0.1,
    *,
    rho: Scalar = 0.1,
    server_lr: Rate = 1.0,
    weighting: Weighting = "uniform",
    **client: Unpack[ClientOptions],
) -> Sharpness:
    """FedSAM (Qu et al. 2022): FedAvg whose clients look for flat minima, by sharpness-aware minimisation.

        client:  e = rho g_i(y) / |g_i(y)|,   y <- y - eta_l g_i(y + e), K times from w;   D_i = y - w
        server:  w <- w + eta_g sum_i p_i D_i

    Up: D_i (d numbers) and the mean local loss at y + e. Down: w. Kept: nothing. It is `Sharpness(FedAvg(...), rho)`;
    rho = 0 is FedAvg. A local step costs two gradients.

    Args:
        client_lr: eta_l > 0, a number or a schedule by round. 0.1 is where to begin: the paper tunes it.
        rho: length of e, at least 0, in units of the parameters; 0.1 (public code).
        server_lr: eta_g > 0, a number or a schedule by round (1).
        weighting: p_i `uniform` (the paper's) or by `examples`.
        **client: `client_momentum`, `weight_decay`, `clip_norm` of the clients' SGD, none by default (`client.SGD`).

    Returns:
        `Sharpness(FedAvg(...), rho)`.

    Raises:
        InvalidInput: a number out of its range, an unknown weighting.

    Reference: Qu, Li, Duan, Liu, Tang and Lu, "Generalized Federated Learning via Sharpness Aware Minimization", ICML
    2022.
    """
    return Sharpness(FedAvg(client_lr, server_lr=server_lr, weighting=weighting, **client), rho)
