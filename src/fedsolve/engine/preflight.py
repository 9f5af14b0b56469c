"""What can be checked of a task and a method before anything is compiled: clear words instead of a trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fedsolve.engine.clients import PackedClients
from fedsolve.errors import InvalidInput
from fedsolve.tasks.task import Task
from fedsolve.types import Batch, Params


def check_task(task: Task, params: Params, packed: PackedClients, test: Batch | None) -> None:
    """Loss and metrics must be floating-point scalars on training and test batches.

    Raises:
        InvalidInput: the function that is not, with the shape it has; or test fields unlike the clients'.
    """
    if test is not None and jax.tree.structure(test) != jax.tree.structure(packed.examples):
        raise InvalidInput(
            f"the test examples have fields {jax.tree.structure(test)}, the clients' "
            f"{jax.tree.structure(packed.examples)}: give both the same"
        )
    for where, examples in (("a training batch", packed.examples), ("a test batch", test)):
        if examples is None:
            continue
        batch = jax.tree.map(lambda a: jax.ShapeDtypeStruct((2, *a.shape[1:]), a.dtype), examples)
        for name, function in {"loss": task.loss, **task.metrics}.items():
            out = jax.eval_shape(function, params, batch)
            if not hasattr(out, "shape") or out.shape != () or not jnp.issubdtype(out.dtype, jnp.inexact):
                shape = getattr(out, "shape", type(out).__name__)
                raise InvalidInput(
                    f"{name} of {where} of task {task.name} has shape {shape} and type "
                    f"{getattr(out, 'dtype', '?')}: it must be one real number, the mean over the batch"
                )


def check_round(one_round: Callable[[Any], tuple[Any, Any]], state: Any) -> None:
    """A round must keep the shapes and types of everything that is carried to the next.

    Raises:
        InvalidInput: the first leaf that would change, with both shapes.
    """
    after = jax.eval_shape(one_round, state)[0]
    if jax.tree.structure(after) != jax.tree.structure(state):
        raise InvalidInput("the update changes the structure of the server or client state: keep its fields")
    pairs = zip(jax.tree_util.tree_leaves_with_path(state), jax.tree.leaves(after), strict=True)
    for (path, old), new in pairs:
        if (old.shape, old.dtype) != (new.shape, new.dtype):
            raise InvalidInput(
                f"the update changes {jax.tree_util.keystr(path)} from shape {old.shape} {old.dtype} to "
                f"{new.shape} {new.dtype}: a round must keep shapes and types"
            )
