"""FedNova (Wang et al. 2020): clients that took more local steps do not count for more."""

from __future__ import annotations

from typing import Any, ClassVar, Unpack

import jax
import jax.numpy as jnp

from fedsolve.core import trees
from fedsolve.core.algorithm import Cohort
from fedsolve.core.building import by_name
from fedsolve.core.oracle import Oracle
from fedsolve.core.schedules import Rate
from fedsolve.core.types import MessageBounds, Params, Traced, Weighting, bounded, module, reported
from fedsolve.methods.client.optax import OptaxSolver
from fedsolve.methods.client.sgd import ClientOptions
from fedsolve.methods.client.solver import LocalSolver, Solution
from fedsolve.methods.server.fedopt import FedOpt, compose
from fedsolve.methods.server.server_optimizer import Needs
from fedsolve.methods.server.sgd import ServerSGD, ServerSGDState


@module
class LocalRates:
    """What a client adds to its message: the sum of the rates of its steps, eta |a_i|_1."""

    rate_sum: Traced = bounded(MessageBounds(at_least=0))


@module
class NormalizedAveragingState:
    """What the server's SGD keeps, and eta tau_eff, by which it multiplied the mean direction."""

    sgd: ServerSGDState
    effective_rate: Traced = reported()


@module
class NormalizedAveraging(ServerSGD):
    """FedNova's server step: the mean of normalised directions, times the mean length of the clients' paths.

        D = (sum_i p_i e_i) (sum_i p_i D_i / e_i),   then the step of `server.ServerSGD` along D

    e_i is the sum of the rates that client i's own steps applied: eta_l tau_i for tau_i steps of SGD, the paper's
    eta_l |a_i|_1 = eta_l sum_k (1 - beta^k) / (1 - beta) with momentum beta, and the sum of the accepted steps of a
    line search; of an optax solver, which tells no rates, tau_i.
    Clients send D_i / e_i as their update (in units of a gradient, which is what differential privacy then clips and
    attacks change), and e_i. If all e_i are alike it is FedAvg. A client that did not move sends 0.

    Args:
        lr: server learning rate > 0, a number or a schedule by round.
        momentum, ema, nesterov: as of `server.ServerSGD`: for replicas of DiLoCo with their own numbers of steps
            `DiLoCo(server_optimizer=server.NormalizedAveraging(0.7, momentum=0.9, nesterov=True))`.

    Raises:
        InvalidInput: a number out of its range; clients whose update is no sum of gradients, nor an optax solver's.
    """

    needs: ClassVar[Needs] = "sums_gradients"
    sends_client_update: ClassVar[bool] = False

    def check(self, local: LocalSolver) -> None:
        if not isinstance(local, OptaxSolver):
            super().check(local)

    def init(self, params: Params) -> Any:
        return NormalizedAveragingState(super().init(params), jnp.zeros((), trees.dtype_of(params)))

    def client_stats(self, delta: Params, solution: Solution, start: Params, oracle: Oracle) -> LocalRates:
        return LocalRates(jnp.asarray(_length(solution), trees.dtype_of(delta)))

    def direction(self, delta: Params, solution: Solution) -> Params:
        # the normalised direction D_i / e_i = -d_i
        rate_sum = jnp.asarray(_length(solution), trees.dtype_of(delta))
        return jax.tree.map(lambda d: trees.quotient(d, rate_sum).astype(d.dtype), delta)

    def step(self, params: Params, state: Any, delta: Params, measured: LocalRates, cohort: Cohort) -> Any:
        # apply one server step (equation 12 of the paper): rate_sum is the mean of e_i, delta that of -d_i
        along = trees.scale(measured.rate_sum, delta)
        new, sgd = super().step(params, state.sgd, along, (), cohort)
        return new, NormalizedAveragingState(sgd, measured.rate_sum.astype(state.effective_rate.dtype))


def _length(solution: Solution) -> Any:
    return solution.steps if solution.rate_sum is None else solution.rate_sum


@by_name("FedNova")
def FedNova(
    client_lr: Rate = 0.1,
    *,
    server_lr: Rate = 1.0,
    weighting: Weighting = "examples",
    **client: Unpack[ClientOptions],
) -> FedOpt:
    """FedNova (Wang et al. 2020): FedAvg without the bias towards clients that take more local steps.

        client:  y <- y - eta_l b,   b <- beta b + g_i(y), tau_i times from w;   d_i = (w - y) / (eta_l |a_i|_1)
        server:  w <- w - eta_g tau_eff eta_l sum_i p_i d_i,   tau_eff = sum_i p_i |a_i|_1
                 |a_i|_1 = sum_k (1 + beta + ... + beta^(k-1)), k = 1 ... tau_i: tau_i without momentum

    Where clients take unequal numbers of steps FedAvg minimises sum_i p_i tau_i f_i; FedNova F = sum_i p_i f_i. With
    equal numbers it is FedAvg. Up: d_i (d numbers), eta_l |a_i|_1 and the mean local loss. Down: w. Kept: nothing.
    The run logs eta_l tau_eff as `effective_rate`. tau_eff is the public code's, which without momentum is the
    paper's sum_i p_i tau_i. `weight_decay` counts as part of the gradient, and so does the term of
    `Proximal(FedNova())`; the paper's a_i of proximal SGD discounts earlier steps instead.

    Args:
        client_lr: eta_l > 0, a number or a schedule by round. 0.1 is where to begin: the paper tunes it.
        server_lr: eta_g > 0, a number or a schedule by round (1: the paper has none).
        weighting: p_i by `examples` (the paper's n_i / n) or `uniform`.
        **client: `client_momentum`, `weight_decay`, `clip_norm` of the clients' SGD, none by default (`client.SGD`).

    Returns:
        A `FedOpt` of `client.SGD` and `server.NormalizedAveraging`.

    Raises:
        InvalidInput: a number out of its range, an unknown weighting.

    Reference: Wang, Liu, Liang, Joshi and Poor, "Tackling the Objective Inconsistency Problem in Heterogeneous
    Federated Optimization", NeurIPS 2020.
    """
    return compose("FedNova", client_lr, NormalizedAveraging(server_lr), weighting, client)
