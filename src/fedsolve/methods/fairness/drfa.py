"""DRFA (Deng et al. 2020): the worst mixture of clients, with many local steps and one random snapshot of them."""

from __future__ import annotations

from typing import Any, ClassVar, Unpack

import jax.numpy as jnp

from fedsolve.core import trees
from fedsolve.core.algorithm import Cohort
from fedsolve.core.building import by_name
from fedsolve.core.oracle import Oracle
from fedsolve.core.schedules import Rate
from fedsolve.core.types import Params, Traced, module, replace
from fedsolve.methods.client.sgd import ClientOptions, local_sgd
from fedsolve.methods.client.some_steps import split_steps
from fedsolve.methods.fairness.afl import Agnostic, AgnosticClient
from fedsolve.methods.fairness.reweighted import ReweightedMessage, ReweightedServer
from fedsolve.methods.server.sgd import ServerSGD


@module
class SnapshotAgnostic(Agnostic):
    """DRFA with any local solver and any server optimiser that steps along a mean client update: see `DRFA`.

    Args:
        local: the clients' solver, such as `client.SGD(0.1)`; it starts anew after the snapshot.
        dual_lr: eta_d of the weights, > 0, a number or a schedule by round, in units of an inverse loss.
        server_optimizer: steps along D; one that asks clients for nothing else.

    Raises:
        InvalidInput: no local solver or one that keeps a state, a rate that is not positive, a server optimiser that
            asks clients for more.
    """

    name: ClassVar[str] = "DRFA"

    def init(self, params: Params) -> ReweightedServer:
        """The initial model is also the first snapshot."""
        return replace(super().init(params), snapshot=params)

    def train(self, broadcast: Any, client: AgnosticClient, oracle: Oracle) -> tuple[Any, AgnosticClient]:
        """Let the weight grow with the loss at the last snapshot; run the local solver up to the next, and on."""
        w = broadcast.params
        ascent = self._ascent(oracle.loss(broadcast.snapshot, 0), broadcast)
        ascent = jnp.where(broadcast.round > 0, ascent, 0)
        growth = self._weight(client.dual, broadcast) * jnp.expm1(ascent)
        client = AgnosticClient(client.dual + ascent)
        early, late = split_steps(broadcast.round, oracle)
        before = self.local.solve(w, early, broadcast.round)
        after = self.local.solve(before.params, late, broadcast.round)
        loss = (before.loss * early.steps + after.loss * late.steps) / oracle.steps
        weight = self._weight(client.dual, broadcast)
        delta, snapshot = (trees.scale(weight, trees.sub(y.params, w)) for y in (after, before))
        return ReweightedMessage(delta, jnp.asarray(loss, growth.dtype), growth, snapshot), client

    def update(self, server: Any, message: Any, cohort: Cohort) -> Any:
        """Normalise with the weights of after the ascent; step; take the snapshot."""
        updated = super().update(server, message, cohort)
        scale = jnp.exp(server.log_scale - updated.log_scale)
        return replace(updated, snapshot=trees.axpy(scale, message.snapshot, server.params))

    def normalize(self, log_scale: Any, weight: Traced, cohort: Cohort) -> tuple[Traced, Any]:
        """The last mean of exp theta over the next, whose logarithm is stored."""
        _, grown = super().normalize(log_scale, weight, cohort)
        return jnp.exp(log_scale - grown), grown


@by_name("DRFA")
def DRFA(
    client_lr: Rate = 0.1,
    *,
    dual_lr: Rate = 0.01,
    server_lr: Rate = 1.0,
    **client: Unpack[ClientOptions],
) -> SnapshotAgnostic:
    """DRFA (Deng et al. 2020) minimises the loss of the worst mixture of clients, max over lambda of sum lambda_i f_i.

        all:            t' uniform in 1 .. K, from the number of the round
        client i in S:  theta_i <- theta_i + eta_d (N / |S|) f_i(v) on a minibatch, from round 1 on
                        lambda_i = exp theta_i / sum_j exp theta_j
                        K steps of SGD from w,   sends N lambda_i (y_K - w)   and   N lambda_i (y_t' - w)
        server:         w <- w + eta_g (N / |S|) sum over S of lambda_i (y_K - w),   v with y_t' alike

    Up: both updates, the growth of exp theta_i and the mean local loss (2 d + 2 numbers). Down: w, v and the logarithm
    of the mean of all exp theta_j (2 d + 1). Kept: theta_i on each client, 0 at first; v on the server. eta_d towards 0
    is `FedAvg` with uniform weights.

    The paper draws the clients that train by lambda, and others uniformly that evaluate the snapshot v. Here, as in
    the authors' code, clients are drawn uniformly and weighted by N lambda_i / |S|. The clients of the next round
    evaluate v before they train, so that a round takes one exchange of messages. The weights ascend by the entropy
    (`geometry.Entropy`) in the place of Euclidean projections onto the simplex, for which the server would have to hold
    all weights. Clients with other numbers of steps are at the same share of theirs at the snapshot. Momentum starts
    anew after it.

    Args:
        client_lr: eta_l > 0, a number or a schedule by round. 0.1 is where to begin: the paper tunes it.
        dual_lr: eta_d > 0, the paper's K gamma, a number or a schedule by round, in units of an inverse loss. 0.01 is
            where to begin (`AFL`).
        server_lr: eta_g > 0, a number or a schedule by round (1, the paper's).
        **client: `client_momentum`, `weight_decay`, `clip_norm` of the clients' SGD, none by default (`client.SGD`).

    Returns:
        The method with every client's theta_i, whose local solver is `client.SGD`.

    Raises:
        InvalidInput: a rate that is not positive, an option out of its range.

    Reference: Deng, Kamani and Mahdavi, "Distributionally Robust Federated Averaging", NeurIPS 2020, Algorithm 1.
    """
    return SnapshotAgnostic(
        local_sgd(client_lr, client), dual_lr=dual_lr, server_optimizer=ServerSGD(server_lr)
    )
