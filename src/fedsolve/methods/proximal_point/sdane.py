"""S-DANE and its accelerated form (Jiang, Rodomanov and Stich 2024): proximal points around a stabilised centre."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Any, Literal, Unpack

import jax
import jax.numpy as jnp

from fedsolve.core import trees
from fedsolve.core.building import by_name
from fedsolve.core.errors import check_flag, check_known, check_range
from fedsolve.core.oracle import Oracle
from fedsolve.core.schedules import Rate
from fedsolve.core.types import Params, Scalar, Traced, Weighting, module, replace, static
from fedsolve.methods.client.conjugate import ConjugateGradient
from fedsolve.methods.client.sgd import ClientOptions, local_sgd
from fedsolve.methods.proximal_point.centers import CenterMessage, CenterServer, ControlledProximal


@module
class Stabilized(ControlledProximal):
    """S-DANE with any local solver: see `SDANE` and `AccSDANE`.

    Args:
        local: the clients' solver of local problems, such as `client.SGD(0.1)` or `client.ConjugateGradient()`.
        lam: weight of the proximal term, > 0, in units of the loss per squared parameter.
        mu: strong convexity of the losses, at least 0, in the same units.
        accelerated: whether the centre is extrapolated.
        weighting: p_i, `uniform` or by `examples`.

    Raises:
        InvalidInput: no local solver or one that keeps a state, a number out of its range, an unknown weighting.
    """

    _: KW_ONLY
    mu: Scalar = 0.0
    accelerated: bool = static(default=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("lam", self.lam, above=0)
        check_range("mu", self.mu, at_least=0)
        check_flag("accelerated", self.accelerated)

    @property
    def name(self) -> str:
        """The name in the catalogue."""
        return "AccSDANE" if self.accelerated else "SDANE"

    def init(self, params: Params) -> CenterServer:
        """x and v begin at the model."""
        dtype = trees.dtype_of(params)
        sums = (jnp.zeros((), dtype), jnp.ones((), dtype)) if self.accelerated else ()
        return replace(super().init(params), center=params, sums=sums)

    def center_of(self, server: CenterServer) -> Params:
        """v, or (A x + a v) / (A + a)."""
        if not self.accelerated:
            return server.center
        total, step = server.sums[0], self._step(server)
        return trees.axpy(step / (total + step), trees.sub(server.center, server.params), server.params)

    def gradient_at(self, params: Params | None, center: Params, oracle: Oracle) -> Params:
        """The gradient of f_i at x_i."""
        return trees.zeros_like(center) if params is None else oracle.full(params)[1]

    def move(self, server: CenterServer, message: CenterMessage) -> CenterServer:
        """x to the mean of x_i, and v along the mean gradient there."""
        step = self._step(server)
        weight = server.sums[1] if self.accelerated else 1.0
        x = trees.add(self.center_of(server), message.vector)

        def toward(x: Any, v: Any, g: Any) -> Any:
            return ((self.mu * step * x + weight * v - step * g) / (self.mu * step + weight)).astype(v.dtype)

        v = jax.tree.map(toward, x, server.center, message.gradient)
        sums = server.sums and (server.sums[0] + step, (server.sums[1] + self.mu * step).astype(step.dtype))
        return replace(server, params=x, center=v, sums=sums)

    def _step(self, server: CenterServer) -> Traced:
        """a: 1 / lam, or the positive root of lam a^2 = (A + a) B."""
        if not self.accelerated:
            return 1 / self.lam
        total, weight = server.sums
        half = weight / (2 * self.lam)
        return (half + jnp.sqrt(half**2 + total * weight / self.lam)).astype(total.dtype)


@by_name("SDANE")
def SDANE(
    client_lr: Rate = 0.1,
    *,
    lam: Scalar = 1.0,
    mu: Scalar = 0.0,
    solver: Literal["sgd", "exact"] = "sgd",
    weighting: Weighting = "uniform",
    **client: Unpack[ClientOptions],
) -> Stabilized:
    """S-DANE (Jiang, Rodomanov and Stich 2024): proximal points with control variates, around a stabilised centre v.

        round 1, client i in S:  sends grad f_i(v)
        round 2, client i in S:  h_i = grad f_i(v) - mean grad f_j(v)
                                 x_i ~ argmin_y f_i(y) - <h_i, y> + (lam / 2) |y - v|^2,   sends x_i and grad f_i(x_i)
                 server:         x <- mean x_i,   v <- (mu x + lam v - mean grad f_i(x_i)) / (mu + lam)

    Up and down: one vector in round 1, two in round 2 (their places are sent in both, 2 d numbers). Kept: x and v on
    the server. Each exchange of messages is a round of a run, so that a round of the paper takes two. Its clients are
    the same in both; here each round draws its own, the same if all take part or `sampling.Trace` says so. With
    clients alike and `exact`, it is `FedExProx` with gamma = 1 / lam and alpha = 1. The authors' code steps by
    argmin of the linearised local problem, which is SGD with the rate client_lr / (1 + lam client_lr).

    Args:
        client_lr: > 0, of the SGD steps on local problems, a number or a schedule by round; not used by `exact`.
        lam: > 0, in units of the loss per squared parameter; 1 is where to begin: the paper tunes it, of the size of
            the differences between clients' Hessians. Local steps that go too short a way for it make v overshoot.
        mu: strong convexity of the losses, at least 0, in the units of lam (0, the authors' code).
        solver: the run's local steps of SGD, or `exact`, conjugate gradients, where losses are quadratic.
        weighting: of clients in all means, `uniform` as in the paper or by `examples`.
        **client: `client_momentum`, `weight_decay`, `clip_norm` of the clients' SGD, none by default (`client.SGD`).

    Returns:
        The method, whose local solver is `client.SGD` or `client.ConjugateGradient`.

    Raises:
        InvalidInput: a number out of its range, an unknown solver or weighting.

    Reference: Jiang, Rodomanov and Stich, "Stabilized Proximal-Point Methods for Federated Optimization", NeurIPS
    2024, Algorithm 1.
    """
    check_known("solver", solver, ("sgd", "exact"))
    local = local_sgd(client_lr, client) if solver == "sgd" else ConjugateGradient()
    return Stabilized(local, lam=lam, mu=mu, weighting=weighting)


@by_name("AccSDANE")
def AccSDANE(
    client_lr: Rate = 0.1,
    *,
    lam: Scalar = 1.0,
    mu: Scalar = 0.0,
    solver: Literal["sgd", "exact"] = "sgd",
    weighting: Weighting = "uniform",
    **client: Unpack[ClientOptions],
) -> Stabilized:
    """Accelerated S-DANE (Jiang, Rodomanov and Stich 2024): `SDANE` around centres between x and v.

        server:  lam a^2 = (A + a) B,   y = (A x + a v) / (A + a)          (A = 0 and B = 1 at first)
        client:  as `SDANE`, around y in the place of v
        server:  x <- mean x_i,   v <- (mu a x + B v - a mean grad f_i(x_i)) / (mu a + B)
                 A <- A + a,   B <- B + mu a

    Sent as by `SDANE`; kept: x, v, A and B on the server. Two rounds of a run are one of the paper, and the first of
    them is that of `SDANE`.

    Args:
        client_lr: > 0, of the SGD steps on local problems, a number or a schedule by round; not used by `exact`.
        lam: > 0, in units of the loss per squared parameter; 1 is where to begin: the paper tunes it.
        mu: strong convexity of the losses, at least 0, in the units of lam (0, the authors' code).
        solver: the run's local steps of SGD, or `exact`, conjugate gradients, where losses are quadratic.
        weighting: of clients in all means, `uniform` as in the paper or by `examples`.
        **client: `client_momentum`, `weight_decay`, `clip_norm` of the clients' SGD, none by default (`client.SGD`).

    Returns:
        The method, whose local solver is `client.SGD` or `client.ConjugateGradient`.

    Raises:
        InvalidInput: a number out of its range, an unknown solver or weighting.

    Reference: Jiang, Rodomanov and Stich, "Stabilized Proximal-Point Methods for Federated Optimization", NeurIPS
    2024, Algorithm 2.
    """
    plain = SDANE(client_lr, lam=lam, mu=mu, solver=solver, weighting=weighting, **client)
    return replace(plain, accelerated=True)
