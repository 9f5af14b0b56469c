"""Any optax transformation as the server's optimiser, with -D as its gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import jax.numpy as jnp

from fedsolve.core import trees
from fedsolve.core.algorithm import Cohort
from fedsolve.core.errors import InvalidInput
from fedsolve.core.optax_bridge import (
    Transformation,
    asked_for,
    evaluation_point,
    kept_state,
    transformation,
    updated,
)
from fedsolve.core.oracle import Oracle
from fedsolve.core.types import Params, Traced, module, reported
from fedsolve.methods.client.solver import Solution
from fedsolve.methods.server.server_optimizer import Needs, ServerOptimizer

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
        return OptaxRuleState(
            kept_state(self.transformation.at(0), params), jnp.zeros((), trees.dtype_of(params))
        )

    def step(
        self, params: Params, state: OptaxRuleState, delta: Params, measured: Any, cohort: Cohort
    ) -> tuple[Params, OptaxRuleState]:
        # apply one server step on the gradient -D
        tx, gradient = self.transformation.at(cohort.round), trees.scale(-1.0, delta)
        params, inner = updated(tx, gradient, state.optax, params, **self.given(measured))
        lr = self.transformation.rate(cohort.round)
        return params, OptaxRuleState(inner, jnp.asarray(lr, state.server_lr.dtype))

    def given(self, measured: Any) -> dict[str, Any]:
        """Return what the transformation gets beside the gradient and the model: nothing.

        Args:
            measured: what clients sent besides their updates.

        Returns:
            Values by optax's names.
        """
        return {}

    def evaluation_point(self, params: Params, state: OptaxRuleState) -> Params:
        # the model, or that of a schedule-free transformation's state
        return evaluation_point(state.optax, params)


@module
class ScaledLoss:
    """What a client adds to its update for a rule that asks for the loss: tau_i f_i(w)."""

    value: Traced


@module
class OptaxLossRule(OptaxRule):
    """`OptaxRule` of a transformation that asks for the loss, such as `optax.polyak_sgd`.

    D is the negative gradient of the mean of tau_i f_i, tau_i the sum of the rates that client i applied, and `value`
    is that mean (see `Polyak`, which `optax.polyak_sgd` is). Each client evaluates f_i(w) on all of its examples and
    sends one number more.
    """

    needs: ClassVar[Needs] = "sums_gradients"

    def client_stats(self, delta: Params, solution: Solution, start: Params, oracle: Oracle) -> ScaledLoss:
        # the client's loss f_i(w) in units of its update
        loss: Any = oracle.full(start)[0]
        rates: Any = solution.rate_sum  # `needs` says so
        return ScaledLoss((rates * loss).astype(loss.dtype))

    def given(self, measured: ScaledLoss) -> dict[str, Any]:
        return {"value": measured.value}


def Optax(factory: Callable[..., optax.GradientTransformation], **arguments: Any) -> OptaxRule:
    """Make a server optimiser from an optax function and its arguments; numbers are leaves.

    Args:
        factory: an optax function that makes a transformation, such as `optax.lion`; it sees -D as the
            gradient. One that asks for the loss (`momo`, `polyak_sgd`) gets it in units of D, from clients whose steps
            add up gradients; the model of a schedule-free one is where it is to be evaluated.
        **arguments: its arguments by name; numbers are leaves, so that a sweep varies them in one program.

    Returns:
        A server optimiser, such as for `FedOpt(client.SGD(0.1), server.Optax(...))`.

    Raises:
        InvalidInput: `factory` is a transformation that is made already, in place of the function, has not these
            arguments, or asks for losses at other models (a line search), which a server has not.

    >>> import optax
    >>> Optax(optax.lion, learning_rate=0.01).transformation.values
    {'learning_rate': 0.01}
    """
    made = transformation(factory, **arguments)
    asked = asked_for(made)
    if not set(asked) <= {"value"}:
        name = getattr(factory, "__name__", str(factory))
        raise InvalidInput(
            f"{name} asks for losses at other models, which a server has not: take client.Optax({name}), or a server "
            "optimiser without a line search"
        )
    return OptaxLossRule(made) if asked else OptaxRule(made)
