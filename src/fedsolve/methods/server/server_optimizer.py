"""The interface of a server optimiser: the server's step, given the cohort's mean client update."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Literal

from fedsolve.core.algorithm import Cohort
from fedsolve.core.errors import InvalidInput
from fedsolve.core.oracle import Oracle
from fedsolve.core.types import Params, Weighting
from fedsolve.methods.client.solver import LocalSolver, Solution

_NEEDS = {
    "sums_gradients": "whose steps add up gradients, such as client.SGD(0.1) or client.Armijo(), and tell their rates",
    "searches": "that search along a line, such as client.Armijo(), and tell their step",
}

Needs = Literal["sums_gradients", "searches"] | None
"""What a server optimiser needs of the clients' solver: the attribute of `LocalSolver` that must be true."""


class ServerOptimizer(ABC):
    """Base class of server optimisers.

    A server optimiser moves the model by the mean client update D = mean of (w_i - w) over the cohort. Its state
    reports `server_lr`, the learning rate of its last step.

    Attributes:
        needs: what the clients' solver must tell beside its update: `sums_gradients` the sum of the rates that
            its steps applied (`Solution.rate_sum`), `searches` what its line search did (`Solution.search`); None for
            nothing. FedOpt refuses other solvers.
        sends_client_update: whether what clients send as `delta` is D_i; another `direction` if not.
        compares_clients: whether the step goes by mean |D_i|^2, which clients send as `measured.squared_norm`.
        weighting: how clients count in D where `FedOpt` is not told: as in the paper of the step, by `examples` where
            none says.
    """

    needs: ClassVar[Needs] = None
    sends_client_update: ClassVar[bool] = True
    weighting: ClassVar[Weighting] = "examples"
    compares_clients: ClassVar[bool] = False

    def check(self, local: LocalSolver) -> None:
        """Raise `InvalidInput` if a local solver does not report what the server's step needs.

        Args:
            local: the clients' solver.

        Raises:
            InvalidInput: it does not; which ones do.
        """
        if self.needs is not None and not getattr(local, self.needs):
            raise InvalidInput(
                f"{type(self).__name__} needs clients {_NEEDS[self.needs]}; {type(local).__name__} does not"
            )

    @abstractmethod
    def init(self, params: Params) -> Any:
        """The optimiser's state before the first round, for a model `params`; scalars have its type.

        Args:
            params: the model w.

        Returns:
            A module whose scalars marked `reported` are logged.
        """

    def client_stats(self, delta: Params, solution: Solution, start: Params, oracle: Oracle) -> Any:
        """The statistics that the step needs from a client besides its update, reduced as their fields say.

        `delta` leads from `start`, the model w, to `solution.params`; `oracle` is the client's, with the terms
        that wrappers add to its losses.

        Args:
            delta: the client's update, of the model's structure.
            solution: where its local work ended.
            start: the model that it began with.
            oracle: its data, seen through its loss.

        Returns:
            A module whose fields say how they are reduced; `()` for nothing.
        """
        return ()

    def direction(self, delta: Params, solution: Solution) -> Params:
        """The vector that a client sends to be averaged; by default its update.

        Args:
            delta: the client's update, of the model's structure.
            solution: where its local work ended.

        Returns:
            A pytree like delta.
        """
        return delta

    @abstractmethod
    def step(
        self, params: Params, state: Any, delta: Params, measured: Any, cohort: Cohort
    ) -> tuple[Params, Any]:
        """Apply the server's step.

        Args:
            params: the model w.
            state: what `init` or the last step gave.
            delta: D, the mean over the cohort of what `direction` sends; the shapes of the model.
            measured: what `client_stats` gave, reduced over the cohort as its fields say.
            cohort: the round's number from 0, and how many clients took part.

        Returns:
            The new model, in the types of `params`, and the new state.
        """

    def evaluation_point(self, params: Params, state: Any) -> Params:
        """The model that is evaluated and returned; by default the one that clients start from.

        Args:
            params: the model w.
            state: what `init` or the last step gave.

        Returns:
            A pytree like params.
        """
        return params
