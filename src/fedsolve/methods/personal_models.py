"""Per-FedAvg (Fallah et al. 2020) and pFedMe (Dinh et al. 2020): models that are adapted to each client."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Literal, Unpack

import jax
import jax.numpy as jnp
from jax import lax

from fedsolve.core import trees
from fedsolve.core.algorithm import Algorithm, round_of
from fedsolve.core.building import by_name, checked, choice, class_by_name, integer, number
from fedsolve.core.errors import InvalidInput
from fedsolve.core.oracle import Oracle, WrappedOracle
from fedsolve.core.schedules import Rate, as_rate, rate_at
from fedsolve.core.types import Params, Scalar, Weighting, module
from fedsolve.methods.client.sgd import ClientOptions
from fedsolve.methods.server.sgd import FedAvg
from fedsolve.methods.wrappers.wrapper import OwnModels


@module
class AdaptedClient:
    """The inner client, and the client's adapted model (the shapes of the model)."""

    inner: Any
    personal: Params


class Adapts(OwnModels):
    """Base class: clients keep a model of their own, at first that of the first round."""

    parts: ClassVar[tuple[type, ...]] = (AdaptedClient,)
    inner: Algorithm

    def init_client(self, broadcast: Any) -> AdaptedClient:
        return AdaptedClient(self.inner.init_client(broadcast), self.inner.model(broadcast))

    def own_model(self, model: Params, client: AdaptedClient) -> Params:
        return client.personal


# Per-FedAvg (Fallah et al. 2020): a model that is good after each client's gradient step.

Variant = Literal["HF", "FO"]
"""How the product with the Hessian is made: from two gradients (Hessian-free), or left out (first order)."""


@dataclass(frozen=True)
class MetaOracle(WrappedOracle):
    """Losses f(y - alpha grad f(y)) after a gradient step, and their gradients.

    The product with the Hessian is by differences of length `delta`; None leaves it out.
    """

    adds: ClassVar[str] = "the gradient after a step of the client"
    alpha: Scalar
    delta: Scalar | None

    def __call__(self, params: Params, step: Scalar) -> tuple[Scalar, Params]:
        # loss and gradient on the step's minibatch; the next two are of the gradient step and of the Hessian
        loss, g = self.inner(self._adapted(params, step), step)
        return loss, self._times(g, params, lambda y: self.inner(y, self._later(step, 2))[1])

    def loss(self, params: Params, step: Scalar) -> Scalar:
        # loss on the step's minibatch after the gradient step on the next
        return self.inner.loss(self._adapted(params, step), step)

    def full(self, params: Params) -> tuple[Scalar, Params]:
        # loss and gradient with all examples in all three places
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
    alpha: Scalar = number(default=0.01, at_least=0)
    variant: Variant = choice("HF", "FO", default="HF", kind="variant")
    delta: Scalar = number(default=0.001, above=0)

    def train(self, broadcast: Any, client: AdaptedClient, oracle: Oracle) -> tuple[Any, AdaptedClient]:
        # run the inner local work on the losses after a gradient step; adapt the model that came
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


# pFedMe (Dinh et al. 2020): local steps on Moreau envelopes, whose minimisers are the personal models.

_ONE_GRADIENT = (
    "Moreau envelopes move the personal model with each minibatch gradient, and this method asks for {} besides: take "
    "a method of plain local steps such as FedAvg"
)


@dataclass(frozen=True)
class MoreauOracle(WrappedOracle):
    """Gradients lam (y - v) of a Moreau envelope, after `passes` steps of v on the minibatch's proximal objective.

    `memory` is v, each leaf a mutable array (`jax.new_ref`): it begins where the last local step left it. `lr` is the
    rate of its steps.
    """

    adds: ClassVar[str] = "the gradient of a Moreau envelope"
    memory: Any
    lam: Scalar
    lr: Scalar
    passes: int

    def read(self) -> Params:
        """v as it is now."""
        return jax.tree.map(lambda ref: ref[...], self.memory)

    def __call__(self, params: Params, step: Scalar) -> tuple[Scalar, Params]:
        # loss at v before its last step, and lam (y - v) after it
        def descend(_: Scalar, carry: tuple[Params, Scalar]) -> tuple[Params, Scalar]:
            v = carry[0]
            loss, g = self.inner(v, step)
            g = trees.axpy(self.lam, trees.sub(v, params), g)
            return trees.axpy(-self.lr, g, v), jnp.asarray(loss, trees.dtype_of(params))

        start = (self.read(), jnp.zeros((), trees.dtype_of(params)))
        v, loss = lax.fori_loop(0, self.passes, descend, start)
        # clients with fewer steps than others of their chunk stand still
        due = True if isinstance(self.steps, int) else step < self.steps
        for ref, x in zip(jax.tree.leaves(self.memory), jax.tree.leaves(v), strict=True):
            ref[...] = jnp.where(due, x, ref[...])
        return loss, trees.scale(self.lam, trees.sub(params, v))

    def loss(self, params: Params, step: Scalar) -> Scalar:
        # Refused: v has moved since the gradient that it would be compared with
        raise InvalidInput(_ONE_GRADIENT.format("losses"))

    def full(self, params: Params) -> tuple[Scalar, Params]:
        raise InvalidInput(_ONE_GRADIENT.format("all examples at once"))


