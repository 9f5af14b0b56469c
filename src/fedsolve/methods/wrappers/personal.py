"""Personal leaves of the model: FedPer (Arivazhagan et al. 2019), FedRep (Collins et al. 2021)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import Any, ClassVar, Unpack

import jax
import jax.numpy as jnp

from fedsolve.core import trees
from fedsolve.core.algorithm import Algorithm, round_of
from fedsolve.core.building import by_name, checked, class_by_name, integer
from fedsolve.core.errors import InvalidInput, check_integer
from fedsolve.core.oracle import Oracle, Outcome, WrappedOracle
from fedsolve.core.schedules import Rate, as_rate, rate_at
from fedsolve.core.trees import all_matching, named_leaves
from fedsolve.core.types import Params, Scalar, Weighting, module
from fedsolve.methods.client.sgd import SGD, ClientOptions
from fedsolve.methods.server.sgd import FedAvg
from fedsolve.methods.wrappers.wrapper import OwnModels

# A model in two parts, shared and personal leaves, and a client's oracle seen from one of them.
#
# Each part has the model's structure with None for the leaves of the other, so that paths stay what they are.


def split(params: Params, patterns: Sequence[str]) -> tuple[Params, Params]:
    """The leaves that no pattern matches, and those that one does (patterns as of `fedsolve.core.trees`)."""
    paths, leaves = named_leaves(params)
    chosen = all_matching("leaves", paths, patterns)
    if len(chosen) == len(leaves):
        raise InvalidInput(
            f"leaves = {', '.join(patterns)} are all {len(leaves)} of the model: nothing is left to be federated"
        )
    structure = jax.tree.structure(params)
    shared = structure.unflatten([None if i in chosen else x for i, x in enumerate(leaves)])
    return shared, structure.unflatten([x if i in chosen else None for i, x in enumerate(leaves)])


def join(one: Params, other: Params) -> Params:
    """The model of two parts."""
    return jax.tree.map(lambda a, b: b if a is None else a, one, other, is_leaf=lambda x: x is None)


def part(model: Params, like: Params) -> Params:
    """The leaves of a model that a part has."""
    return jax.tree.map(lambda a, x: None if a is None else x, like, model, is_leaf=lambda x: x is None)


@dataclass(frozen=True)
class PartOracle(WrappedOracle):
    """A client's loss as a function of one part of the model, the other fixed; `passes` go through its minibatches."""

    adds: ClassVar[str] = "the gradient of a part of the model"
    fixed: Params
    passes: int = 1

    def __call__(self, params: Params, step: Scalar) -> tuple[Scalar, Params]:
        loss, gradient = self.inner(join(params, self.fixed), self._minibatch(step))
        return loss, part(gradient, params)

    def loss(self, params: Params, step: Scalar) -> Scalar:
        return self.inner.loss(join(params, self.fixed), self._minibatch(step))

    def full(self, params: Params) -> tuple[Scalar, Params]:
        loss, gradient = self.inner.full(join(params, self.fixed))
        return loss, part(gradient, params)

    @property
    def steps(self) -> Any:
        return self.passes * self.inner.steps

    @property
    def bound(self) -> Any:
        return self.passes * self.inner.bound

    def _minibatch(self, step: Scalar) -> Scalar:
        """The step of the round whose minibatch is seen; beyond a client's last step any will do."""
        return step if self.passes == 1 else step % jnp.maximum(self.inner.steps, 1)


@dataclass(frozen=True)
class JointOracle(WrappedOracle):
    """A client's loss as a function of the shared leaves, whose minibatch gradients move the personal ones along.

        (g, h) = gradient at (y, v):   g is returned,   v <- v - lr h

    What steps along g does SGD on all leaves together; v lies in mutable arrays (`jax.new_ref`), so that no method
    has to carry it.
    """

    memory: Any
    lr: Scalar

    def read(self) -> Params:
        return jax.tree.map(lambda ref: ref[...], self.memory)

    def __call__(self, params: Params, step: Scalar) -> tuple[Scalar, Params]:
        # loss and gradient on the minibatch of a local step, with which the personal leaves move
        personal = self.read()
        loss, gradient = self.inner(join(params, personal), step)
        # clients with fewer steps than others of their chunk stand still
        rate = self.lr if isinstance(self.steps, int) else jnp.where(step < self.steps, self.lr, 0)
        moved = trees.axpy(-rate, part(gradient, personal), personal)
        for ref, v in zip(jax.tree.leaves(self.memory), jax.tree.leaves(moved), strict=True):
            ref[...] = v
        return loss, part(gradient, params)

    def loss(self, params: Params, step: Scalar) -> Scalar:
        # Refused: the personal leaves have moved since the gradient that it would be compared with
        raise InvalidInput(_ONE_GRADIENT.format("losses"))

    def full(self, params: Params) -> tuple[Scalar, Params]:
        raise InvalidInput(_ONE_GRADIENT.format("all examples at once"))

    def trained(self, params: Params) -> Outcome:
        """Where a training loop of all leaves ends; the personal ones stay there."""
        outcome = self.inner.trained(join(params, self.read()))
        for ref, v in zip(
            jax.tree.leaves(self.memory), jax.tree.leaves(part(outcome.params, self.memory)), strict=True
        ):
            ref[...] = v
        return replace(outcome, params=part(outcome.params, params))


