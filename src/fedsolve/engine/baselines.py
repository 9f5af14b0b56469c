"""Baselines for federated methods: centralised training on the pooled data, and training on one client alone.

    fista(task, psi)             min F + psi, proximal gradient with acceleration (Beck and Teboulle 2009)
    frank_wolfe(task, D)         min F over D, Frank-Wolfe with backtracking line search (Pedregosa et al. 2020)
    alone(task, client)          the same task with one client's data only

F weighs clients alike or by their examples, as the federated methods do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import lax

from fedsolve.core import trees
from fedsolve.core.errors import InvalidInput, check_integer, check_range, shown
from fedsolve.core.types import Params, Scalar, Traced, Weighting, check_weighting, module
from fedsolve.core.xla.compiler import compiler_options
from fedsolve.data.federated import FederatedData
from fedsolve.engine.checks.preflight import check_loss
from fedsolve.engine.compute.casting import cast, start_params
from fedsolve.engine.compute.clients import pack
from fedsolve.engine.evaluation.averaged_iterates import objective
from fedsolve.geometry.blocks import Blocks
from fedsolve.geometry.regularizer import check_start, require
from fedsolve.tasks.task import Task

__all__ = ["Gradient", "Solution", "Value", "alone", "fista", "frank_wolfe"]

_ROUNDING = 8  # units of rounding that a comparison of two values of F allows
Value = Callable[[Params], Scalar]
"""A function (params) -> loss."""
Gradient = Callable[[Params], tuple[Scalar, Params]]
"""A function (params) -> (loss, gradient)."""


@dataclass(frozen=True)
class Solution:
    """The result of a centralised solver.

    Attributes:
        params: the model.
        value: F + psi there (F alone for a set).
        optimality: the prox-gradient norm over the step (`fista`), or the Frank-Wolfe gap (`frank_wolfe`).
        iterations: done.
    """

    params: Params
    value: float
    optimality: float
    iterations: int


def fista(
    task: Task,
    psi: Any = None,
    *,
    iterations: int = 2000,
    tolerance: float = 1e-6,
    weighting: Weighting = "uniform",
    dtype: Literal["float32", "float64"] = "float32",
    seed: int = 0,
) -> Solution:
    """Minimise F + psi on the pooled data by FISTA with backtracking and restarts (O'Donoghue and Candes 2015).

    Stops after `iterations`, or where the prox-gradient is `tolerance` times as long as at the start.

    Args:
        task: the problem, its clients' data gathered.
        psi: a penalty or set with a prox; None for none.
        iterations: the most there are, at least 1.
        tolerance: of the prox-gradient, relative to the first; above 0.
        weighting: F is the mean over clients (`uniform`) or over `examples`.
        dtype: of the arithmetic.
        seed: of the task's first model, at least 0.

    Returns:
        The model, F + psi there, the last prox-gradient norm over the step, and the iterations that were done.

    Raises:
        InvalidInput: psi has no prox, or an argument out of range.
    """
    blocks = Blocks(()) if psi is None else require("fista", psi, "prox", "one with a prox, such as L1(0.1)")
    return _solve(task, blocks, _fista, iterations, tolerance, weighting, dtype, seed)


def frank_wolfe(
    task: Task,
    constraint: Any,
    *,
    iterations: int = 2000,
    tolerance: float = 1e-6,
    weighting: Weighting = "uniform",
    dtype: Literal["float32", "float64"] = "float32",
    seed: int = 0,
) -> Solution:
    """Minimise F over a set on the pooled data by Frank-Wolfe with a backtracking line search.

    Starts from the task's model, or its projection; stops after `iterations`, or where the Frank-Wolfe gap
    is below `tolerance` times the first.

    Args:
        task: the problem, its clients' data gathered.
        constraint: a set with an `lmo`, on every leaf.
        iterations: the most there are, at least 1.
        tolerance: of the gap, relative to the first; above 0.
        weighting: F is the mean over clients (`uniform`) or over `examples`.
        dtype: of the arithmetic.
        seed: of the task's first model, at least 0.

    Returns:
        The model, F there, its Frank-Wolfe gap, at least F - min F over the set where F is convex, and the iterations
        that were done.

    Raises:
        InvalidInput: the set has no `lmo`, or leaves a leaf free; an argument out of range.
    """
    blocks = require("frank_wolfe", constraint, "lmo", "a set, such as L1Ball(10.0)")
    return _solve(task, blocks, _frank_wolfe, iterations, tolerance, weighting, dtype, seed)


def alone(task: Task, client: int) -> Task:
    """The task with the training data of one client only; the test set is unchanged.

    Args:
        task: the task of all clients.
        client: its number, from 0.

    Returns:
        A task of one client, with the model, loss and metrics of the given one.

    Raises:
        InvalidInput: there is no such client.
    """
    clients = task.data.num_clients
    if check_integer("client", client) >= clients:
        raise InvalidInput(f"client = {client} must be one of 0 to {clients - 1}")
    own = FederatedData.from_clients([task.data.client(client)], [task.data.names[client]])
    return replace(task, name=f"{task.name} of {task.data.names[client]} alone", data=own)


def _solve(
    task: Task, psi: Any, method: Any, iterations: int, tolerance: float, weighting: Weighting, dtype: str,
    seed: int,
) -> Solution:  # fmt: skip
    if not isinstance(task, Task):
        raise InvalidInput(f"task = {shown(task)} must be a fedsolve.Task")
    check_weighting(weighting)
    check_integer("iterations", iterations, 1)
    check_range("tolerance", tolerance, above=0)
    check_integer("seed", seed)
    if task.buffers is not None:
        raise InvalidInput(
            f"task {task.name} has buffers, which minibatches make: a baseline sees all at once"
        )
    with jax.enable_x64(dtype == "float64"):
        packed, work = pack(
            task.data,
            task.loss,
            jnp.dtype(dtype),
            batch_size=None,
            epochs=1,
            local_steps=None,
            frozen=task.frozen,
        )
        params = start_params(task, seed, dtype)
        check_loss(f"the loss of task {task.name}", task.loss, packed.model(params), task.data.examples)
        psi.check(params)
        if method is _frank_wolfe:
            params = psi.project(params) if "project" in psi.operations else params
            check_start("frank_wolfe", psi, params)
        arguments = (
            cast(psi, jnp.dtype(dtype)),
            packed,
            params,
            jnp.int32(iterations),
            jnp.asarray(tolerance, dtype),
        )
        solution = _compiled(method)(work.loss, weighting == "uniform", *arguments)
        params, value, optimality, done = jax.device_get(solution)
    return Solution(params, float(value), float(optimality), int(done))


@cache
def _compiled(method: Any) -> Any:
    def solve(
        loss: Any, uniform: bool, psi: Any, packed: Any, params: Params, iterations: Any, tolerance: Any
    ) -> Any:
        def value(params: Params) -> Scalar:
            return objective(loss, uniform, packed, params, False)[0]

        gradient = partial(objective, loss, uniform, packed, needs_gradient=True)
        return method(value, gradient, psi, params, iterations, tolerance)

    return jax.jit(solve, static_argnums=(0, 1), compiler_options=compiler_options())


@module
class _Accelerated:
    # x, the extrapolated y, t and the step; the prox-gradient norm, the first one, and the iteration
    x: Params
    y: Params
    momentum: Scalar
    step: Scalar
    norm: Scalar
    first: Scalar
    iteration: Scalar


def _fista(
    value: Value, gradient: Gradient, psi: Any, params: Params, iterations: Any, tolerance: Any
) -> Any:
    one = jnp.ones((), trees.dtype_of(params))

    def unfinished(s: _Accelerated) -> Scalar:
        return (s.iteration < iterations) & ((s.iteration < 1) | (s.norm > tolerance * s.first))

    def iterate(s: _Accelerated) -> _Accelerated:
        f, g = gradient(s.y)

        slack = _ROUNDING * jnp.finfo(one.dtype).eps * jnp.abs(f)

        def trial(step: Scalar) -> Params:
            return psi.prox(trees.axpy(-step, g, s.y), step)

        def too_long(step: Scalar) -> Traced:
            x = trial(step)
            move = trees.sub(x, s.y)
            bound = f + trees.dot(g, move) + trees.squared_norm(move) / (2 * step)
            return (value(x) > bound + slack) & (step > 1e-12)

        step = lax.while_loop(too_long, lambda t: t / 2, s.step)
        x = trial(step)
        # where F's rounding hides the bound every step would pass: longer ones are no longer tried
        visible = trees.squared_norm(trees.sub(x, s.y)) / (2 * step) > 100 * slack
        t = (1 + jnp.sqrt(1 + 4 * s.momentum**2)) / 2
        uphill = trees.dot(trees.sub(s.y, x), trees.sub(x, s.x)) > 0  # the momentum points the wrong way
        t, weight = jnp.where(uphill, 1, t), jnp.where(uphill, 0, (s.momentum - 1) / t)
        norm = trees.norm(trees.sub(s.y, x)) / step
        first = jnp.where(s.iteration == 0, norm, s.first)
        ahead, longer = trees.axpy(weight, trees.sub(x, s.x), x), jnp.where(visible, 1.2 * step, step)
        return _Accelerated(x, ahead, t, longer, norm, first, s.iteration + 1)

    start = _Accelerated(params, params, one, one, one, one, jnp.int32(0))
    end = lax.while_loop(unfinished, iterate, start)
    return end.x, value(end.x) + psi.finite_value(end.x), end.norm, end.iteration


@module
class _Walk:
    # the iterate, F there, the curvature estimate L, the gap, the first gap, and the iteration
    x: Params
    curvature: Scalar
    gap: Scalar
    first: Scalar
    iteration: Scalar


def _frank_wolfe(
    value: Value, gradient: Gradient, psi: Any, params: Params, iterations: Any, tolerance: Any
) -> Any:
    one = jnp.ones((), trees.dtype_of(params))

    def unfinished(s: _Walk) -> Scalar:
        return (s.iteration < iterations) & ((s.iteration < 1) | (s.gap > tolerance * s.first))

    def iterate(s: _Walk) -> _Walk:
        f, g = gradient(s.x)
        direction = trees.sub(psi.lmo(g), s.x)
        gap, length = -trees.dot(g, direction), trees.squared_norm(direction)

        slack = _ROUNDING * jnp.finfo(one.dtype).eps * jnp.abs(f)

        def size(curvature: Scalar) -> Scalar:
            return jnp.minimum(gap / jnp.maximum(curvature * length, 1e-30), 1)

        def too_flat(curvature: Scalar) -> Traced:
            eta = size(curvature)
            bound = f - eta * gap + eta**2 * curvature * length / 2
            return (value(trees.axpy(eta, direction, s.x)) > bound + slack) & (curvature < 1e12)

        curvature = lax.while_loop(too_flat, lambda c: 2 * c, s.curvature)
        x = trees.axpy(size(curvature), direction, s.x)
        visible = size(curvature) * gap > 100 * slack  # as in FISTA
        curvature = jnp.where(visible, 0.9 * curvature, curvature)
        return _Walk(x, curvature, gap, jnp.where(s.iteration == 0, gap, s.first), s.iteration + 1)

    end = lax.while_loop(unfinished, iterate, _Walk(params, one, one, one, jnp.int32(0)))
    f, g = gradient(end.x)
    return end.x, f, psi.gap(end.x, g), end.iteration
