"""FedProx (Li et al. 2020): any method with a proximal term that keeps clients close to the global model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Unpack

import jax

from fedsolve.core import trees
from fedsolve.core.algorithm import Algorithm
from fedsolve.core.building import by_name, class_by_name
from fedsolve.core.errors import check_range
from fedsolve.core.oracle import Oracle, WrappedOracle
from fedsolve.core.schedules import Rate
from fedsolve.core.types import Params, Scalar, Weighting, module
from fedsolve.methods.client.sgd import ClientOptions
from fedsolve.methods.server.sgd import FedAvg
from fedsolve.methods.wrappers.wrapper import Wrapper


@dataclass(frozen=True)
class ProximalOracle(WrappedOracle):
    """Adds (mu/2) |y - anchor|^2 to losses, its gradient to gradients."""

    anchor: Params
    mu: Scalar = 0.1

    def change(self, params: Params, gradient: Params) -> Params:
        """g + mu (y - w)."""
        return jax.tree.map(
            lambda g, y, w: (g + self.mu * (y - w)).astype(g.dtype), gradient, params, self.anchor
        )

    def extra(self, params: Params) -> Scalar:
        """(mu/2) |y - w|^2."""
        return self.mu / 2 * trees.squared_norm(trees.sub(params, self.anchor))


@class_by_name("FedProx")
@module
class Proximal(Wrapper):
    """FedProx (Li et al. 2020) around any method: the proximal term (mu/2) |y - w|^2 is added to local objectives.

        client:  y <- y - eta_l (g_i(y) + mu (y - w))

    Travels and is kept: what `inner` sends and keeps; clients are weighted as `inner` weights them. mu = 0 is
    `inner`. Whatever `inner` does with gradients and losses (momentum, clipping, a line search, a reported loss) it
    does with those of the proximal objective, whose value at w is f_i(w).

    Args:
        inner: the method that runs on the proximal objectives.
        mu: weight of the proximal term, at least 0, in units of the loss per squared parameter.

    Raises:
        InvalidInput: an `inner` that is no method, a negative mu.
    """

    title: ClassVar[str] = "FedProx"
    inner: Algorithm
    mu: Scalar = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("mu", self.mu, at_least=0)

    def train(self, broadcast: Any, client: Any, oracle: Oracle) -> tuple[Any, Any]:
        """Run the inner local work on the proximal objective."""
        anchor = self.inner.model(broadcast)
        return self.inner.train(broadcast, client, ProximalOracle(oracle, anchor, self.mu))


@by_name("FedProx")
def FedProx(
    client_lr: Rate = 0.1,
    *,
    mu: Scalar = 0.1,
    server_lr: Rate = 1.0,
    weighting: Weighting = "examples",
    **client: Unpack[ClientOptions],
) -> Proximal:
    """FedProx (Li et al. 2020): FedAvg with a proximal term that keeps clients close to the global model.

        client:  y <- y - eta_l (g_i(y) + mu (y - w)), K times from w;   D_i = y - w
        server:  w <- w + eta_g sum_i p_i D_i

    Up: D_i (d numbers) and the mean local loss. Down: w. Kept: nothing. It is `Proximal(FedAvg(...), mu)`; mu = 0 is
    FedAvg. The paper asks for an inexact minimiser of each proximal objective; here it is the run's local steps.

    Args:
        client_lr: eta_l > 0, a number or a schedule by round. 0.1 is where to begin: the paper tunes it.
        mu: weight of the proximal term, at least 0, in units of the loss per squared parameter. 0.1 is where to
            begin: the paper tunes it for each data set.
        server_lr: eta_g > 0, a number or a schedule by round (1, the paper's).
        weighting: p_i by `examples` or `uniform`.
        **client: `client_momentum`, `weight_decay`, `clip_norm` of the clients' SGD, none by default (`client.SGD`).

    Returns:
        `Proximal(FedAvg(...), mu)`.

    Raises:
        InvalidInput: a number out of its range, an unknown weighting.

    Reference: Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020, Algorithm 2.
    """
    return Proximal(FedAvg(client_lr, server_lr=server_lr, weighting=weighting, **client), mu)
