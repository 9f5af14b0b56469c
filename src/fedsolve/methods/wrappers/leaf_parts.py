"""A model in two parts, shared and personal leaves, and a client's oracle seen from one of them.

Each part has the model's structure with None for the leaves of the other, so that paths stay what they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from fedsolve.core import trees
from fedsolve.core.errors import InvalidInput
from fedsolve.core.oracle import WrappedOracle
from fedsolve.core.trees import all_matching, named_leaves
from fedsolve.core.types import Params, Scalar


def split(params: Params, patterns: Sequence[str]) -> tuple[Params, Params]:
    """The leaves that no pattern matches, and those that one does (patterns as of `fedsolve.core.trees`).

    Raises:
        InvalidInput: a pattern that matches no leaf, or patterns that match all.
    """
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
    """A client's loss as a function of one part of the model, the other fixed.

    Attributes:
        inner: the oracle of the whole model.
        fixed: the other part.
        passes: times that the round's minibatches are gone through.
    """

    fixed: Params
    passes: int = 1

    def __call__(self, params: Params, step: Scalar) -> tuple[Scalar, Params]:
        """Loss and gradient of the part on the minibatch of a local step."""
        loss, gradient = self.inner(join(params, self.fixed), self._minibatch(step))
        return loss, part(gradient, params)

    def loss(self, params: Params, step: Scalar) -> Scalar:
        """Loss alone on the same minibatch."""
        return self.inner.loss(join(params, self.fixed), self._minibatch(step))

    def full(self, params: Params) -> tuple[Scalar, Params]:
        """Loss and gradient of the part on all examples."""
        loss, gradient = self.inner.full(join(params, self.fixed))
        return loss, part(gradient, params)

    @property
    def steps(self) -> Any:
        """Local steps of all passes."""
        return self.passes * self.inner.steps

    @property
    def bound(self) -> Any:
        """Loop bound of all passes."""
        return self.passes * self.inner.bound

    def _minibatch(self, step: Scalar) -> Scalar:
        """The step of the round whose minibatch is seen; beyond a client's last step any will do."""
        return step if self.passes == 1 else step % jnp.maximum(self.inner.steps, 1)


@dataclass(frozen=True)
class JointOracle(WrappedOracle):
    """A client's loss as a function of the shared leaves, whose minibatch gradients move the personal ones along.

        (g, h) = gradient at (y, v):   g is returned,   v <- v - lr h

    What steps along g does SGD on all leaves together; v lies in mutable arrays, so that no method has to carry it.

    Attributes:
        inner: the oracle of the whole model.
        memory: the personal leaves, each a mutable array (`jax.new_ref`).
        lr: their rate.
    """

    memory: Any
    lr: Scalar

    def read(self) -> Params:
        """The personal leaves as they are now."""
        return jax.tree.map(lambda ref: ref[...], self.memory)

    def __call__(self, params: Params, step: Scalar) -> tuple[Scalar, Params]:
        """Loss and gradient on the minibatch of a local step, with which the personal leaves move."""
        personal = self.read()
        loss, gradient = self.inner(join(params, personal), step)
        # clients with fewer steps than others of their chunk stand still
        rate = self.lr if isinstance(self.steps, int) else jnp.where(step < self.steps, self.lr, 0)
        moved = trees.axpy(-rate, part(gradient, personal), personal)
        for ref, v in zip(jax.tree.leaves(self.memory), jax.tree.leaves(moved), strict=True):
            ref[...] = v
        return loss, part(gradient, params)

    def loss(self, params: Params, step: Scalar) -> Scalar:
        """Refused: the personal leaves have moved since the gradient that it would be compared with."""
        raise InvalidInput(_ONE_GRADIENT.format("losses"))

    def full(self, params: Params) -> tuple[Scalar, Params]:
        """Refused for the same reason."""
        raise InvalidInput(_ONE_GRADIENT.format("all examples at once"))


_ONE_GRADIENT = (
    "personal leaves that train jointly move with each minibatch gradient, and this method asks for {} besides: "
    "train them first, with passes = 1 of Personal (FedRep), or take a method of plain local steps such as FedAvg"
)
