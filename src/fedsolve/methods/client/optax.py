"""Any optax optimiser as the client's solver, started anew each round or kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from fedsolve.core import trees
from fedsolve.core.building import flag
from fedsolve.core.errors import InvalidInput
from fedsolve.core.optax_bridge import (
    Transformation,
    asked_for,
    evaluation_point,
    kept_state,
    schedule_free_states,
    transformation,
    tried,
    updated,
)
from fedsolve.core.oracle import Oracle
from fedsolve.core.types import Params, Scalar, module
from fedsolve.methods.client.solver import LocalSolver, Solution, local_loop, mean_loss

if TYPE_CHECKING:
    import optax

_MOST = 10_000  # steps in which an optimiser that keeps its state has surely begun to move
_MANY, _SHORT = 1_000, 100  # steps within which an estimate is found; how many times shorter is too short


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
    keep: bool = flag(default=False)

    @property
    def keeps_state(self) -> bool:
        return self.keep

    def init_state(self, params: Params) -> Any:
        state = kept_state(self.transformation.at(0), params) if self.keep else ()
        if schedule_free_states(state):
            raise InvalidInput(
                "a schedule-free optimiser has an iterate of its own, which a client would keep while the server's "
                "model goes on: take client.Optax(...) without keep=True"
            )
        return state

    def why_it_stands_still(self, params: Params, steps: int, rounds: int) -> str:
        if self.keep:
            return ""
        try:
            return _why_short(self.transformation, params, steps, rounds)
        except (TypeError, ValueError):  # one that insists on a whole model: a run will tell
            return ""

    def solve(self, params: Params, oracle: Oracle, round: Scalar) -> Solution:
        tx = self.transformation.at(round)
        return _run(tx, asked_for(self.transformation), tx.init(params), params, oracle)[0]

    def go_on(self, state: Any, params: Params, oracle: Oracle, round: Scalar) -> tuple[Solution, Any]:
        if not self.keep:
            return self.solve(params, oracle, round), state
        asked = asked_for(self.transformation)
        return _run(self.transformation.at(round), asked, state, params, oracle)


def _why_short(transformation: Transformation, params: Params, steps: int, rounds: int) -> str:
    """What `why_it_stands_still` says of a transformation that starts anew in each round."""
    moves = [
        _longest(transformation, params, steps, steps, t)[0] for t in sorted({0, rounds // 2, rounds - 1})
    ]
    most = min(steps * rounds, _MOST)
    anew = "starts anew in every round"
    if not any(moves):
        if _longest(transformation, params, steps, most, rounds - 1)[1] > 0:
            return (
                f"{anew} and moves nothing in its first {steps} steps (a schedule of optax counts these): give "
                "keep=True, more local steps, or a schedule of fedsolve, which counts rounds"
            )
        return "moves nothing, whatever the gradients: look at its rate"
    first, longest = _longest(transformation, params, steps, min(most, _MANY), rounds - 1)
    if longest > _SHORT * first:
        return (
            f"{anew}, and with it the estimate of its step: its first {steps} steps are {longest / first:.0e} times "
            "shorter than later ones would be: give keep=True"
        )
    return ""


def _longest(
    transformation: Transformation, params: Params, steps: int, total: int, round: int
) -> tuple[float, float]:
    """The longest of the first steps, and of all, on gradients of ones, from a new state on."""
    first, longest = _lengths(transformation, params, *map(jnp.int32, (steps, total, round)))
    return float(first), float(longest)


@jax.jit
def _lengths(
    transformation: Transformation, params: Params, steps: Scalar, total: Scalar, round: Scalar
) -> tuple[Array, Array]:
    """`_longest` as a program, on a corner of each leaf."""
    tx = transformation.at(round)
    params = jax.tree.map(lambda x: x[(slice(2),) * x.ndim], params)
    ones = jax.tree.map(jnp.ones_like, params)
    given = {name: value for name, value in tried(params).items() if name in asked_for(transformation)}

    def step(k: Scalar, carry: tuple[Params, Any, Array, Array]) -> tuple[Params, Any, Array, Array]:
        y, state, first, longest = carry
        change, state = tx.update(ones, state, y, **given)
        length = trees.norm(change).astype(first.dtype)  # of a loss without end: not finite in the long run
        longest = jnp.where(jnp.isfinite(length), jnp.maximum(longest, length), longest)
        return trees.add(y, change), state, jnp.where(k < steps, longest, first), longest

    zero = jnp.zeros((), trees.dtype_of(params))
    return lax.fori_loop(0, total, step, (params, tx.init(params), zero, zero))[2:]


def _run(tx: Any, asked: tuple[str, ...], state: Any, params: Params, oracle: Oracle) -> tuple[Solution, Any]:
    """`oracle.steps` steps of a transformation from its state; clients with fewer steps keep theirs of the last."""

    def step(k: Scalar, carry: tuple[Params, Any, Scalar]) -> tuple[Params, Any, Scalar]:
        y, state, total = carry
        loss, g = oracle(y, k)

        def at(other: Params) -> Scalar:
            return oracle.loss(other, k)

        known = {"value": loss, "grad": g, "value_fn": at, "obj_fn": at}
        y, state = updated(tx, g, state, y, **{name: known[name] for name in asked})
        return y, state, total + loss

    start = (params, state, jnp.zeros((), trees.dtype_of(params)))
    last, state, total = local_loop(oracle, step, start)
    return Solution(evaluation_point(state, last), mean_loss(total, oracle), steps=oracle.steps), state


def Optax(
    factory: Callable[..., optax.GradientTransformation], *, keep: bool = False, **arguments: Any
) -> OptaxSolver:
    """Make a local solver from an optax function and its arguments; numbers are leaves.

    Args:
        factory: an optax function that makes a transformation, such as `optax.adam`; it may ask for the loss (`momo`)
            and for losses at other models (`lbfgs`), on the step's minibatch. A schedule-free one sends the model at
            which it is to be evaluated.
        keep: False: the optimiser starts anew in every round, and a schedule of optax counts the steps of a round. One
            that is 0 in all of them, or an estimate of a step that begins again each round (`dog`, `prodigy`), is told
            in a note of the run. True: its state (Adam's moments and count) is the
            client's own, waits while the client is not drawn, and goes on when it is; it takes as much memory for
            each client of the population as the optimiser for one model; a schedule-free one is refused. A schedule of
            optax given as an argument then counts the client's local steps over all rounds; a schedule of fedsolve
            counts rounds either way.
        **arguments: its arguments by name; numbers are leaves, so that a sweep varies them in one program.

    Returns:
        A local solver, such as for `FedOpt(client.Optax(...), server.ServerSGD())`.

    Raises:
        InvalidInput: `factory` is a transformation that is made already, in place of the function, or has not these
            arguments; keep is no bool.

    >>> import optax
    >>> Optax(optax.adam, learning_rate=0.01).transformation.values
    {'learning_rate': 0.01}
    >>> Optax(optax.adam, keep=True, learning_rate=0.01).keeps_state
    True
    """
    return OptaxSolver(transformation(factory, **arguments), keep)
