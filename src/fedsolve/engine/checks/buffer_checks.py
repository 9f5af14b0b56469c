"""What a loss makes of a task's buffers, tried on shapes before anything is compiled."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fedsolve.core.buffers import WithBuffers
from fedsolve.core.errors import InvalidInput, shown
from fedsolve.core.trees import dtype_of
from fedsolve.core.types import Batch
from fedsolve.engine.compute.clients import LocalWork
from fedsolve.tasks.loss_arguments import asked
from fedsolve.tasks.task import Task

_REMEDY = "loss(params, batch, buffers) returns (value, new buffers), of the shapes and types of those that it is given"


def check_buffers(task: Task, work: LocalWork, model: Any, examples: Batch) -> None:
    """A loss asks for buffers where the task has some, keeps their form, and can leave out padding.

    Args:
        task: loss, metrics and buffers.
        work: of the clients.
        model: the first one as the loss takes it.
        examples: of the clients, or some of them.

    Raises:
        InvalidInput: it does not, with the first leaf that differs.
    """
    for what, function in {"the loss": task.loss, **task.metrics}.items():
        if task.buffers is None and "buffers" in asked(function, what):
            raise InvalidInput(f"{what} of task {task.name} asks for buffers: give the task buffers=...")
    if not isinstance(model, WithBuffers):
        return
    name = f"the loss of task {task.name}"
    names = asked(task.loss)
    if "buffers" not in names:
        raise InvalidInput(f"{name} does not ask for the task's buffers: {_REMEDY}")
    if not work.even and "weights" not in names:
        raise InvalidInput(
            f"{name} has buffers, and clients are uneven: padding would enter them; give the loss an argument "
            "`weights`, 0 for examples that do not count, or clients and minibatches of one size"
        )
    shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct((2, *a.shape[1:]), a.dtype), examples)
    given = jax.eval_shape(model.buffers.given)
    more = {
        "key": jax.eval_shape(jax.random.key, 0),
        "weights": jax.ShapeDtypeStruct((2,), dtype_of(model)),
        "buffers": given,
    }
    # functions of arrays alone: what a loss returns besides may be no array
    found: list[Any] = []

    def traced(params: Any, batch: Any, more: Any) -> int:
        found.append(task.loss(params, batch, **more))
        return 0

    jax.eval_shape(traced, model.params, shapes, {k: v for k, v in more.items() if k in names})
    if not isinstance(found[0], tuple) or len(found[0]) != 2:
        raise InvalidInput(f"{name} returns {shown(type(found[0]).__name__)} alone: {_REMEDY}")
    _check_same(name, given, found[0][1])


def _check_same(name: str, given: Any, new: Any) -> None:
    if jax.tree.structure(given) != jax.tree.structure(new):
        raise InvalidInput(
            f"{name} returns buffers {shown(jax.tree.structure(new))} for {shown(jax.tree.structure(given))}: {_REMEDY}"
        )
    pairs = zip(jax.tree_util.tree_leaves_with_path(given), jax.tree.leaves(new), strict=True)
    for (path, old), leaf in pairs:
        after = jnp.shape(leaf), jnp.result_type(leaf)
        if (old.shape, old.dtype) != after:
            where = jax.tree_util.keystr(path, simple=True, separator=".") or "the buffer"
            raise InvalidInput(
                f"{name} changes {where} of its buffers from shape {old.shape} {old.dtype} to {after[0]} {after[1]}: "
                f"{_REMEDY}"
            )
