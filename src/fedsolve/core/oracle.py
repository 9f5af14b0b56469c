"""The oracle: one client's data, seen through its loss. Algorithms know nothing else about a client."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, ClassVar, NoReturn

import jax
from jaxtyping import Array

from fedsolve.core import trees
from fedsolve.core.errors import InvalidInput, of_type
from fedsolve.core.types import Params, Scalar

GradientMap = Callable[[Params, Params], Params]
"""(params, gradient) -> gradient, all of the model's shapes and types."""


class Oracle(ABC):
    """First-order access to one client's loss during one round.

    Loss and gradient belong together, also in a wrapped oracle: a line search compares them.

    Attributes:
        steps: local steps of this client in this round.
        bound: a number of steps that no client of the same batch exceeds (a loop's bound); equal to
            `steps` where nothing is batched.
        num_examples: examples of this client.
        batch_size: examples of a full minibatch; no fewer than `num_examples` if each step sees all.
        client: the client's number in the federation, from 0.
        key: the client's own random key of the round, for noise that it adds; None where there is none.
    """

    steps: int | Array
    bound: int | Array
    num_examples: int | Array
    batch_size: int | Array
    client: int | Array
    key: Any = None

    @abstractmethod
    def __call__(self, params: Params, step: Scalar) -> tuple[Scalar, Params]:
        """Loss and gradient on the minibatch of a local step.

        Args:
            params: the model.
            step: the local step, from 0 to below `steps`.

        Returns:
            The mean loss over the minibatch's examples, one number, and its gradient, of the model's shapes.
        """

    @abstractmethod
    def loss(self, params: Params, step: Scalar) -> Scalar:
        """Loss alone on the same minibatch, for line searches and for losses that the server uses.

        Args:
            params: the model.
            step: number of the local step, 0 .. steps - 1, whose minibatch it is.

        Returns:
            The mean over the minibatch, shape ().
        """

    @abstractmethod
    def full(self, params: Params) -> tuple[Scalar, Params]:
        """Mean loss and gradient over all of the client's examples, at the cost of one pass over its data.

        Args:
            params: the model.

        Returns:
            The loss, shape (), and its gradient, of the model's structure.
        """

    def remembering(self, memory: Any) -> Oracle:
        """This oracle with buffers (`fedsolve.core.buffers.Memory`), which minibatch gradients update.

        Args:
            memory: the place to which gradients write the new buffers.

        Returns:
            A new oracle of the same data.

        Raises:
            InvalidInput: its loss has no buffers.
        """
        raise InvalidInput(f"{of_type(self)} has no buffers")

    def map_gradient(self, function: GradientMap) -> Oracle:
        """This oracle with a function, such as clipping or weight decay, applied to its minibatch gradients.

        Losses and gradients on all examples do not change. Several functions are applied in the order given.

        Args:
            function: (params, gradient) -> gradient of the same structure.

        Returns:
            A new oracle of the same data.
        """
        return MappedOracle(self, function)

    def trained(self, params: Params) -> Outcome:
        """The result of a training loop of the client's own that begins with `params`.

        Args:
            params: the model.

        Returns:
            What the loop gives back; its parameters are of the model's shapes and types.

        Raises:
            NeedsMore: the loop does not see what this oracle adds to the client's loss.
            InvalidInput: the client has no such loop.
        """
        raise InvalidInput(f"{of_type(self)} has no training loop of the client's own")


