"""q-FedAvg (Li et al. 2020): a client counts for more, the larger its loss is, by a power."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Any, ClassVar, Unpack

from fedsolve.core import trees
from fedsolve.core.algorithm import Cohort
from fedsolve.core.building import by_name
from fedsolve.core.errors import InvalidInput, check_range, shown
from fedsolve.core.schedules import Rate, rate_at
from fedsolve.core.types import Params, Scalar, Traced, Weighting, module
from fedsolve.methods.client.sgd import SGD, ClientOptions, local_sgd
from fedsolve.methods.fairness.reweighted import Reweighted
from fedsolve.methods.server.sgd import ServerSGD


@module
class FairAveraging(Reweighted):
    """q-FedAvg around local SGD, with any server optimiser that steps along a mean client update: see `QFedAvg`.

    Args:
        local: the clients' `client.SGD`, whose rate is 1 / L.
        q: exponent of the losses, at least 0.
        server_optimizer: steps along D; one that asks clients for nothing else.
        weighting: p_i, `uniform` or by `examples`.

    Raises:
        InvalidInput: clients that do not run SGD, a negative q, an unknown weighting, a server optimiser that asks
            clients for more.
    """

    name: ClassVar[str] = "QFedAvg"

    _: KW_ONLY
    q: Scalar = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.local, SGD):
            raise InvalidInput(f"QFedAvg takes L from the rate of local SGD, not from {shown(self.local)}")
        check_range("q", self.q, at_least=0)

    def first_scale(self, zero: Traced) -> Any:
        """None: the server's step needs no memory."""
        return ()

    def weigh(self, loss: Traced, delta: Params, broadcast: Any, client: Any) -> tuple[Traced, Traced, Any]:
        """f_i^q, and h_i / L."""
        loss = loss + 1e-10
        lipschitz = 1 / rate_at(self.local.lr, broadcast.round)  # pyright: ignore[reportAttributeAccessIssue]
        weight = (loss**self.q).astype(loss.dtype)
        curvature = self.q * loss ** (self.q - 1) * lipschitz * trees.squared_norm(delta)
        return weight, (weight + curvature).astype(loss.dtype), client

    def normalize(self, log_scale: Any, weight: Traced, cohort: Cohort) -> tuple[Traced, Any]:
        """L over the mean of h_i."""
        return 1 / weight, log_scale


@by_name("QFedAvg")
def QFedAvg(
    client_lr: Rate = 0.1,
    *,
    q: Scalar = 1.0,
    server_lr: Rate = 1.0,
    weighting: Weighting = "uniform",
    **client: Unpack[ClientOptions],
) -> FairAveraging:
    """q-FedAvg (Li et al. 2020) minimises the mean of f_i^(q + 1) / (q + 1): fairer among clients, the larger q is.

        client:  y = K steps of SGD from w,   d_i = L (w - y),   L = 1 / eta_l
                 sends f_i(w)^q d_i   and   h_i = q f_i(w)^(q - 1) |d_i|^2 + L f_i(w)^q
        server:  w <- w - eta_g (sum_i p_i f_i^q d_i) / (sum_i p_i h_i)

    Up: d_i, h_i and the mean local loss (d + 2 numbers; d_i and h_i in units of 1 / L). Down: w. Kept: nothing. q = 0
    is `FedAvg` with the same weighting. Each client evaluates f_i(w) on all of its examples; losses must not be
    negative. As in the authors' code, 1e-10 is added to f_i, and clients that are drawn uniformly count alike: the
    paper draws them by p_i.

    Args:
        client_lr: eta_l > 0, a number or a schedule by round. 0.1 is where to begin: the paper tunes it for q = 0.
        q: at least 0, no unit. 1 is where to begin: the paper tunes it.
        server_lr: eta_g > 0, a number or a schedule by round (1, the paper's).
        weighting: p_i, `uniform` (the authors' code) or by `examples`.
        **client: `client_momentum`, `weight_decay`, `clip_norm` of the clients' SGD, none by default (`client.SGD`).

    Returns:
        The method, whose local solver is `client.SGD` and whose server optimiser is `server.ServerSGD`.

    Raises:
        InvalidInput: a number out of its range, an unknown weighting.

    >>> QFedAvg(0.1, q=2.0).q
    2.0

    Reference: Li, Sanjabi, Beirami and Smith, "Fair Resource Allocation in Federated Learning", ICLR 2020,
    Algorithm 2.
    """
    local = local_sgd(client_lr, client)
    return FairAveraging(local, q=q, server_optimizer=ServerSGD(server_lr), weighting=weighting)