_ONE_GRADIENT = (
    "personal leaves that train jointly move with each minibatch gradient, and this method asks for {} besides: "
    "train them first, with passes = 1 of Personal (FedRep), or take a method of plain local steps such as FedAvg"
)


@module
class PersonalServer:
    """The inner server, of the shared leaves, and the personal ones that every client begins with."""

    inner: Any
    personal: Params


@module
class PersonalClient:
    """The inner client, of the shared leaves, and the client's own personal ones."""

    inner: Any
    personal: Params


@class_by_name("Personal")
@module
class Personal(OwnModels):
    """Personal leaves stay on each client and are never sent; `inner` trains the shared ones.

        jointly (passes = 0):   (g, h) = gradient of f_i at (y, v_i):   `inner`'s local step of y along g,
                                v_i <- v_i - eta_v h
        first (passes = P):     v_i <- v_i - eta_v h_i(w, v_i), through the round's minibatches P times;
                                then `inner` on f_i(., v_i) from w, through the same minibatches once

    Down and up: what `inner` sends for a model of the shared leaves alone. Kept: v_i on each client, besides what
    `inner` keeps there. All v_i begin as those of the initial model, of which every participant has a copy; a client
    that loses its own begins anew with them. The server's model is the shared leaves with these initial ones: what a
    client that never trained is measured with, where all others are measured with their own.

    Joint training is SGD on all leaves if `inner`'s clients do SGD at the same rate; its momentum, clipping and weight
    decay act on the shared leaves alone. It takes methods that ask for one minibatch gradient a step; a line search or
    a loss of all examples is refused, and goes with `passes`. What `inner` adds to the objective (a proximal term,
    control variates, a penalty) is of the shared leaves. Private methods go inside: what a client sends is clipped
    and noised whatever it keeps.

    Args:
        inner: the method of the shared leaves.
        leaves: which leaves are personal: a pattern of paths, or several, as in `fedsolve.geometry` (`"output.*"`).
        personal_lr: eta_v > 0, a number or a schedule by round. 0.1 is where to begin.
        passes: P, passes over the round's minibatches that the personal leaves train first, the shared ones fixed;
            0 trains all together.

    Raises:
        InvalidInput: an `inner` that is no method, has models of its clients' own already or begins with older
            models; patterns that are none, match no leaf, or all; a rate or a number of passes out of its range.
    """

    parts: ClassVar[tuple[type, ...]] = (PersonalServer, PersonalClient)
    inner: Algorithm
    leaves: str | tuple[str, ...] = checked(
        partial(trees.as_patterns, example="'output.*' or ('output.*', 'scale')"), static=True
    )
    _: KW_ONLY
    personal_lr: Rate = checked(as_rate, default=0.1)
    passes: int = integer(at_least=0, default=0)

    @property
    def title(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The name of the method: FedPer or FedRep."""
        return "FedRep" if self.passes else "FedPer"

    @property
    def mutates_buffers(self) -> bool:
        """Whether the oracle updates the personal leaves."""
        return not self.passes

    def init(self, params: Params) -> PersonalServer:
        shared, personal = self.divide(params)
        return PersonalServer(self.inner.init(shared), personal)

    def init_client(self, broadcast: Any) -> PersonalClient:
        # not supported: the personal leaves are not in a broadcast; `enrol` makes a client's first state
        raise InvalidInput("a client begins with personal leaves of its own copy of the model: call enrol")

    def enrol(self, broadcast: Any, params: Params) -> PersonalClient:
        shared, personal = self.divide(params)
        return PersonalClient(self.inner.enrol(broadcast, shared), personal)

    def train(self, broadcast: Any, client: PersonalClient, oracle: Oracle) -> tuple[Any, PersonalClient]:
        round = round_of(broadcast)
        if not self.passes:
            memory = jax.tree.map(jax.new_ref, client.personal)
            joint = JointOracle(oracle, memory, rate_at(self.personal_lr, round))
            message, inner = self.inner.train(broadcast, client.inner, joint)
            return message, PersonalClient(inner, joint.read())
        first = PartOracle(oracle, self.inner.model(broadcast), self.passes)
        personal = SGD(self.personal_lr).solve(client.personal, first, round).params
        message, inner = self.inner.train(broadcast, client.inner, PartOracle(oracle, personal))
        return message, PersonalClient(inner, personal)

    def export(self, server: PersonalServer) -> Params:
        # the shared leaves with the initial personal leaves
        return join(self.inner.export(server.inner), server.personal)

    def own_model(self, model: Params, client: PersonalClient) -> Params:
        return join(self.divide(model)[0], client.personal)

    def divide(self, params: Params) -> tuple[Params, Params]:
        """The shared and the personal leaves of a model, each with None for the other's.

        Args:
            params: the model's parameters.

        Returns:
            Two trees of its structure.

        Raises:
            InvalidInput: a pattern matches no leaf, or all leaves.
        """
        return split(params, self.leaves)


@by_name("FedPer")
def FedPer(
    leaves: str | tuple[str, ...],
    client_lr: Rate = 0.1,
    *,
    server_lr: Rate = 1.0,
    weighting: Weighting = "examples",
) -> Personal:
    """FedPer (Arivazhagan et al. 2019): FedAvg on the shared layers; the last layers stay on each client.

        client:  (y, v_i) <- (y, v_i) - eta_l grad f_i(y, v_i), K times from (w, v_i);   D_i = y - w;   v_i is kept
        server:  w <- w + eta_g sum_i p_i D_i,   p_i = n_i / sum of n over S

    Up: D_i (of the shared leaves) and the mean local loss. Down: w. Kept: v_i on each client. It is
    `Personal(FedAvg(client_lr), leaves, personal_lr=client_lr)`.

    Args:
        leaves: which leaves are personal, by patterns of their paths (`"output.*"`): the paper's are those of the
            last layer or the last few.
        client_lr: eta_l > 0 of all leaves, a number or a schedule by round. 0.1 is where to begin; the paper's is
            0.01, on residual networks.
        server_lr: eta_g > 0, a number or a schedule by round (1, the paper's).
        weighting: p_i by `examples` (the paper's) or `uniform`.

    Returns:
        `Personal(FedAvg(...), leaves, personal_lr=client_lr)`.

    Raises:
        InvalidInput: patterns that are none, a rate that is not positive, an unknown weighting.

    Reference: Arivazhagan, Aggarwal, Singh and Choudhary, "Federated Learning with Personalization Layers",
    arXiv:1912.00818, 2019, Algorithms 1 and 2.
    """
    inner = FedAvg(client_lr, server_lr=server_lr, weighting=weighting)
    return Personal(inner, leaves, personal_lr=client_lr)


@by_name("FedRep")
def FedRep(
    leaves: str | tuple[str, ...],
    client_lr: Rate = 0.1,
    *,
    personal_lr: Rate = 0.1,
    passes: int = 10,
    server_lr: Rate = 1.0,
    weighting: Weighting = "uniform",
    **client: Unpack[ClientOptions],
) -> Personal:
    """FedRep (Collins et al. 2021): each client first fits its personal head, then trains the shared body.

        client:  v_i <- v_i - eta_v grad_v f_i(w, v_i), through the round's minibatches `passes` times
                 y <- y - eta_l grad_y f_i(y, v_i), K times from w;   D_i = y - w;   v_i is kept
        server:  w <- w + eta_g sum_i p_i D_i

    Up: D_i (of the shared leaves) and the mean local loss. Down: w. Kept: v_i on each client. It is
    `Personal(FedAvg(client_lr), leaves, personal_lr=personal_lr, passes=passes)`.

    Args:
        leaves: which leaves are personal, by patterns of their paths (`"output.*"`): the paper's are the last layer's.
        client_lr: eta_l > 0 of the shared leaves, a number or a schedule by round. 0.1 is where to begin: the paper
            tunes it.
        personal_lr: eta_v > 0 of the personal leaves (the paper has one rate for both).
        passes: passes over the round's minibatches that train the personal leaves, at least 1. 10 is the paper's
            number of head epochs, where the run has `epochs = 1`.
        server_lr: eta_g > 0, a number or a schedule by round (1, the paper's).
        weighting: p_i `uniform` (the paper's Algorithm 1) or by `examples`.
        **client: `client_momentum`, `weight_decay`, `clip_norm` of the body's SGD, none by default (`client.SGD`).

    Returns:
        `Personal(FedAvg(...), leaves, personal_lr=personal_lr, passes=passes)`.

    Raises:
        InvalidInput: patterns that are none, a number out of its range, an unknown weighting.

    Reference: Collins, Hassani, Mokhtari and Shakkottai, "Exploiting Shared Representations for Personalized Federated
    Learning", ICML 2021, Algorithm 1.
    """
    passes = check_integer("passes", passes, 1, bits=31)
    inner = FedAvg(client_lr, server_lr=server_lr, weighting=weighting, **client)
    return Personal(inner, leaves, personal_lr=personal_lr, passes=passes)
