"""pFedMe (Dinh et al. 2020): local steps on Moreau envelopes, whose minimisers are the personal models."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Unpack

import jax
import jax.numpy as jnp
from jax import lax

from fedsolve.core import trees
from fedsolve.core.algorithm import Algorithm, round_of
from fedsolve.core.building import by_name, class_by_name
from fedsolve.core.errors import InvalidInput, check_integer, check_range
from fedsolve.core.oracle import Oracle, WrappedOracle
from fedsolve.core.schedules import Rate, as_rate, rate_at
from fedsolve.core.types import Params, Scalar, Weighting, module, static
from fedsolve.methods.client.sgd import ClientOptions
from fedsolve.methods.personal.adapted import AdaptedClient, Adapts
from fedsolve.methods.server.sgd import FedAvg

_ONE_GRADIENT = (
    "Moreau envelopes move the personal model with each minibatch gradient, and this method asks for {} besides: take "
    "a method of plain local steps such as FedAvg"
)


@dataclass(frozen=True)
class MoreauOracle(WrappedOracle):
    """Gradients lam (y - v) of a Moreau envelope, after some steps of v on the minibatch's proximal objective.

    Attributes:
        inner: the oracle of the loss.
        memory: v, each leaf a mutable array (`jax.new_ref`): it begins where the last local step left it.
        lam: weight of the proximal term.
        lr: rate of the steps of v.
        passes: how many of them, at least 1.
    """

    memory: Any
    lam: Scalar
    lr: Scalar
    passes: int

    def read(self) -> Params:
        """v as it is now."""
        return jax.tree.map(lambda ref: ref[...], self.memory)

    def __call__(self, params: Params, step: Scalar) -> tuple[Scalar, Params]:
        """Loss at v before its last step, and lam (y - v) after it."""

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
        """Refused: v has moved since the gradient that it would be compared with."""
        raise InvalidInput(_ONE_GRADIENT.format("losses"))

    def full(self, params: Params) -> tuple[Scalar, Params]:
        """Refused for the same reason."""
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
    lam: Scalar = 15.0
    personal_lr: Rate = 0.1
    personal_steps: int = static(default=5)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("lam", self.lam, above=0)
        object.__setattr__(self, "personal_lr", as_rate("personal_lr", self.personal_lr))
        object.__setattr__(
            self, "personal_steps", check_integer("personal_steps", self.personal_steps, 1, bits=31)
        )

    def train(self, broadcast: Any, client: AdaptedClient, oracle: Oracle) -> tuple[Any, AdaptedClient]:
        """Run the inner local work on the client's envelope."""
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
