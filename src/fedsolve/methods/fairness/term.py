"""TERM (Li et al. 2021): tilted empirical risk minimisation over clients."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Any, ClassVar, Unpack

import jax.numpy as jnp

from fedsolve.core.algorithm import Cohort
from fedsolve.core.building import by_name
from fedsolve.core.errors import check_range
from fedsolve.core.schedules import Rate
from fedsolve.core.types import Params, Scalar, Traced, Weighting, module
from fedsolve.methods.client.sgd import ClientOptions, local_sgd
from fedsolve.methods.fairness.reweighted import Reweighted
from fedsolve.methods.server.sgd import ServerSGD


@module
class TiltedAveraging(Reweighted):
    """TERM with any local solver and any server optimiser that steps along a mean client update: see `TERM`.

    Args:
        local: the clients' solver, such as `client.SGD(0.1)`.
        t: the tilt, finite, in units of an inverse loss.
        smoothing: lambda, share of the new cohort in the running mean, in (0, 1].
        server_optimizer: steps along D; one that asks clients for nothing else.
        weighting: p_i, `uniform` or by `examples`.

    Raises:
        InvalidInput: no local solver or one that keeps a state, a number out of its range, an unknown weighting, a
            server optimiser that asks clients for more.
    """

    name: ClassVar[str] = "TERM"

    _: KW_ONLY
    t: Scalar = 1.0
    smoothing: Scalar = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("t", self.t)
        check_range("smoothing", self.smoothing, above=0, at_most=1)

    def weigh(self, loss: Traced, delta: Params, broadcast: Any, client: Any) -> tuple[Traced, Traced, Any]:
        """exp(t f_i) / z, twice; below the largest number of the type."""
        exponent = jnp.minimum(self.t * loss - broadcast.log_scale, 0.9 * jnp.log(jnp.finfo(loss.dtype).max))
        weight = jnp.exp(exponent).astype(loss.dtype)
        return weight, weight, client

    def normalize(self, log_scale: Any, weight: Traced, cohort: Cohort) -> tuple[Traced, Any]:
        """z over the next z, whose logarithm is stored; the first z is the first cohort's."""
        smoothed = (1 - self.smoothing) + self.smoothing * weight
        growth = jnp.where(cohort.round == 0, weight, smoothed).astype(weight.dtype)
        return 1 / growth, log_scale + jnp.log(growth)


@by_name("TERM")
def TERM(
    client_lr: Rate = 0.1,
    *,
    t: Scalar = 1.0,
    smoothing: Scalar = 0.5,
    server_lr: Rate = 1.0,
    weighting: Weighting = "uniform",
    **client: Unpack[ClientOptions],
) -> TiltedAveraging:
    """TERM (Li et al. 2021) minimises the tilted loss (1/t) log sum_i p_i exp(t f_i) over clients.

        client:  D_i = y - w after K steps of SGD from w,   sends exp(t f_i(w)) D_i
        server:  z <- (1 - lambda) z + lambda sum_i p_i exp(t f_i(w))      (z starts as the first cohort's mean)
                 w <- w + eta_g (sum_i p_i exp(t f_i(w)) D_i) / z

    Up: exp(t f_i) D_i and exp(t f_i), in units of the last z, and the mean local loss (d + 2 numbers). Down: w and
    log z. Kept: log z on the server. t > 0 favours clients with large losses (t to infinity is the worst client's),
    t < 0 those with small ones, t = 0 is `FedAvg` with the same weighting. Each client evaluates f_i(w) on all of its
    examples. Exponents end at nine tenths of the type's range, where clients of the first round count alike.

    z is the running mean of the paper's stochastic algorithm. The authors' federated code subtracts the cohort's
    largest loss before it takes that mean, starts it at 0, and divides by the number of clients once more.

    Args:
        client_lr: eta_l > 0, a number or a schedule by round. 0.1 is where to begin: the paper tunes it.
        t: the tilt, finite, in units of an inverse loss. 1 is where to begin: the paper tunes it.
        smoothing: lambda in (0, 1]; 0.5 (the authors' code), 1 forgets all but the present cohort.
        server_lr: eta_g > 0, a number or a schedule by round (1).
        weighting: p_i, `uniform` (the authors' code) or by `examples`.
        **client: `client_momentum`, `weight_decay`, `clip_norm` of the clients' SGD, none by default (`client.SGD`).

    Returns:
        The method, whose local solver is `client.SGD` and whose server optimiser is `server.ServerSGD`.

    Raises:
        InvalidInput: a number out of its range, an unknown weighting.

    Reference: Li, Beirami, Sanjabi and Smith, "Tilted Empirical Risk Minimization", ICLR 2021.
    """
    local, rule = local_sgd(client_lr, client), ServerSGD(server_lr)
    return TiltedAveraging(local, t=t, smoothing=smoothing, server_optimizer=rule, weighting=weighting)