@dataclass(frozen=True)
class WrappedOracle(Oracle):
    """An oracle that adds a term to another oracle's losses (`extra`) and changes its gradients (`change`).

    A term in the loss needs both: `change` adds its gradient. To scale gradients, define `change` alone; a line search
    then compares losses with gradients that are not theirs. Minibatches and all examples are treated alike, so that a
    line search, a full gradient and a reported loss are all of the objective that the wrapper makes. To change
    gradients of minibatches alone, use `map_gradient`.

    Args:
        inner: the oracle that is wrapped; steps, examples and randomness are its own.

    Attributes:
        adds: what it adds, in words.
    """

    adds: ClassVar[str] = "a gradient of its own"
    inner: Oracle

    def change(self, params: Params, gradient: Params) -> Params:
        """The inner gradient plus the gradient of the added term, or the inner gradient scaled.

        Args:
            params: the model at which the gradient was taken.
            gradient: the inner oracle's gradient, with the model's shapes.

        Returns:
            A gradient of the same structure, shapes and types.
        """
        raise NotImplementedError

    def extra(self, params: Params) -> Scalar:
        """The term that is added to every loss, shape (); 0 by default.

        Args:
            params: the model.

        Returns:
            The value of the term.
        """
        return 0.0

    def __call__(self, params: Params, step: Scalar) -> tuple[Scalar, Params]:
        loss, gradient = self.inner(params, step)
        return self._more(loss, params), self.change(params, gradient)

    def loss(self, params: Params, step: Scalar) -> Scalar:
        return self._more(self.inner.loss(params, step), params)

    def full(self, params: Params) -> tuple[Scalar, Params]:
        loss, gradient = self.inner.full(params)
        return self._more(loss, params), self.change(params, gradient)

    def trained(self, params: Params) -> Outcome:
        raise NeedsMore(f"{self.adds} in each local step")

    def _more(self, loss: Any, params: Params) -> Scalar:
        return (loss + self.extra(params)).astype(loss.dtype)

    steps = property(attrgetter("inner.steps"))  # pyright: ignore[reportAssignmentType]
    bound = property(attrgetter("inner.bound"))  # pyright: ignore[reportAssignmentType]
    num_examples = property(attrgetter("inner.num_examples"))  # pyright: ignore[reportAssignmentType]
    batch_size = property(attrgetter("inner.batch_size"))  # pyright: ignore[reportAssignmentType]
    client = property(attrgetter("inner.client"))  # pyright: ignore[reportAssignmentType]
    key = property(attrgetter("inner.key"))  # pyright: ignore[reportAssignmentType]


@dataclass(frozen=True)
class MappedOracle(WrappedOracle):
    """An oracle whose minibatch gradients pass through a function of (params, gradient): not those of its loss."""

    function: GradientMap

    def __call__(self, params: Params, step: Scalar) -> tuple[Scalar, Params]:
        # inner loss and mapped gradient on the minibatch of a local step
        loss, gradient = self.inner(params, step)
        return loss, self.function(params, gradient)

    def loss(self, params: Params, step: Scalar) -> Scalar:
        return self.inner.loss(params, step)

    def full(self, params: Params) -> tuple[Scalar, Params]:
        return self.inner.full(params)


@dataclass(frozen=True)
class CorrectedOracle(WrappedOracle):
    """Adds <c - c_i, y - w> to losses, c - c_i to gradients, after raw ones were clipped or decayed."""

    adds: ClassVar[str] = "the gradient, corrected by control variates,"
    correction: Params
    anchor: Params

    def change(self, params: Params, gradient: Params) -> Params:
        return trees.add(gradient, self.correction)

    def extra(self, params: Params) -> Scalar:
        return trees.dot(self.correction, trees.sub(params, self.anchor))

    def map_gradient(self, function: GradientMap) -> Oracle:
        """The function acts on the raw gradient: c_i must estimate what is corrected."""
        return CorrectedOracle(self.inner.map_gradient(function), self.correction, self.anchor)


@dataclass(frozen=True)
class ProximalOracle(WrappedOracle):
    """Adds (mu/2) |y - anchor|^2 to losses, its gradient to gradients."""

    adds: ClassVar[str] = "a proximal term"
    anchor: Params
    mu: Scalar = 0.1

    def change(self, params: Params, gradient: Params) -> Params:
        return jax.tree.map(
            lambda g, y, w: (g + self.mu * (y - w)).astype(g.dtype), gradient, params, self.anchor
        )

    def extra(self, params: Params) -> Scalar:
        return self.mu / 2 * trees.squared_norm(trees.sub(params, self.anchor))


def correction(oracle: Oracle) -> Params | None:
    """What control variates add to an oracle's gradients, c - c_i of the model's shapes; None where none do."""
    while isinstance(oracle, WrappedOracle):
        if isinstance(oracle, CorrectedOracle):
            return oracle.correction
        oracle = oracle.inner
    return None


def uncorrected(delta: Params, rate_sum: Scalar | None, oracle: Oracle) -> Params:
    """A client update without the correction that its gradients had: minus rate_sum times its own mean gradient."""
    # delta: the update, of the model's shapes
    # rate_sum: sum of the rates that its steps applied; None if the solver does not tell it
    # oracle: what the steps saw, with all wrappers. Where none corrects, `delta` is returned
    added = correction(oracle)
    if added is None:
        return delta
    if rate_sum is None:
        raise InvalidInput(
            "uncorrected updates need clients whose steps add up gradients, such as client.SGD(0.1)"
        )
    return trees.axpy(rate_sum, added, delta)


