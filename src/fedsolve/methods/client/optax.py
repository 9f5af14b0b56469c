"""Any optax optimiser as the client's solver, started anew each round or kept."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from fedsolve.core import trees
from fedsolve.core.checks import check_flag
from fedsolve.core.optax_bridge import Transformation, transformation
from fedsolve.core.oracle import Oracle
from fedsolve.core.types import Params, Scalar, Traced, module, static
from fedsolve.methods.client.solver import LocalSolver, Solution, local_loop, mean_loss

if TYPE_CHECKING:
    import optax

_MOST = 10_000  # steps in which an optimiser that keeps its state has surely begun to move


@module
class OptaxSolver(LocalSolver):
    """Local solver that runs an optax optimiser; `Optax` makes one.

    Attributes:
        transformation: the optax function with its arguments, as `Optax` keeps it.
        keep: whether its state is the client's, kept from round to round, or starts anew in each.

    Raises:
        InvalidInput: keep is no bool.
    """

    transformation: Transformation
    keep: bool = static(default=False)

    def __post_init__(self) -> None:
        check_flag("keep", self.keep)

    @property
    def keeps_state(self) -> bool:
        """The option `keep`."""
        return self.keep

    def init_state(self, params: Params) -> Any:
        """The optimiser's initial state if it is kept, otherwise `()`."""
        return self.transformation.at(0).init(params) if self.keep else ()

    def why_it_stands_still(self, params: Params, steps: int, rounds: int) -> str:
        """The reason why its steps never change a model: a state that starts anew in each round, or another."""
        looked_at = sorted({0, rounds // 2, rounds - 1})
        moves = partial(_moves, self.transformation, params)
        if self.keep or any(moves(jnp.int32(steps), jnp.int32(t)) for t in looked_at):
            return ""
        if moves(jnp.int32(min(steps * rounds, _MOST)), jnp.int32(rounds - 1)):
            return (
                f"starts anew in every round and moves nothing in its first {steps} steps (a schedule of optax counts "
                "these): give keep=True, more local steps, or a schedule of fedsolve, which counts rounds"
            )
        return "moves nothing, whatever the gradients: look at its rate"

    def solve(self, params: Params, oracle: Oracle, round: Scalar) -> Solution:
        """Run `oracle.steps` steps of the optimiser from `params`."""
        tx = self.transformation.at(round)
        return _run(tx, tx.init(params), params, oracle)[0]

    def go_on(self, state: Any, params: Params, oracle: Oracle, round: Scalar) -> tuple[Solution, Any]:
        """Run the steps from the stored state; also return the final state."""
        if not self.keep:
            return self.solve(params, oracle, round), state
        return _run(self.transformation.at(round), state, params, oracle)


@jax.jit
def _moves(transformation: Transformation, params: Params, steps: Scalar, round: Scalar) -> Array:
    """Whether so many steps on gradients of ones, from a new state on, change anything."""
    tx = transformation.at(round)

    def step(carry: tuple[Any, Scalar, Array]) -> tuple[Any, Scalar, Array]:
        state, k, _ = carry
        change, state = tx.update(jax.tree.map(jnp.ones_like, params), state, params)
        leaves = [jnp.any(x != 0) for x in jax.tree.leaves(change)]
        return state, k + 1, jnp.any(jnp.array(leaves))

    def goes_on(carry: tuple[Any, Scalar, Array]) -> Traced:
        return (carry[1] < steps) & ~carry[2]

    return lax.while_loop(goes_on, step, (tx.init(params), jnp.int32(0), jnp.array(False)))[2]


def _run(tx: Any, state: Any, params: Params, oracle: Oracle) -> tuple[Solution, Any]:
    """`oracle.steps` steps of a transformation from its state; clients with fewer steps keep theirs of the last."""
    import optax

    def step(k: Scalar, carry: tuple[Params, Any, Scalar]) -> tuple[Params, Any, Scalar]:
        y, state, total = carry
        loss, g = oracle(y, k)
        change, state = tx.update(g, state, y)
        return optax.apply_updates(y, change), state, total + loss

    start = (params, state, jnp.zeros((), trees.dtype_of(params)))
    last, state, total = local_loop(oracle, step, start)
    return Solution(last, mean_loss(total, oracle)), state


def Optax(
    factory: Callable[..., optax.GradientTransformation], *, keep: bool = False, **arguments: Any
) -> OptaxSolver:
    """Make a local solver from an optax function and its arguments; numbers are leaves.

    Args:
        factory: an optax function that makes a transformation, such as `optax.adam`.
        keep: False: the optimiser starts anew in every round, and a schedule of optax counts the steps of a round;
            one that is 0 in all of them is told in a note of the run. True: its state (Adam's moments and count) is the
            client's own, waits while the client is not drawn, and goes on when it is; it takes as much memory for
            each client of the population as the optimiser for one model. A schedule of optax given as an argument
            then counts the client's local steps over all rounds; a schedule of fedsolve counts rounds either way.
        **arguments: its arguments by name; numbers are leaves, so that a sweep varies them in one program.

    Returns:
        A local solver, such as for `FedOpt(client.Optax(...), server.ServerSGD())`.

    Raises:
        InvalidInput: `factory` is a transformation that is made already, in place of the function; keep is no bool.

    >>> import optax
    >>> Optax(optax.adam, learning_rate=0.01).transformation.values
    {'learning_rate': 0.01}
    >>> Optax(optax.adam, keep=True, learning_rate=0.01).keeps_state
    True
    """
    return OptaxSolver(transformation(factory, **arguments), keep)
