"""Losses and metrics that call Python while they are computed, such as PyTorch modules that are not translated.

On several devices of one process JAX (0.10.2) never ends such a program: each device's call waits for a copy of its
arguments, which the threads that wait in the calls would have to make.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax

from fedsolve.core.types import Batch, Params
from fedsolve.core.xla.programs import all_equations
from fedsolve.engine.checks.loss_contract import built_in
from fedsolve.engine.compute.clients import on_device
from fedsolve.tasks.leaves import with_frozen
from fedsolve.tasks.loss_arguments import call
from fedsolve.tasks.task import Task


def calls_host(task: Task, params: Params, dtype: Any) -> bool:
    """Whether the loss or a metric that is a mean over examples calls Python.

    Args:
        task: whose they are.
        params: shapes of the model, with buffers where the task has some.
        dtype: the run's floating-point type.
    """
    functions = [f for f in (task.loss, *task.metrics.values()) if not built_in(f)]
    if not functions:
        return False
    examples = jax.eval_shape(partial(on_device, dtype=dtype), task.data.examples)
    rows = jax.tree.map(lambda a: jax.ShapeDtypeStruct((2, *a.shape[1:]), a.dtype), examples)
    return any(_calls_host(f, with_frozen(params, task.frozen), rows) for f in functions)


def _calls_host(function: Callable[..., Any], params: Params, rows: Batch) -> bool:
    key = jax.eval_shape(jax.random.key, 0)
    program = jax.make_jaxpr(lambda *given: call(function, *given[:2], key=given[2])[0])(params, rows, key)
    return any(equation.primitive.name.endswith("callback") for equation in all_equations(program))
