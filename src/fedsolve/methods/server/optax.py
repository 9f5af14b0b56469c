"""Any optax transformation as the server's optimiser, with -D as its gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp

from fedsolve.core import trees
from fedsolve.core.algorithm import Cohort
from fedsolve.core.optax_bridge import Transformation, transformation
from fedsolve.core.types import Params, Traced, module, reported
from fedsolve.methods.server.server_optimizer import ServerOptimizer

if TYPE_CHECKING:
    import optax


@module
class OptaxRuleState:
    """The transformation's own state, and its learning rate where it names one (else NaN)."""

    optax: Any
    server_lr: Traced = reported()


@module
class OptaxRule(ServerOptimizer):
    """Server optimiser that applies an optax transformation; `Optax` makes one.

    Attributes:
        transformation: the optax function with its arguments, as `Optax` keeps it.
    """

    transformation: Transformation

    def init(self, params: Params) -> OptaxRuleState:
        """The transformation's initial state."""
        return OptaxRuleState(self.transformation.at(0).init(params), jnp.zeros((), trees.dtype_of(params)))

    def step(
        self, params: Params, state: OptaxRuleState, delta: Params, measured: Any, cohort: Cohort
    ) -> tuple[Params, OptaxRuleState]:
        """Apply one server step on the gradient -D."""
        import optax

        tx = self.transformation.at(cohort.round)
        change, inner = tx.update(trees.scale(-1.0, delta), state.optax, params)
        lr = self.transformation.rate(cohort.round)
        return optax.apply_updates(params, change), OptaxRuleState(
            inner, jnp.asarray(lr, state.server_lr.dtype)
        )


def Optax(factory: Callable[..., optax.GradientTransformation], **arguments: Any) -> OptaxRule:
    """Make a server optimiser from an optax function and its arguments; numbers are leaves.

    Args:
        factory: an optax function that makes a transformation, such as `optax.lion`; it sees -D as the
            gradient.
        **arguments: its arguments by name; numbers are leaves, so that a sweep varies them in one program.

    Returns:
        A server optimiser, such as for `FedOpt(client.SGD(0.1), server.Optax(...))`.

    Raises:
        InvalidInput: `factory` is a transformation that is made already, in place of the function.

    >>> import optax
    >>> Optax(optax.lion, learning_rate=0.01).transformation.values
    {'learning_rate': 0.01}
    """
    return OptaxRule(transformation(factory, **arguments))
