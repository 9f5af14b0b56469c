"""Hyper-parameters as arrays of the run's type, and the keys that all randomness follows from.

An error calls each as its user does: `client_lr`, not `inner.local.lr`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedsolve.core import trees
from fedsolve.core.algorithm import Algorithm
from fedsolve.core.errors import InvalidInput, shown
from fedsolve.core.types import Params
from fedsolve.tasks.leaves import refuse_halves
from fedsolve.tasks.task import Task

_HOLDERS = ("inner", "local", "server_optimizer", "optimizer")
_ARGUMENTS = {
    ("", "lr"): "client_lr",
    ("inner", "lr"): "client_lr",
    ("local", "lr"): "client_lr",
    ("local", "momentum"): "client_momentum",
    ("local", "learning_rate"): "client_lr",
    ("server_optimizer", "lr"): "server_lr",
    ("optimizer", "lr"): "server_lr",
    ("server_optimizer", "eta"): "server_lr",
    ("server_optimizer", "learning_rate"): "server_lr",
}


def argument_name(path: Sequence[str]) -> str:
    """The argument that a number comes from, by the names of the fields that lead from the method to it.

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
    """A method, a sampling or diagnostics with every number as an array of the run's type."""
    limits = jnp.finfo(dtype)

    def leaf(path: Any, x: Any) -> Any:
        # integers and booleans keep their type; Python's numbers become scalars () of the run's
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
    # a number, or that of an array's finite numbers whose size is largest
    if np.ndim(x) == 0:
        return float(x)
    finite = np.asarray(x)[np.isfinite(np.asarray(x))]
    return float(finite[np.argmax(np.abs(finite))]) if finite.size else 0.0


# What a run begins with: its keys, from which all its randomness follows, its method and its initial model.


def start_key(seed: int) -> Any:
    """The key of the initial model of a run with this seed."""
    return jax.random.split(_key(seed))[0]


def run_key(seed: int) -> Any:
    return jax.random.split(_key(seed))[1]


def _key(seed: int) -> Any:
    # named, so that JAX's default generator does not decide a run's bits
    return jax.random.key(seed, impl="threefry2x32")


def start_params(task: Task, seed: int, dtype: Any) -> Params:
    """The initial model of a run with this seed, in its type: see `in_type`."""
    return in_type(task, task.init(start_key(seed)), dtype)


def in_run(algorithm: Algorithm, task: Task, dtype: Any) -> Algorithm:
    """A method as runs of a task have it: its numbers in the run's type, buffers around it where the task has some."""
    return cast(task.around(algorithm), dtype)


def in_type(task: Task, given: Params, dtype: Any) -> Params:
    """What a task's `init` gives, in the type of a run."""
    refuse_halves(f"the model of task {task.name}", given)

    def leaf(x: Any) -> Any:
        # NumPy's warning would come beside the error
        with np.errstate(over="ignore"):
            array = jnp.asarray(x, dtype)
        if isinstance(x, np.ndarray | float) and np.isfinite(x).all() and not np.isfinite(array).all():
            raise InvalidInput(
                f"init of task {task.name} gives {np.abs(x).max():.3g}, which is infinite in {array.dtype}: give "
                "smaller numbers, or run in float64"
            )
        return array

    try:
        params = jax.tree.map(leaf, given)
    except InvalidInput:
        raise
    except (TypeError, ValueError):
        params = None
    if not jax.tree.leaves(params):
        raise InvalidInput(f"init of task {task.name} gives {shown(given)}: it must give arrays of numbers")
    return params


def on_types(given: Params, dtype: Any) -> Iterator[str]:
    """What is to be said of a model whose leaves are of several floating-point types."""
    types = {x.dtype for x in jax.tree.leaves(given) if hasattr(x, "dtype")}
    names = sorted(str(t) for t in types if jnp.issubdtype(t, jnp.floating))
    if len(names) > 1:
        yield f"the model's leaves are of {' and '.join(names)}: all of them are {jnp.dtype(dtype)} in this run"
