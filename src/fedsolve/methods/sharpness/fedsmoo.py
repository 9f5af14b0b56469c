"""FedSMOO (Sun et al. 2023): FedDyn whose clients agree on where their losses are larger."""

from __future__ import annotations

from typing import Any, ClassVar

import jax

from fedsolve.core import trees
from fedsolve.core.algorithm import Cohort
from fedsolve.core.building import by_name
from fedsolve.core.errors import InvalidInput, shown
from fedsolve.core.oracle import Oracle
from fedsolve.core.schedules import Rate, rate_at
from fedsolve.core.types import Params, Scalar, module
from fedsolve.methods.algorithms.feddyn import DynamicRegularization, FedDyn, FedDynClient, FedDynMessage
from fedsolve.methods.client.sgd import SGD
from fedsolve.methods.client.solver import local_loop
from fedsolve.methods.sharpness.fedsam import Sharpness, of_length


@module
class WithMove:
    """The server or the broadcast of FedDyn, and the common move s (shapes of the model)."""

    inner: Any
    move: Params


@module
class WithDual:
    """The client or the message of FedDyn, and mu_i, the dual variable of the client's moves (shapes of the model)."""

    inner: Any
    dual: Params


@module
class AgreedSharpness(Sharpness):
    """FedSMOO around `FedDyn` with plain local SGD, which `FedSMOO` makes."""

    title: ClassVar[str] = "FedSMOO"
    name: ClassVar[str] = "FedSMOO"  # pyright: ignore[reportIncompatibleMethodOverride]
    parts: ClassVar[tuple[type, ...]] = (WithMove, WithDual)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.inner, DynamicRegularization) or not isinstance(self.inner.local, SGD):
            raise InvalidInput(f"FedSMOO goes around FedDyn(client_lr=0.1), not {shown(self.inner)}")

    def init(self, params: Params) -> WithMove:
        """The server of FedDyn, and s = 0."""
        return WithMove(self.inner.init(params), trees.zeros_like(params))

    def broadcast(self, server: WithMove, cohort: Cohort) -> WithMove:
        """The model and s."""
        return WithMove(self.inner.broadcast(server.inner, cohort), server.move)

    def init_client(self, broadcast: WithMove) -> WithDual:
        """g_i = 0 and mu_i = 0."""
        return WithDual(self.inner.init_client(broadcast.inner), trees.zeros_like(broadcast.move))

    def train(self, broadcast: WithMove, client: WithDual, oracle: Oracle) -> tuple[WithDual, WithDual]:
        """Local steps at moved models, each of which also moves mu_i."""
        inner: Any = self.inner
        start, gradient = broadcast.inner.params, client.inner.gradient
        lr = rate_at(inner.local.lr, broadcast.inner.round)

        def step(k: Scalar, carry: tuple[Params, Params]) -> tuple[Params, Params]:
            y, dual = carry
            _, raw = oracle(y, k)
            move = of_length(self.rho, trees.sub(raw, trees.add(dual, broadcast.move)))
            _, moved = oracle(trees.add(y, move), k)

            def descend(y: Any, w: Any, g: Any, own: Any) -> Any:
                return (y - lr * (g - own + inner.alpha * (y - w))).astype(y.dtype)

            y = jax.tree.map(descend, y, start, moved, gradient)
            return y, trees.add(dual, trees.sub(move, broadcast.move))

        last, dual = local_loop(oracle, step, (start, client.dual))
        delta = trees.sub(last, start)
        own = FedDynClient(trees.axpy(-inner.alpha, delta, gradient))
        return WithDual(FedDynMessage(delta), dual), WithDual(own, dual)

    def update(self, server: WithMove, message: WithDual, cohort: Cohort) -> WithMove:
        """FedDyn's step, and s along the mean of mu_i."""
        inner = self.inner.update(server.inner, message.inner, cohort)
        return WithMove(inner, of_length(self.rho, message.dual))


@by_name("FedSMOO")
def FedSMOO(client_lr: Rate = 0.1, *, rho: Scalar = 0.1, alpha: Scalar = 0.1) -> AgreedSharpness:
    """FedSMOO (Sun et al. 2023): FedDyn at models that clients move alike, to where the mean loss is larger.

        client i in S:  K times from w:   v = g_i'(y) - mu_i - s,   e = rho v / |v|,   mu_i <- mu_i + e - s
                                          y <- y - eta_l (g_i'(y + e) - g_i + alpha (y - w))
                        g_i <- g_i - alpha (y - w)
        server:         w <- mean over S of y - (1 / alpha) mean over all clients of g_i
                        s <- rho m / |m|,   m = mean over S of mu_i

    g_i' is a minibatch gradient of f_i. Up: y - w and mu_i (2 d numbers). Down: w and s (2 d). Kept: g_i and mu_i on
    each client (2 d), the mean of all g_i on the server; all start at 0. rho = 0 is `FedDyn`. As in the authors' code,
    s follows from mu_i alone, without the last e of the clients that the paper subtracts.

    Args:
        client_lr: eta_l > 0, a number or a schedule by round; 0.1 (the authors' code).
        rho: length of e and s, at least 0, in units of the parameters; 0.1 (the authors' code).
        alpha: > 0, in units of the loss per squared parameter; 0.1 (the authors' code).

    Returns:
        The method with every client's g_i and mu_i, whose local steps are those of SGD.

    Raises:
        InvalidInput: a number out of its range.

    Reference: Sun, Shen, Chen, Ding and Tao, "Dynamic Regularized Sharpness Aware Minimization in Federated Learning:
    Approaching Global Consistency and Smooth Landscape", ICML 2023.
    """
    return AgreedSharpness(FedDyn(client_lr, alpha=alpha), rho)
