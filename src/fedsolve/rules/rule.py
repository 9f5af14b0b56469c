"""What a server rule is: the server's step, given the cohort's mean displacement."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from fedsolve.algorithm import Cohort
from fedsolve.types import Params


class Rule(ABC):
    """Moves the model by the mean displacement D = mean of (w_i - w) over the cohort.

    A rule's state reports `server_lr`, the global learning rate of its last step.
    """

    @abstractmethod
    def init(self, params: Params) -> Any:
        """The rule's state before the first round."""

    def measure(self, delta: Params) -> Any:
        """What the step needs from each client besides its displacement; averaged with it."""
        return ()

    @abstractmethod
    def step(
        self, params: Params, state: Any, delta: Params, measured: Any, cohort: Cohort
    ) -> tuple[Params, Any]:
        """The new model and the new state."""
