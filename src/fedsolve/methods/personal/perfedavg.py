"""Per-FedAvg (Fallah et al. 2020): a model that is good after each client's gradient step."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Literal, Unpack

import jax
import jax.numpy as jnp

from fedsolve.core import trees
from fedsolve.core.algorithm import Algorithm
from fedsolve.core.building import by_name, class_by_name
from fedsolve.core.errors import check_known, check_range
from fedsolve.core.oracle import Oracle, WrappedOracle
from fedsolve.core.schedules import Rate
from fedsolve.core.types import Params, Scalar, Weighting, module, static
from fedsolve.methods.client.sgd import ClientOptions
from fedsolve.methods.personal.adapted import AdaptedClient, Adapts
from fedsolve.methods.server.sgd import FedAvg

Variant = Literal["HF", "FO"]
"""How the product with the Hessian is made: from two gradients (Hessian-free), or left out (first order)."""


@dataclass(frozen=True)
class MetaOracle(WrappedOracle):
    """Losses f(y - alpha grad f(y)) after a gradient step, and their gradients.

    Attributes:
        inner: the oracle of f.
        alpha: rate of the step.
        delta: length of the differences that stand for the product with the Hessian, None to leave it out.
    """

    alpha: Scalar
    delta: Scalar | None

    def __call__(self, params: Params, step: Scalar) -> tuple[Scalar, Params]:
        """Loss and gradient on the step's minibatch; the next two are of the gradient step and of the Hessian."""
        loss, g = self.inner(self._adapted(params, step), step)
        return loss, self._times(g, params, lambda y: self.inner(y, self._later(step, 2))[1])

    def loss(self, params: Params, step: Scalar) -> Scalar:
        """Loss on the step's minibatch after the gradient step on the next."""
        return self.inner.loss(self._adapted(params, step), step)

    def full(self, params: Params) -> tuple[Scalar, Params]:
        """Loss and gradient with all examples in all three places."""
        adapted = trees.axpy(-self.alpha, self.inner.full(params)[1], params)
        loss, g = self.inner.full(adapted)
        return loss, self._times(g, params, lambda y: self.inner.full(y)[1])

    def _adapted(self, params: Params, step: Scalar) -> Params:
        return trees.axpy(-self.alpha, self.inner(params, self._later(step, 1))[1], params)

    def _later(self, step: Scalar, by: int) -> Scalar:
        """A later local step, the first after the last."""
        return (step + by) % jnp.maximum(self.steps, 1)

    def _times(self, g: Params, params: Params, gradient: Any) -> Params:
        """(I - alpha H) g, with H g from two gradients."""
        if self.delta is None:
            return g
        ahead, behind = (gradient(trees.axpy(s * self.delta, g, params)) for s in (1, -1))
        half = self.alpha / (2 * self.delta)
        return jax.tree.map(lambda x, a, b: (x - half * (a - b)).astype(x.dtype), g, ahead, behind)


@class_by_name("PerFedAvg")
@module
class Meta(Adapts):
    """Per-FedAvg (Fallah et al. 2020) around any method: clients' losses are those after a gradient step of theirs.

        client:  `inner` on F_i(y) = f_i(y - alpha grad f_i(y))

    Down and up: what `inner` sends. Kept: v_i = w - alpha grad f_i(w) on each client (d numbers), of all its examples
    and the model w that it received last, besides what `inner` keeps. A client is evaluated with its v_i, and with the
    initial model before it trains. alpha = 0 is `inner`. Losses that `inner` compares or reports are F_i.

    Args:
        inner: the method that runs on F_i.
        alpha: rate of the gradient step, at least 0; 0.01, the paper's.
        variant: `HF`, whose product with the Hessian comes from two gradients, or `FO`, which leaves it out.
        delta: length of these differences in units of the gradient, > 0; 0.001 is where to begin.

    Raises:
        InvalidInput: an `inner` that is no method, has models of its clients' own already or begins with older
            models; a number out of its range, an unknown variant.
    """

    title: ClassVar[str] = "PerFedAvg"
    inner: Algorithm
    _: KW_ONLY
    alpha: Scalar = 0.01
    variant: Variant = static(default="HF")
    delta: Scalar = 0.001

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("alpha", self.alpha, at_least=0)
        check_known("variant", self.variant, ("HF", "FO"))
        check_range("delta", self.delta, above=0)

    def train(self, broadcast: Any, client: AdaptedClient, oracle: Oracle) -> tuple[Any, AdaptedClient]:
        """Run the inner local work on the losses after a gradient step; adapt the model that came."""
        w = self.inner.model(broadcast)
        after = MetaOracle(oracle, self.alpha, self.delta if self.variant == "HF" else None)
        message, inner = self.inner.train(broadcast, client.inner, after)
        return message, AdaptedClient(inner, trees.axpy(-self.alpha, oracle.full(w)[1], w))


@by_name("PerFedAvg")
def PerFedAvg(
    client_lr: Rate = 0.1,
    *,
    alpha: Scalar = 0.01,
    variant: Variant = "HF",
    delta: Scalar = 0.001,
    server_lr: Rate = 1.0,
    weighting: Weighting = "uniform",
    **client: Unpack[ClientOptions],
) -> Meta:
    """Per-FedAvg (Fallah et al. 2020): FedAvg for a model that is good after one gradient step of each client.

        client:  u = y - alpha g_i(y; B'),   d = g_i(u; B);   K times from y = w
                 HF:   h = (g_i(y + delta d; B'') - g_i(y - delta d; B'')) / (2 delta),   y <- y - eta_l (d - alpha h)
                 FO:   y <- y - eta_l d
                 D_i = y - w;   v_i = w - alpha grad f_i(w) is kept
        server:  w <- w + eta_g sum_i p_i D_i

    Up: D_i (d numbers) and the mean local loss at u. Down: w. Kept: v_i on each client. It is `Meta(FedAvg(...))`;
    alpha = 0 is FedAvg. A local step costs four gradients (HF) or two (FO), a round one pass over all examples.

    B, B' and B'' are the minibatches of this, the next and the next but one local step, cyclically: three different
    ones where a client has three. The paper draws three independent ones. It also has the exact product with the
    Hessian, for which HF stands in: local work sees losses and gradients alone. `callbacks.FineTuning(1, alpha)`
    measures the last w after the gradient step.

    Args:
        client_lr: eta_l > 0, the paper's beta, a number or a schedule by round. 0.1 is where to begin; the paper's is
            0.001.
        alpha: at least 0; 0.01, the paper's.
        variant: `HF` or `FO`, as above.
        delta: > 0; 0.001 is where to begin.
        server_lr: eta_g > 0, a number or a schedule by round (1, the paper's).
        weighting: p_i `uniform` (the paper's) or by `examples`.
        **client: `client_momentum`, `weight_decay`, `clip_norm` of the clients' SGD, none by default (`client.SGD`).

    Returns:
        `Meta(FedAvg(...), ...)`.

    Raises:
        InvalidInput: a number out of its range, an unknown variant or weighting.

    >>> PerFedAvg(0.1, variant="FO").variant
    'FO'

    Reference: Fallah, Mokhtari and Ozdaglar, "Personalized Federated Learning with Theoretical Guarantees: A
    Model-Agnostic Meta-Learning Approach", NeurIPS 2020, Algorithm 1.
    """
    inner = FedAvg(client_lr, server_lr=server_lr, weighting=weighting, **client)
    return Meta(inner, alpha=alpha, variant=variant, delta=delta)
