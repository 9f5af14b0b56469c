"""Whether a loss has a gradient at all, found by its program alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal

from fedsolve.core.building.loss_checks import check_slope, fails
from fedsolve.core.trees import all_finite, dtype_of
from fedsolve.core.types import Batch, Params
from fedsolve.engine.checks.loss_contract import few_rows
from fedsolve.engine.compute.clients import PackedClients, on_device
from fedsolve.tasks.loss_arguments import call, mean_of
from fedsolve.tasks.task import Task

Function = Callable[..., Any]


def check_gradient(name: str, loss: Function, params: Params, batch: Batch) -> None:
    """A loss must have a gradient, of which some part is not 0 whatever the model and the batch.

    Args:
        name: what the error calls it.
        loss: as `fedsolve.tasks.loss_arguments` has it.
        params, batch: shapes and types to trace it with.

    Raises:
        InvalidInput: it has none, as a loop without a bound, or depends on no parameter.
    """
    leaves, structure = jax.tree.flatten((params, batch))
    try:
        depends = _depends(loss, structure, tuple((np.shape(a), a.dtype) for a in leaves))
    except Exception as error:  # whatever the user's code raises
        raise fails(f"the gradient of {name}", f"on {described(batch)}", error) from error
    check_slope(name, depends)


@lru_cache(maxsize=64)
def _depends(loss: Function, structure: Any, shapes: tuple[Any, ...]) -> bool:
    """Whether the gradient depends on anything, or is another constant than 0; kept, since tracing takes long."""
    given = structure.unflatten([jax.ShapeDtypeStruct(*one) for one in shapes])
    floating, rest = _parts(given[0])
    gradient, key = _gradient(loss), jax.eval_shape(jax.random.key, 0)
    program = jax.make_jaxpr(gradient)(floating, rest, given[1], key).jaxpr
    known = {variable for variable in program.invars}
    for equation in program.eqns:
        if any(not isinstance(v, Literal) and v in known for v in equation.invars):
            known.update(equation.outvars)
    if any(not isinstance(v, Literal) and v in known for v in program.outvars):
        return True
    zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), (floating, rest, given[1]))
    return any(np.any(np.asarray(g)) for g in jax.tree.leaves(gradient(*zeros, jax.random.key(0))))


def slope_is_finite(task: Task, packed: PackedClients) -> bool:
    """Whether the gradient of a task's loss is finite at its initial model, on a few of the examples."""
    params = packed.first_model(task.init(jax.random.key(0)), task.buffers)
    floating, rest = _parts(params)
    rows = few_rows(task.data.examples, floating)
    gradient = _gradient(task.loss)(floating, rest, on_device(rows, dtype_of(params)), jax.random.key(0))
    return bool(all_finite(gradient))


def described(batch: Batch) -> str:
    """Shapes and types of a batch, for an error."""
    return "a batch " + " and ".join(f"of shape {a.shape} {a.dtype}" for a in jax.tree.leaves(batch))


def _gradient(loss: Function) -> Callable[..., Params]:
    """(what is differentiated, other leaves, batch, key) -> the gradient of the mean over the batch."""

    def value(floating: Params, rest: Params, batch: Batch, key: Any) -> Any:
        leaf = lambda a, b: b if a is None else a  # noqa: E731
        params = jax.tree.map(leaf, floating, rest, is_leaf=lambda a: a is None)
        return mean_of(call(loss, params, batch, key=key)[0])

    return jax.grad(value)


def _parts(params: Params) -> tuple[Params, Params]:
    """Floating-point leaves, and the others; None in their places."""
    trains = lambda a: bool(jnp.issubdtype(a.dtype, jnp.floating))  # noqa: E731
    floating = jax.tree.map(lambda a: a if trains(a) else None, params)
    return floating, jax.tree.map(lambda a: None if trains(a) else a, params)
