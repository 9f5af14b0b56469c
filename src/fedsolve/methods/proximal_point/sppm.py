"""SPPM-AS (Yi et al. 2024): a stochastic proximal point whose cohort solves its problem in several rounds."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Any, ClassVar, Unpack

import jax.numpy as jnp

from fedsolve.core import trees
from fedsolve.core.algorithm import Algorithm, Cohort
from fedsolve.core.building import by_name, class_by_name
from fedsolve.core.errors import check_integer, check_range
from fedsolve.core.oracle import Oracle
from fedsolve.core.schedules import Rate
from fedsolve.core.types import Params, Scalar, Traced, Weighting, module
from fedsolve.methods.client.sgd import ClientOptions
from fedsolve.methods.server.sgd import FedAvg
from fedsolve.methods.wrappers.proximal import ProximalOracle
from fedsolve.methods.wrappers.wrapper import Wrapper


@module
class ProximalPointServer:
    """The inner server, the centre (shapes of the model), and the rounds since it last moved."""

    inner: Any
    center: Params
    rounds: Traced


@module
class ProximalPointBroadcast:
    """The inner broadcast and the centre."""

    inner: Any
    center: Params


@class_by_name("SPPMAS")
@module
class ProximalPoint(Wrapper):
    """SPPM-AS around any method, which solves the cohort's proximal problem: see `SPPMAS`.

    Args:
        inner: the method that solves the proximal problem of a cohort; its state goes on from one to the next.
        gamma: the proximal parameter, > 0, in units of a squared parameter per loss.
        local_rounds: rounds with one centre, at least 1.

    Raises:
        InvalidInput: an `inner` that is no method or has models of its clients' own, a number out of its range.
    """

    title: ClassVar[str] = "SPPMAS"
    parts: ClassVar[tuple[type, ...]] = (ProximalPointServer, ProximalPointBroadcast)
    inner: Algorithm
    _: KW_ONLY
    gamma: Scalar = 1.0
    local_rounds: int = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("gamma", self.gamma, above=0)
        check_integer("local_rounds", self.local_rounds, 1, bits=31)

    def init(self, params: Params) -> ProximalPointServer:
        """The inner server, around the initial model."""
        inner = self.inner.init(params)
        return ProximalPointServer(inner, self.inner.export(inner), jnp.int32(0))

    def broadcast(self, server: ProximalPointServer, cohort: Cohort) -> ProximalPointBroadcast:
        """The inner broadcast and the centre."""
        return ProximalPointBroadcast(self.inner.broadcast(server.inner, cohort), server.center)

    def train(self, broadcast: ProximalPointBroadcast, client: Any, oracle: Oracle) -> tuple[Any, Any]:
        """Run the inner local work on the proximal objective."""
        proximal = ProximalOracle(oracle, broadcast.center, 1 / self.gamma)
        return self.inner.train(broadcast.inner, client, proximal)

    def update(self, server: ProximalPointServer, message: Any, cohort: Cohort) -> ProximalPointServer:
        """Apply the inner update, and move the centre if it is due."""
        inner = self.inner.update(server.inner, message, cohort)
        rounds = server.rounds + 1
        due = rounds >= self.local_rounds
        center = trees.where(due, self.inner.export(inner), server.center)
        return ProximalPointServer(inner, center, jnp.where(due, 0, rounds).astype(jnp.int32))


@by_name("SPPMAS")
def SPPMAS(
    client_lr: Rate = 0.1,
    *,
    gamma: Scalar = 1.0,
    local_rounds: int = 5,
    server_lr: Rate = 1.0,
    weighting: Weighting = "uniform",
    **client: Unpack[ClientOptions],
) -> ProximalPoint:
    """SPPM-AS (Yi et al. 2024): a cohort works on one proximal problem for several rounds before the next begins.

        x <- argmin_y mean over S of f_i(y) + |y - x|^2 / (2 gamma),   approximately, in K rounds of
        client i in S:  y_i = local steps of SGD on f_i + |. - x|^2 / (2 gamma), from y
        server:         y <- y + eta_g mean (y_i - y),   and x <- y after the last of the K rounds

    Up: y_i - y (d numbers) and the mean local loss. Down: y and x (2 d). Kept: both on the server. It is
    `ProximalPoint(FedAvg(...))`, with local SGD as the solver of the proximal problem, one of the paper's; put
    `ProximalPoint` around another method for another one: it keeps and sends x besides. K = 1 is `FedProx` with
    mu = 1 / gamma. The paper keeps a cohort for its K rounds, drawn by any sampling that is unbiased; here each round
    draws its own by the run's sampling, the same for K rounds if `sampling.Trace` says so.

    Args:
        client_lr: > 0, a number or a schedule by round. 0.1 is where to begin: the paper tunes it.
        gamma: > 0, in units of a squared parameter per loss. 1 is where to begin: the paper tunes it.
        local_rounds: K, at least 1. 5 is where to begin: the paper tunes it, larger for a larger gamma.
        server_lr: eta_g > 0, a number or a schedule by round (1).
        weighting: of clients, `uniform` (the paper's with uniform sampling) or by `examples`.
        **client: `client_momentum`, `weight_decay`, `clip_norm` of the clients' SGD, none by default (`client.SGD`).

    Returns:
        `ProximalPoint(FedAvg(...))`.

    Raises:
        InvalidInput: a number out of its range, an unknown weighting.

    Reference: Yi, Kharisov, Sokolov and Richtarik, "Cohort Squeeze: Beyond a Single Communication Round per Cohort in
    Cross-Device Federated Learning", arXiv:2406.01115, 2024, Algorithm 1.
    """
    inner = FedAvg(client_lr, server_lr=server_lr, weighting=weighting, **client)
    return ProximalPoint(inner, gamma=gamma, local_rounds=local_rounds)
