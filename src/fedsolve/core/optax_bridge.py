"""Any optax transformation with its hyper-parameters as leaves, so that changing one does not recompile.

optax is imported where it is used: most runs need none of it, and it takes a quarter of a second.
"""

from __future__ import annotations

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

    Attributes:
        values: arguments that are numbers, arrays or schedules of fedsolve: leaves.
        factory: the optax function, such as `optax.adam`; part of the program.
        options: the other arguments (flags, functions), name and value; part of the program.
    """

    values: dict[str, Any]
    factory: Callable[..., optax.GradientTransformation] = static()
    options: tuple[tuple[str, Any], ...] = static(default=())

    def at(self, round: Scalar) -> optax.GradientTransformationExtraArgs:
        """The transformation with the rates of a round.

        Its counters are int64 in a float64 run: what optax's schedules make of int32 has float32's digits.
        """
        import optax

        values = {name: rate_at(v, round) for name, v in self.values.items()}
        made = optax.with_extra_args_support(self.factory(**values, **dict(self.options)))

        return optax.GradientTransformationExtraArgs(lambda params: _wide_state(made, params), made.update)

    def rate(self, round: Scalar) -> Scalar:
        """The argument `learning_rate` in a round, NaN if there is none."""
        return rate_at(self.values.get("learning_rate", float("nan")), round)


def _wide_state(made: optax.GradientTransformationExtraArgs, params: Params) -> Any:
    """The initial state with counters as wide as an update leaves them, and whatever follows from them."""
    state = made.init(params)
    wide = jax.tree.map(lambda x: as_count(x) if getattr(x, "dtype", None) == jnp.int32 else x, state)
    try:
        after = jax.eval_shape(lambda: made.update(params, wide, params)[1])
    except TypeError:  # a transformation that insists on its counters' type
        return state
    return jax.tree.map(lambda x, like: jnp.asarray(x, like.dtype), wide, after)


def transformation(factory: Callable[..., optax.GradientTransformation], **arguments: Any) -> Transformation:
    """Sort an optax factory's arguments into leaves and options.

    Raises:
        InvalidInput: `factory` is a finished transformation instead of the function that makes it.
    """
    import optax

    if isinstance(factory, optax.GradientTransformation) or not callable(factory):
        raise InvalidInput(
            "give the optax function and its arguments separately, as Optax(optax.adam, learning_rate=0.1): "
            "then changing a value does not recompile"
        )

    def is_leaf(v: Any) -> bool:
        return isinstance(v, Schedule | jax.Array) or (isinstance(v, Real) and not isinstance(v, bool))

    values = {k: v for k, v in arguments.items() if is_leaf(v)}
    options = tuple((k, v) for k, v in arguments.items() if not is_leaf(v))
    return Transformation(values, factory, options)
