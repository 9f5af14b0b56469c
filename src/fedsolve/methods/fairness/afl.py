"""AFL (Mohri et al. 2019): the worst mixture of clients, by mirror ascent on their weights."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Any, ClassVar, Unpack

import jax.numpy as jnp

from fedsolve.core.algorithm import Cohort
from fedsolve.core.building import by_name
from fedsolve.core.schedules import Rate, as_rate, rate_at
from fedsolve.core.types import Params, Traced, Weighting, module
from fedsolve.geometry.mirrors import Entropy
from fedsolve.methods.client.sgd import ClientOptions, local_sgd
from fedsolve.methods.fairness.reweighted import Reweighted
from fedsolve.methods.server.sgd import ServerSGD


@module
class AgnosticClient:
    """theta_i, the client's dual variable: log of its weight but for a constant that all clients share."""

    dual: Traced


@module
class Agnostic(Reweighted):
    """AFL with any local solver and any server optimiser that steps along a mean client update: see `AFL`.

    Args:
        local: the clients' solver, such as `client.SGD(0.1)`.
        dual_lr: eta_d of the weights, > 0, a number or a schedule by round, in units of an inverse loss.
        server_optimizer: steps along D; one that asks clients for nothing else.

    Raises:
        InvalidInput: no local solver or one that keeps a state, a rate that is not positive, a server optimiser that
            asks clients for more.
    """

    name: ClassVar[str] = "AFL"
    weighting: ClassVar[Weighting] = "uniform"  # pyright: ignore[reportIncompatibleVariableOverride]
    only_mean: ClassVar[str] = "the server must know the mean of all clients' weights"

    _: KW_ONLY
    dual_lr: Rate = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "dual_lr", as_rate("dual_lr", self.dual_lr))

    def init_client(self, broadcast: Any) -> AgnosticClient:
        """theta_i = 0: all weights are 1 / N."""
        return AgnosticClient(jnp.zeros_like(broadcast.log_scale))

    def weigh(
        self, loss: Traced, delta: Params, broadcast: Any, client: AgnosticClient
    ) -> tuple[Traced, Traced, AgnosticClient]:
        """N lambda_i, and how much exp theta_i grows with the loss."""
        weight, ascent = self._weight(client.dual, broadcast), self._ascent(loss, broadcast)
        return weight, weight * jnp.expm1(ascent), AgnosticClient(client.dual + ascent)

    def normalize(self, log_scale: Any, weight: Traced, cohort: Cohort) -> tuple[Traced, Any]:
        """1, and the logarithm of the mean over all clients of exp theta_i."""
        growth = jnp.log1p(weight * (cohort.size / cohort.population)).astype(weight.dtype)
        return jnp.ones_like(growth), log_scale + growth

    def _weight(self, dual: Traced, broadcast: Any) -> Traced:
        """N lambda_i, by the inverse of the mirror map."""
        return Entropy().inverse(dual - broadcast.log_scale)

    def _ascent(self, loss: Traced, broadcast: Any) -> Traced:
        """How far the dual variable goes: eta_d times an unbiased estimate of N times the gradient's entry."""
        return (rate_at(self.dual_lr, broadcast.round) * broadcast.inverse_share * loss).astype(loss.dtype)


@by_name("AFL")
def AFL(
    client_lr: Rate = 0.1,
    *,
    dual_lr: Rate = 0.01,
    server_lr: Rate = 1.0,
    **client: Unpack[ClientOptions],
) -> Agnostic:
    """AFL (Mohri et al. 2019) minimises the loss of the worst mixture of clients, max over lambda of sum lambda_i f_i.

        client i in S:  D_i = y - w after K steps of SGD from w,   sends N lambda_i D_i
                        theta_i <- theta_i + eta_d (N / |S|) f_i(w),   lambda_i = exp theta_i / sum_j exp theta_j
        server:         w <- w + eta_g (N / |S|) sum over S of lambda_i D_i

    Up: N lambda_i D_i, the growth of exp theta_i, and the mean local loss (d + 2 numbers). Down: w and the logarithm
    of the mean of all exp theta_j. Kept: theta_i on each client (one number, 0 at first), that logarithm on the
    server. No party knows all weights. Each client evaluates f_i(w) on all of its examples.

    With all clients, K = 1 and all examples in a step this is the paper's algorithm, with mirror ascent by the entropy
    (`geometry.Entropy`) in the place of Euclidean projections onto the simplex, for which the server would have to
    hold all weights. Clients that are drawn uniformly are weighted by N / |S|, as in `DRFA`. eta_d towards 0 is
    `FedAvg` with uniform weights. The paper returns the mean of all w; here it is the last.

    Args:
        client_lr: eta_l > 0, a number or a schedule by round. 0.1 is where to begin: the paper tunes it.
        dual_lr: eta_d > 0, a number or a schedule by round, in units of an inverse loss. 0.01 is
            where to begin: a rate that is too large leaves the weight with a few clients, whose steps are then long.
        server_lr: eta_g > 0, a number or a schedule by round (1).
        **client: `client_momentum`, `weight_decay`, `clip_norm` of the clients' SGD, none by default (`client.SGD`).

    Returns:
        The method with every client's theta_i, whose local solver is `client.SGD`.

    Raises:
        InvalidInput: a rate that is not positive, an option out of its range.

    Reference: Mohri, Sivek and Suresh, "Agnostic Federated Learning", ICML 2019.
    """
    return Agnostic(local_sgd(client_lr, client), dual_lr=dual_lr, server_optimizer=ServerSGD(server_lr))
