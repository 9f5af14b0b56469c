"""Any optax transformation with its hyper-parameters as leaves, so that changing one does not recompile.

optax is imported where it is used: most runs need none of it, and it takes a quarter of a second.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from numbers import Real
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from fedsolve.core.errors import InvalidInput
from fedsolve.core.schedules import Schedule, as_count, rate_at
from fedsolve.core.types import Params, Scalar, module, static

if TYPE_CHECKING:
    import optax


@module
class Transformation:
    """An optax factory and its arguments; built inside the program, at the rates of the round.

    `values` are numbers, arrays or schedules of fedsolve, and leaves; `options`, all others, are part of the program.
    """

    values: dict[str, Any]
    factory: Callable[..., optax.GradientTransformation] = static()
    options: tuple[tuple[str, Any], ...] = static(default=())

    def at(self, round: Scalar) -> optax.GradientTransformationExtraArgs:
        # its counters are int64 in a float64 run: what optax's schedules make of int32 has float32's digits
        import optax

        values = {name: rate_at(v, round) for name, v in self.values.items()}
        made = optax.with_extra_args_support(self.factory(**values, **dict(self.options)))

        return optax.GradientTransformationExtraArgs(lambda params: _wide_state(made, params), made.update)

    def rate(self, round: Scalar) -> Scalar:
        """The argument `learning_rate` in a round, NaN if there is none."""
        return rate_at(self.values.get("learning_rate", float("nan")), round)


def _wide_state(made: optax.GradientTransformationExtraArgs, params: Params) -> Any:
    # the initial state with counters as wide as an update leaves them, and whatever follows from them
    try:
        state = made.init(params)
    except (TypeError, ValueError) as error:
        raise InvalidInput(
            f"the optax optimiser cannot start from this model: {str(error).splitlines()[0]}"
        ) from error
    wide = jax.tree.map(lambda x: as_count(x) if getattr(x, "dtype", None) == jnp.int32 else x, state)
    try:
        given = {name: value for name, value in tried(params).items() if name != "obj_fn"}
        after = jax.eval_shape(lambda: made.update(params, wide, params, **given)[1])
    except (TypeError, ValueError):  # a transformation that insists on its counters' type
        return state
    return jax.tree.map(lambda x, like: jnp.asarray(x, like.dtype), wide, after)


def tried(params: Params) -> dict[str, Any]:
    # what transformations may ask for beside a gradient and a model, as optax names it: of a loss that is 1 at
    # `params`, and whose gradient is 1
    def loss(other: Params) -> Scalar:
        return 1 + sum(jnp.sum(x - p) for x, p in zip(*map(jax.tree.leaves, (other, params)), strict=True))

    ones = jax.tree.map(jnp.ones_like, params)
    return {"value": jnp.ones(()), "grad": ones, "value_fn": loss, "obj_fn": loss}


def asked_for(transformation: Transformation) -> tuple[str, ...]:
    """What a transformation asks for beside a gradient and a model, found by trying."""
    # returns names of `tried`: none (or something else, which an update will tell), `value` for the loss at the
    # model, and more for losses at other models
    params = {"weight": jnp.zeros((2, 2)), "bias": jnp.zeros(2)}
    for names in ((), ("value",), ("value", "grad", "value_fn"), ("obj_fn",)):
        given = {name: value for name, value in tried(params).items() if name in names}

        def step(given: dict[str, Any] = given) -> Any:
            made = transformation.at(0)
            return made.update(params, made.init(params), params, **given)

        try:
            jax.eval_shape(step)
        except (TypeError, ValueError):
            continue
        return names
    return ()


def updated(made: Any, gradient: Params, state: Any, params: Params, **given: Any) -> tuple[Params, Any]:
    """A transformation's step, added to the model, and its next state."""
    # gradient: of the model's structure, as `state` and `params` are
    # **given: `value` and others that it may ask for
    # returns the next model and state
    import optax

    try:
        change, state = made.update(gradient, state, params, **given)
    except (TypeError, ValueError) as error:
        raise InvalidInput(
            f"the optax optimiser cannot make this step: {str(error).splitlines()[0]}"
        ) from error
    return optax.apply_updates(params, change), state


def kept_state(made: Any, params: Params) -> Any:
    """A transformation's initial state, to be kept from round to round."""
    # returns the state
    state = made.init(params)
    for leaf in jax.tree.leaves(state):
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            raise InvalidInput(
                "the optax optimiser keeps a random key in its state, which cannot be stored from round to round: take "
                "client.Optax(...) without keep=True, or another optimiser (fedsolve.privacy adds noise)"
            )
    return state


def evaluation_point(state: Any, params: Params) -> Params:
    """The model at which a transformation is evaluated: a schedule-free one takes gradients elsewhere."""
    # returns `optax.contrib.schedule_free_eval_params` of a schedule-free state, wherever it is in `state`;
    # else `params`
    from optax import contrib

    found = schedule_free_states(state)
    if not found:
        return params
    point = contrib.schedule_free_eval_params(found[0], params)
    return jax.tree.map(lambda x, p: x.astype(p.dtype), point, params)


def schedule_free_states(state: Any) -> list[Any]:
    """The schedule-free states in a transformation's, which have an iterate of their own besides the model."""
    from optax import contrib

    def is_free(part: Any) -> bool:
        return isinstance(part, contrib.ScheduleFreeState)

    return [part for part in jax.tree.leaves(state, is_leaf=is_free) if is_free(part)]


def transformation(factory: Callable[..., optax.GradientTransformation], **arguments: Any) -> Transformation:
    """Sort an optax factory's arguments into leaves and options."""
    import optax

    if isinstance(factory, optax.GradientTransformation) or not callable(factory):
        raise InvalidInput(
            "give the optax function and its arguments separately, as Optax(optax.adam, learning_rate=0.1): "
            "then changing a value does not recompile"
        )

    try:
        inspect.signature(factory).bind(**arguments)
    except TypeError as error:
        name = getattr(factory, "__name__", "this function")
        raise InvalidInput(f"{name} cannot be called with these arguments: {error}") from error

    def is_leaf(v: Any) -> bool:
        return isinstance(v, Schedule | jax.Array) or (isinstance(v, Real) and not isinstance(v, bool))

    values = {k: v for k, v in arguments.items() if is_leaf(v)}
    options = tuple((k, v) for k, v in arguments.items() if not is_leaf(v))
    return Transformation(values, factory, options)
