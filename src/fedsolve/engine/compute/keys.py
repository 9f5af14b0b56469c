"""What a run begins with: its keys, from which all its randomness follows, its method and its initial model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedsolve.core.algorithm import Algorithm
from fedsolve.core.errors import InvalidInput, shown
from fedsolve.core.types import Params
from fedsolve.engine.compute.cast import cast
from fedsolve.tasks.leaves import refuse_halves
from fedsolve.tasks.task import Task


def start_key(seed: int) -> Any:
    """The key of the initial model of a run with this seed."""
    return jax.random.split(_key(seed))[0]


def run_key(seed: int) -> Any:
    """The key of all rounds of a run with this seed."""
    return jax.random.split(_key(seed))[1]


def _key(seed: int) -> Any:
    return jax.random.key(seed, impl="threefry2x32")


def start_params(task: Task, seed: int, dtype: Any) -> Params:
    """The initial model of a run with this seed, in its type: see `in_type`."""
    return in_type(task, task.init(start_key(seed)), dtype)


def in_run(algorithm: Algorithm, task: Task, dtype: Any) -> Algorithm:
    """A method as runs of a task have it: its numbers in the run's type, buffers around it where the task has some."""
    return cast(task.around(algorithm), dtype)


def in_type(task: Task, given: Params, dtype: Any) -> Params:
    """What a task's `init` gives, in the type of a run.

    Raises:
        InvalidInput: no arrays of numbers, one that is infinite in this type, or one of 16 bits.
    """
    for leaves in (given, task.frozen):
        refuse_halves(f"the model of task {task.name}", leaves)

    def leaf(x: Any) -> Any:
        with np.errstate(over="ignore"):  # said below
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
