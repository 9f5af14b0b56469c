"""FedDuA in a general geometry: the server step of Takakura et al. 2025, equation (3), for any mirror map."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import ClassVar, Unpack

import jax.numpy as jnp

from fedsolve.core import trees
from fedsolve.core.algorithm import Cohort
from fedsolve.core.building import by_name, number
from fedsolve.core.errors import InvalidInput, shown
from fedsolve.core.oracle import Oracle
from fedsolve.core.schedules import Rate
from fedsolve.core.types import Params, Scalar, Traced, Weighting, module, reported
from fedsolve.geometry.mirrors import Mirror
from fedsolve.geometry.numerics import solve_increasing
from fedsolve.methods.client.sgd import ClientOptions
from fedsolve.methods.client.solver import Solution
from fedsolve.methods.server.dua import Spread, along, moments
from fedsolve.methods.server.fedopt import FedOpt, compose
from fedsolve.methods.server.server_optimizer import ServerOptimizer


@module
class MirrorDescentState:
    """Momentum v (`()` for none), bound m, the last step eta, and how well its equation was solved."""

    v: Params
    m: Traced
    server_lr: Traced = reported()
    step_residual: Traced = reported()
    step_status: Traced = reported(
        warn="the step size equation h(eta) = m was not solved to tolerance in some rounds (status 1: h stays"
        " below m, the largest bracketed step was taken; 2: rounding limits it, see step_residual)"
    )


@module
class MirrorDescent(ServerOptimizer):
    """Mirror descent on the server, whose step size eta solves h(eta) = m.

    theta = grad psi(w);  theta <- theta + eta v;  w = grad psi*(theta);  eta solves h(eta) = m,

        h(eta) = <grad psi*(theta + eta v) - w, v>,     v and m as in `DoublyAdaptive`.

    For a quadratic psi this is eta = m / (<v, G^-1 v>), which `DoublyAdaptive` writes down.

    Args:
        mirror: the mirror map grad psi.
        beta1: momentum of v and m in [0, 1), None for none.

    Raises:
        InvalidInput: no mirror map, a momentum outside [0, 1).
    """

    weighting: ClassVar[Weighting] = "uniform"
    compares_clients: ClassVar[bool] = True

    mirror: Mirror
    _: KW_ONLY
    beta1: Scalar | None = number(default=None, at_least=0, below=1)

    def __post_init__(self) -> None:
        if not isinstance(self.mirror, Mirror):
            raise InvalidInput(
                f"mirror = {shown(self.mirror)} must be a mirror map such as Entropy() or PNorm(1.5)"
            )

    def init(self, params: Params) -> MirrorDescentState:
        # the initial state: all zero; raises `InvalidInput` if the model lies outside the mirror map's domain
        self.mirror.check(params)
        zero = jnp.zeros((), trees.dtype_of(params))
        v = () if self.beta1 is None else trees.zeros_like(params)
        return MirrorDescentState(v, zero, zero, zero, zero)

    def client_stats(self, delta: Params, solution: Solution, start: Params, oracle: Oracle) -> Spread:
        return Spread(trees.squared_norm(delta))

    def step(
        self, params: Params, state: MirrorDescentState, delta: Params, measured: Spread, cohort: Cohort
    ) -> tuple[Params, MirrorDescentState]:
        # apply one server step (equation 3)
        v, m = moments(self.beta1, state.v, state.m, delta, measured.squared_norm / 2)
        theta = self.mirror.forward(params)

        # h(eta) = <w(eta) - w, v>, increasing in eta as grad psi* is monotone; h(0) = 0
        def h(eta: Scalar) -> Scalar:
            return trees.dot(trees.sub(self.mirror.inverse(trees.axpy(eta, v, theta)), params), v)

        moved = trees.squared_norm(v) > 0
        # a target of 0 where nothing moved: the root is 0 and no bracket is searched
        root = solve_increasing(h, jnp.where(moved, along(v, m, cohort), 0))
        new = self.mirror.inverse(trees.axpy(root.value, v, theta))
        dtype = state.m.dtype
        momentum = () if self.beta1 is None else v
        scalars = [jnp.asarray(x, dtype) for x in (m, root.value, root.residual, root.status)]
        return trees.where(moved, new, params), MirrorDescentState(momentum, *scalars)


@by_name("FedDuA")
def FedDuA(
    mirror: Mirror,
    client_lr: Rate = 0.1,
    *,
    beta1: Scalar | None = None,
    weighting: Weighting = "uniform",
    **client: Unpack[ClientOptions],
) -> FedOpt:
    """FedDuA in any geometry (Takakura et al. 2025, equation 3): mirror descent with a step size from an equation.

        client:  D_i as in `FedAvg`
        server:  D = mean D_i,   m = (1/2) mean |D_i|^2,   theta <- grad psi(w) + eta D,   w <- grad psi*(theta)
                 with eta from <w(eta) - w, D> = m              (D and m with momentum as in `FedDuAdam`)

    Up: D_i (d numbers), |D_i|^2 and the mean local loss. Down: w. Kept: momentum on the server. The run logs eta as
    `server_lr` and how well its equation was solved (`step_residual`, `step_status`).

    Args:
        mirror: grad psi, a mirror map of `fedsolve.geometry`, such as `PNorm(1.5)`; the start must lie in its domain.
        client_lr: eta_l > 0, a number or a schedule by round. 0.1 is where to begin: the paper tunes it.
        beta1: momentum of D and m, in [0, 1); None for none.
        weighting: `uniform` (the paper's) or by `examples`.
        **client: `client_momentum`, `weight_decay`, `clip_norm` of the clients' SGD, none by default (`client.SGD`).

    Returns:
        A `FedOpt` of `client.SGD` and `server.MirrorDescent`.

    Raises:
        InvalidInput: no mirror map, a number out of its range, an unknown weighting; when a run begins, a start
            outside the domain.

    Reference: Takakura, Liew and Hasegawa, "FedDuA: Doubly Adaptive Federated Learning", arXiv:2505.11126, 2025.
    """
    if not isinstance(mirror, Mirror):
        raise InvalidInput(f"FedDuA needs a mirror map such as Entropy() or PNorm(1.5), not {shown(mirror)}")
    return compose("FedDuA", client_lr, MirrorDescent(mirror, beta1=beta1), weighting, client)