@class_by_name("pFedMe")
@module
class Moreau(Adapts):
    """pFedMe (Dinh et al. 2020) around any method of plain local steps: they go along Moreau envelopes of the losses.

        client:  v <- v - eta_v (g_i(v) + lam (v - y)), P times on the step's minibatch
                 `inner` steps along the gradient lam (y - v)

    Down and up: what `inner` sends. Kept: v_i on each client (d numbers), besides what `inner` keeps; each round v
    begins as the model w that the client received. A client is evaluated with its v_i of the last round it took part
    in, and with the initial model before. A method whose local work asks for losses or passes over all examples is
    refused.

    Args:
        inner: the method that runs on the envelopes.
        lam: weight of (lam / 2) |v - y|^2, > 0, in units of the loss per squared parameter; 15, the authors' code.
        personal_lr: eta_v > 0, a number or a schedule by round; 0.1, the authors' code.
        personal_steps: P, steps of v on each minibatch, at least 1; 5, the authors' code.

    Raises:
        InvalidInput: an `inner` that is no method, has models of its clients' own already or begins with older
            models; a number out of its range.
    """

    title: ClassVar[str] = "pFedMe"
    mutates_buffers: ClassVar[bool] = True
    inner: Algorithm
    _: KW_ONLY
    lam: Scalar = number(default=15.0, above=0)
    personal_lr: Rate = checked(as_rate, default=0.1)
    personal_steps: int = integer(default=5)

    def train(self, broadcast: Any, client: AdaptedClient, oracle: Oracle) -> tuple[Any, AdaptedClient]:
        memory = jax.tree.map(jax.new_ref, self.inner.model(broadcast))
        lr = rate_at(self.personal_lr, round_of(broadcast))
        envelope = MoreauOracle(oracle, memory, self.lam, lr, self.personal_steps)
        message, inner = self.inner.train(broadcast, client.inner, envelope)
        return message, AdaptedClient(inner, envelope.read())


@by_name("pFedMe")
def pFedMe(
    client_lr: Rate = 0.005,
    *,
    lam: Scalar = 15.0,
    personal_lr: Rate = 0.1,
    personal_steps: int = 5,
    server_lr: Rate = 1.0,
    weighting: Weighting = "uniform",
    **client: Unpack[ClientOptions],
) -> Moreau:
    """pFedMe (Dinh et al. 2020): FedAvg on Moreau envelopes; their minimisers are the clients' personal models.

        client:  y = v = w;   K times
                     v <- v - eta_v (g_i(v) + lam (v - y)), P times on one minibatch
                     y <- y - eta_l lam (y - v)
                 D_i = y - w;   v_i = v is kept
        server:  w <- w + eta_g sum_i p_i D_i

    Up: D_i (d numbers) and the mean local loss at v. Down: w. Kept: v_i on each client. It is `Moreau(FedAvg(...))`. A
    local step costs P gradients. One local step with P = 1 is FedAvg at the rate eta_l lam eta_v.

    In the paper all clients train, and the server averages a sample of them; here clients that are not drawn rest. The
    paper asks for v with a gradient of at most some norm; P steps, from the v of the last local step, are the authors'
    code, whose gradients also have 0.001 v added, of which the paper has nothing.

    Args:
        client_lr: eta_l > 0, a number or a schedule by round; 0.005, the authors' code. eta_l lam at most 1 takes y
            no further than v.
        lam: > 0, in units of the loss per squared parameter; 15, the authors' code.
        personal_lr: eta_v > 0, a number or a schedule by round; 0.1, the authors' code.
        personal_steps: P, at least 1; 5, the authors' code.
        server_lr: eta_g > 0, the paper's beta, a number or a schedule by round; 1 replaces w by the mean of
            the y, the paper has 1 or more.
        weighting: p_i `uniform` (the paper's) or by `examples` (the authors' code).
        **client: `client_momentum`, `weight_decay`, `clip_norm` of the steps of y, none by default (`client.SGD`).

    Returns:
        `Moreau(FedAvg(...), ...)`.

    Raises:
        InvalidInput: a number out of its range, an unknown weighting.

    >>> pFedMe(0.01, lam=10.0).lam
    10.0

    Reference: Dinh, Tran and Nguyen, "Personalized Federated Learning with Moreau Envelopes", NeurIPS 2020,
    Algorithm 1.
    """
    inner = FedAvg(client_lr, server_lr=server_lr, weighting=weighting, **client)
    return Moreau(inner, lam=lam, personal_lr=personal_lr, personal_steps=personal_steps)
