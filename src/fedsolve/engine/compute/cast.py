"""Hyper-parameters as arrays: their values are then no part of the program, which one run shares with the next.

An error calls each as its user does: `client_lr`, not `inner.local.lr`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedsolve.core import trees
from fedsolve.core.errors import InvalidInput

_HOLDERS = ("inner", "local", "server_optimizer")
_ARGUMENTS = {
    ("", "lr"): "client_lr",
    ("inner", "lr"): "client_lr",
    ("local", "lr"): "client_lr",
    ("local", "momentum"): "client_momentum",
    ("local", "learning_rate"): "client_lr",
    ("server_optimizer", "lr"): "server_lr",
    ("server_optimizer", "eta"): "server_lr",
    ("server_optimizer", "learning_rate"): "server_lr",
}


def argument_name(path: Sequence[str]) -> str:
    """The argument that a number comes from.

    Args:
        path: names of the fields that lead from the method to it.

    >>> argument_name(("inner", "local", "lr")), argument_name(("steps", "lam0"))
    ('client_lr', 'steps.lam0')
    >>> argument_name(("server_optimizer", "transformation", "values", "learning_rate"))
    'server_lr'
    """
    start = max((i + 1 for i, name in enumerate(path[:-1]) if name in _HOLDERS), default=0)
    # an optax transformation keeps its arguments under `values`, by the names that its user wrote
    names = path[-1:] if "values" in path[start:-1] else path[start:]
    holder = path[start - 1] if start else ""
    return ".".join([_ARGUMENTS.get((holder, names[0]), names[0]), *names[1:]])


def cast(module: Any, dtype: Any) -> Any:
    """A method, a sampling or diagnostics with every number as an array of the run's type.

    Raises:
        InvalidInput: a number that is infinite in that type, or so small that it is 0 or loses its digits.
    """
    limits = jnp.finfo(dtype)

    def leaf(path: Any, x: Any) -> Any:
        keep = hasattr(x, "dtype") and not jnp.issubdtype(x.dtype, jnp.floating)
        number = 0.0 if keep or not trees.is_not_traced(x) else _largest(x)
        least = float(limits.tiny) if np.ndim(x) == 0 else 0.0  # the small ones of an array may vanish
        fits = least <= abs(number) <= float(limits.max)
        if number != 0 and math.isfinite(number) and not fits:
            name = argument_name([jax.tree_util.keystr((key,), simple=True) for key in path])
            what = "infinite" if abs(number) > 1 else "no more than 0"
            whose = getattr(module, "name", type(module).__name__)
            raise InvalidInput(
                f"{name} = {number} of {whose} is {what} in {jnp.dtype(dtype)}: its numbers go from {limits.tiny:.3g} "
                f"to {limits.max:.3g}; give another value, or run in float64"
            )
        return jnp.asarray(x) if keep else jnp.asarray(x, dtype)

    return jax.tree_util.tree_map_with_path(leaf, module)


def _largest(x: Any) -> float:
    """A number, or that of an array's finite numbers whose size is largest."""
    if np.ndim(x) == 0:
        return float(x)
    finite = np.asarray(x)[np.isfinite(np.asarray(x))]
    return float(finite[np.argmax(np.abs(finite))]) if finite.size else 0.0
