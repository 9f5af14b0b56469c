"""What a local solver is: the client's side of a round, given an oracle and a start."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax

from fedsolve import trees
from fedsolve.oracle import Oracle
from fedsolve.types import Params, Scalar, module


@module
class Solution:
    """Result of local work.

    Attributes:
        params: the client's last iterate.
        loss: mean minibatch loss over its local steps.
    """

    params: Params
    loss: Scalar


class LocalSolver(ABC):
    """Minimises a client's loss for a few steps."""

    @abstractmethod
    def solve(self, params: Params, oracle: Oracle, round: Scalar) -> Solution:
        """`oracle.steps` local steps from `params`."""

    def elapsed(self, steps: Scalar, round: Scalar) -> Scalar | None:
        """Sum of the rates that local steps applied: displacement = -elapsed x mean gradient.

        None if the displacement is not a sum of gradients (an adaptive optimiser).
        """
        return None


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
