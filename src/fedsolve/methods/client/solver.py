"""The interface of a local solver: the client's part of a round, given an oracle and a starting point."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import lax

from fedsolve.core import trees
from fedsolve.core.errors import InvalidInput, shown
from fedsolve.core.oracle import Oracle, WrappedOracle
from fedsolve.core.types import MessageBounds, Params, Scalar, Traced, module, reduced, reported


@module
class Search:
    """What a line search adds to a message: its last accepted step, and loss evaluations beyond a step's own; the sum
    of its steps where control variates follow from it, else `()`."""

    step: Traced = reduced("max", MessageBounds(at_least=0), logged=True)
    evaluations: Traced = reduced("average", MessageBounds(at_least=0))
    rate_sum: Traced | tuple[()] = reduced("average", MessageBounds(at_least=0))


@module
class SearchLog:
    """What the server logs of it: the cohort's largest step, and evaluations of a participant on average."""

    client_step: Traced = reported()
    loss_evaluations: Traced = reported()


@module
class Solution:
    """Result of local work.

    Attributes:
        params: the client's last iterate.
        loss: mean minibatch loss over its local steps.
        rate_sum: sum of the rates that its steps applied, client update = -rate_sum x mean gradient; None if the
            client update is not a sum of gradients.
        search: what a line search did, `()` without one.
        steps: the local steps of a solver that tells no rates; else None.
        update: the client update where the solver has it itself, free of the rounding of `params`; else None.
    """

    params: Params
    loss: Scalar
    rate_sum: Scalar | None = None
    search: Search | tuple[()] = ()
    steps: Scalar | None = None
    update: Params | None = None


class LocalSolver(ABC):
    """Base class of local solvers, which minimise a client's loss for a few steps.

    Attributes:
        sums_gradients: whether solutions tell `rate_sum`.
        searches: whether solutions tell `search`.
        keeps_state: whether a client keeps something of it from round to round: `init_state` and `go_on` are then
            its own.
    """

    sums_gradients: ClassVar[bool] = False
    searches: ClassVar[bool] = False

    @property
    def keeps_state(self) -> bool:
        """Whether the solver keeps a state between rounds; False by default."""
        return False

    @abstractmethod
    def solve(self, params: Params, oracle: Oracle, round: Scalar) -> Solution:
        """Run `oracle.steps` local steps from `params`, from a new solver state.

        Args:
            params: the model that the client was sent.
            oracle: its data, seen through its loss.
            round: number of the round, from 0; schedules go by it.

        Returns:
            Where it ends, and what the server may ask of it.
        """

    def init_state(self, params: Params) -> Any:
        """The solver's state before a client first takes part, from the first model that it receives; `()` for none.

        Args:
            params: that model.

        Returns:
            A pytree of arrays.
        """
        return ()

    def go_on(self, state: Any, params: Params, oracle: Oracle, round: Scalar) -> tuple[Solution, Any]:
        """Run `solve` from the stored solver state; also return the new state, of the same shapes and types.

        Args:
            state: what the client kept.
            params: the model that it was sent.
            oracle: its data, seen through its loss.
            round: number of the round, from 0.

        Returns:
            The solution, and the next state.
        """
        return self.solve(params, oracle, round), state

    def why_it_stands_still(self, params: Params, steps: int, rounds: int) -> str:
        """The reason why its steps never change a model, whatever the gradients; "" where they do or it is unknown.

        Args:
            params: the initial model.
            steps: local steps of a client in a round, at most.
            rounds: of the run.

        Returns:
            Words for the end of "the clients' solver ...", or "".
        """
        return ""

    def rate_sum(self, steps: Scalar, round: Scalar) -> Scalar | None:
        """`Solution.rate_sum` if it is known without solving, otherwise None (an adaptive optimiser).

        Args:
            steps: local steps, at least 0.
            round: number of the round, from 0.

        Returns:
            A scalar in the units of a rate, or None.
        """
        return None


def check_local(local: object) -> None:
    """Raise `InvalidInput` unless it is a local solver."""
    if not isinstance(local, LocalSolver):
        raise InvalidInput(f"local = {shown(local)} must be a local solver such as client.SGD(0.1)")


def refuse_stateful(name: str, local: LocalSolver) -> None:
    """Raise `InvalidInput` if it is no solver or keeps a state, for a method that starts anew in every round."""
    check_local(local)
    if local.keeps_state:
        raise InvalidInput(
            f"{name} starts its clients' solver from a new state in every round: "
            "give local without keep=True, or take FedOpt"
        )


def local_loop(oracle: Oracle, body: Callable[[Scalar, Any], Any], carry: Any) -> Any:
    """Apply body(step, carry) for each local step; clients with fewer steps than the bound stand still."""
    if isinstance(oracle.steps, int):  # every client of the batch takes as many steps: no mask is needed
        if oracle.steps == 1:  # without a loop the start stays common to all clients: one matrix product
            return body(0, carry)
        return lax.fori_loop(0, oracle.steps, body, carry)

    def masked(step: Scalar, carry: Any) -> Any:
        return trees.where(step < oracle.steps, body(step, carry), carry)

    return lax.fori_loop(0, oracle.bound, masked, carry)


def mean_loss(total: Scalar, oracle: Oracle) -> Scalar:
    """Mean of summed losses over the local steps."""
    return total / jnp.maximum(oracle.steps, 1)


# Some of a client's local steps: up to a random one that all clients share, or after it.


@dataclass(frozen=True)
class StepWindow(WrappedOracle):
    """The local steps of a client from `first` on, `count` of them, no more than `most`."""

    adds: ClassVar[str] = "a number of steps that the method draws, not only where they end,"
    first: Any
    count: Any
    most: Any
    steps = property(attrgetter("count"))  # pyright: ignore[reportAssignmentType]
    bound = property(attrgetter("most"))  # pyright: ignore[reportAssignmentType]

    def __call__(self, params: Params, step: Scalar) -> tuple[Scalar, Params]:
        return self.inner(params, step + self.first)

    def loss(self, params: Params, step: Scalar) -> Scalar:
        return self.inner.loss(params, step + self.first)

    def full(self, params: Params) -> tuple[Scalar, Params]:
        return self.inner.full(params)


def shared_random_bits(round: Scalar) -> Any:
    """A random whole number below 2^16 that follows from the number of a round alone: all clients have the same."""
    return jax.random.bits(jax.random.fold_in(jax.random.key(0), round), dtype=jnp.uint32) >> 16


def geometric_draw(round: Scalar, p: Scalar) -> Any:
    """The number of coin tosses up to the first success, each of probability p: the same for all clients of a round."""
    uniform = (shared_random_bits(round) + 0.5) / 2**16
    return (jnp.log(uniform) / jnp.log1p(-jnp.asarray(p, uniform.dtype))).astype(jnp.int32) + 1


def split_steps(round: Scalar, oracle: Oracle) -> tuple[StepWindow, StepWindow]:
    """The steps of a client up to a random one, and those after it."""
    # Of K steps, the first part has each of 1 .. K with the same probability. It follows from the number of the round
    # and from K alone; clients with other numbers of steps are divided at the same share of theirs. Whole numbers
    # alone: the same in every precision.
    bits = shared_random_bits(round)

    def part(steps: Any) -> Any:
        return ((bits * jnp.asarray(steps, jnp.uint32) >> 16) + 1).astype(jnp.int32)

    first, most = part(oracle.steps), part(oracle.bound)
    return StepWindow(oracle, 0, first, most), StepWindow(
        oracle, first, oracle.steps - first, oracle.bound - most
    )
