"""The oracle: one client's data, seen only through its loss. Algorithms know nothing else of a client."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jaxtyping import Array

from fedsolve.types import Params, Scalar

GradientMap = Callable[[Params, Params], Params]
"""(params, gradient) -> gradient."""


class Oracle(ABC):
    """First-order access to one client's loss during one round.

    Attributes:
        steps: local steps of this client in this round.
        bound: a number of steps that no client of the same batch exceeds (a loop's bound); equal to
            `steps` where nothing is batched.
        num_examples: examples of this client.
        client: the client's number in the federation, from 0.
    """

    steps: int | Array
    bound: int | Array
    num_examples: int | Array
    client: int | Array

    @abstractmethod
    def __call__(self, params: Params, step: Scalar) -> tuple[Scalar, Params]:
        """Loss and gradient on the minibatch of a local step."""

    @abstractmethod
    def loss(self, params: Params, step: Scalar) -> Scalar:
        """Loss alone on the same minibatch."""

    @abstractmethod
    def full(self, params: Params) -> tuple[Scalar, Params]:
        """Loss and gradient on all of the client's examples."""

    def map_gradient(self, function: GradientMap) -> Oracle:
        """This oracle with a function (clipping, weight decay) applied to its minibatch gradients."""
        return MappedOracle(self, function)


@dataclass(frozen=True)
class WrappedOracle(Oracle):
    """An oracle that changes the minibatch gradient of another and nothing else."""

    inner: Oracle

    def change(self, params: Params, gradient: Params) -> Params:
        """The gradient that is handed out instead of the inner one."""
        raise NotImplementedError

    def __call__(self, params: Params, step: Scalar) -> tuple[Scalar, Params]:
        """Loss and changed gradient on the minibatch of a local step."""
        loss, gradient = self.inner(params, step)
        return loss, self.change(params, gradient)

    def loss(self, params: Params, step: Scalar) -> Scalar:
        """Loss of the inner oracle."""
        return self.inner.loss(params, step)

    def full(self, params: Params) -> tuple[Scalar, Params]:
        """Loss and gradient of the inner oracle on all examples."""
        return self.inner.full(params)

    @property
    def steps(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Local steps of the inner oracle."""
        return self.inner.steps

    @property
    def bound(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Loop bound of the inner oracle."""
        return self.inner.bound

    @property
    def num_examples(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Examples of the inner oracle."""
        return self.inner.num_examples

    @property
    def client(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The client's number."""
        return self.inner.client


@dataclass(frozen=True)
class MappedOracle(WrappedOracle):
    """An oracle whose gradients pass through a function."""

    function: GradientMap

    def change(self, params: Params, gradient: Params) -> Params:
        """function(params, gradient)."""
        return self.function(params, gradient)