# A client whose local work is a training loop of its own, outside of any program: it is told where to begin, and what
# the loop gives back is data of the program that makes the message.


class NeedsMore(InvalidInput):
    """A method asks of a client what a training loop of the client's own does not tell, or has not told as `name`."""

    about_request = True

    def __init__(self, need: str, name: str = "") -> None:
        self.need = need
        remedy = f": return it from the training loop as '{name}'"
        missing = ", which a training loop of the client's own does not tell"
        super().__init__(f"the method needs {need}{remedy if name else missing}")


@dataclass(frozen=True)
class Outcome:
    """What a training loop gives back: the model where it ends, and the number of examples.

    `steps` and `loss`, of the model that it began with, are None where it does not tell them; `buffers` are what the
    model keeps beside its parameters, where the program carries it, else None.
    """

    params: Params
    examples: Any
    steps: Any = None
    loss: Any = None
    buffers: Any = None


jax.tree_util.register_dataclass(Outcome, ["params", "examples", "steps", "loss", "buffers"], [])


class _Begins(Exception):
    """Raised where local work begins: with which model, and with the step or the buffers there."""


@dataclass(frozen=True)
class _Beginning(WrappedOracle):
    memory: Any = None

    def trained(self, params: Params) -> NoReturn:
        raise _Begins(params, None if self.memory is None else self.memory.read())

    def __call__(self, params: Params, step: Scalar) -> NoReturn:
        raise _Begins(params, step)

    def change(self, params: Params, gradient: Params) -> Params:
        return gradient

    def remembering(self, memory: Any) -> Oracle:
        return replace(self, memory=memory)


def beginning_of(
    train: Callable[[Any, Any, Oracle], Any], broadcast: Any, state: Any, oracle: Oracle
) -> tuple[Params, Any] | None:
    try:
        train(broadcast, state, _Beginning(oracle))
    except _Begins as begins:
        return begins.args
    return None


class _LossAlone(tuple[Any]):
    def __iter__(self) -> NoReturn:
        raise NeedsMore("the gradient of all of a client's examples")

    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(0) if index == 0 else iter(self)


@dataclass(frozen=True, eq=False)
class TrainedRound(Oracle):
    """A client in one round whose local work is a training loop of its own: a pytree.

    `outcome` is None before the loop has run, `begun` is the model that it began with; `memory`: None without
    buffers.
    """

    outcome: Outcome | None
    client: Any
    key: Any = None
    memory: Any = None
    begun: list[Params] = field(default_factory=list, init=False)

    def trained(self, params: Params) -> Outcome:
        assert self.outcome is not None
        if self.begun:
            raise NeedsMore("local work twice in a round")
        self.begun.append(params)
        if self.memory is not None:
            self.memory.write(self.outcome.buffers, True)
        return self.outcome

    def remembering(self, memory: Any) -> TrainedRound:
        return replace(self, memory=memory)

    def __call__(self, params: Params, step: Scalar) -> NoReturn:
        raise NeedsMore("the gradient of each local step")

    def loss(self, params: Params, step: Scalar) -> NoReturn:
        raise NeedsMore("losses of minibatches")

    def full(self, params: Params) -> Any:
        """The loss of the model that the loop began with, as the loop told it."""
        if not self.begun or not jax.tree.all(jax.tree.map(lambda a, b: a is b, params, self.begun[0])):
            raise NeedsMore("losses of other models than the one that a client begins with")
        return _LossAlone((self._told("loss", "the loss of the model that a client begins with"),))

    @property
    def steps(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self._told("steps", "the number of local steps")

    bound = steps  # pyright: ignore[reportAssignmentType, reportIncompatibleVariableOverride]

    @property
    def num_examples(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self._told("examples", "the number of examples")

    batch_size = num_examples  # pyright: ignore[reportAssignmentType, reportIncompatibleVariableOverride]

    def _told(self, name: str, what: str) -> Any:
        value = getattr(self.outcome, name, None)
        if value is None:
            raise NeedsMore(what, name)
        return value


jax.tree_util.register_dataclass(TrainedRound, ["outcome", "client", "key"], [], ["memory"])
