"""NumPy arrays that a function closes over: JAX gives each one type, for as long as a program with it is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedsolve.core.types import Batch, Params
from fedsolve.engine.checks.constant_randomness import programs_inside
from fedsolve.tasks.loss_arguments import call

Function = Callable[..., Any]

_WIDE = {
    "last": False
}  # whether the last program with such an array had 64-bit types; at first as JAX has it


@partial(jax.jit, static_argnums=0)
def of_call(function: Function, params: Params, batch: Batch) -> Any:
    """A function's value, for what only looks at its program: equal shapes are traced once."""
    return call(function, params, batch)[0]


def closes_over_floats(function: Function, params: Params, batch: Batch) -> bool:
    """Whether a function's program has a NumPy array of floats among its constants; not of one that fails."""
    try:
        return _floats(of_call.trace(function, params, batch).jaxpr)
    except Exception:  # whatever the user's code raises: said where it is called in earnest
        return False


def renew(functions: Iterable[Function], params: Params, batch: Batch) -> None:
    """Drop what was compiled, where a function's arrays were in a program of other types before.

    JAX makes float32 or float64 of a NumPy array once and takes that for the next program too, whether this has types
    of 64 bits or not; the program then fails, or computes with rounded constants.

    Args:
        functions: losses and metrics, as `fedsolve.tasks.loss_arguments` has them.
        params, batch: shapes and types to trace them with, those of the run.
    """
    if not any([closes_over_floats(function, params, batch) for function in functions]):
        return
    wide = bool(jax.config.jax_enable_x64)  # pyright: ignore[reportAttributeAccessIssue]
    if wide != _WIDE["last"]:
        jax.clear_caches()
    _WIDE["last"] = wide


def _floats(program: Any) -> bool:
    constants = getattr(program, "consts", ())
    if any(isinstance(c, np.ndarray) and jnp.issubdtype(c.dtype, jnp.inexact) for c in constants):
        return True
    return any(_floats(some) for e in getattr(program, "jaxpr", program).eqns for some in programs_inside(e))
