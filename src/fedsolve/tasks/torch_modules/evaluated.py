"""A task's loss and metrics of a PyTorch module on a few rows, as training and evaluation compute them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedsolve.pytorch.callback import HostLoss
from fedsolve.pytorch.reference import Found, Value, fixed_draws
from fedsolve.tasks.loss_arguments import asked, call
from fedsolve.tasks.task import Examples
from fedsolve.tasks.torch_modules.agreement import Evaluate, Point, Results

Functions = Mapping[str, Callable[..., Any]]
_QUICK = {"xla_backend_optimization_level": 1, "xla_llvm_disable_expensive_passes": True}


def of_translated(functions: Functions, buffers: Mapping[str, Any], dtype: Any) -> Evaluate:
    """Of functions that compile: one program for all points.

    Args:
        functions: the loss and metrics of a task.
        buffers: those that the loss takes, by name.
        dtype: the floating-point type to compute in.
    """
    programs: list[Any] = []

    def evaluate(point: Point, batch: Examples) -> Results:
        own = {name: value for name, value in point.buffers.items() if name in buffers}
        given = _floats((dict(point.params), own, tuple(batch), point.counts.astype(float)), dtype)
        with (
            jax.enable_x64(np.dtype(dtype) == np.float64),
            jax.default_matmul_precision("highest"),
            fixed_draws(),
        ):
            if not programs:
                programs.append(jax.jit(_all_of(functions)).lower(*given).compile(compiler_options=_QUICK))
            (loss, after), slope, each = jax.device_get(programs[0](*given))
            evaluation = {
                name: Value(_pooled(functions[name], point.counts, *pair)) for name, pair in each.items()
            }
        return Results(Found(float(loss), slope, {**point.buffers, **after}), evaluation)

    return evaluate


def _all_of(functions: Functions) -> Callable[..., Any]:
    def run(params: Any, buffers: Any, batch: Any, weights: Any) -> Any:
        rows = Examples(*batch)

        def loss(params: Any) -> Any:
            return _training(functions["loss"], params, buffers, rows, weights)

        value, slope = jax.value_and_grad(loss, has_aux=True)(params)
        each = {name: _each(f, params, buffers, rows) for name, f in functions.items()}
        return value, slope, each

    return run


def _training(function: Any, params: Any, buffers: Any, batch: Examples, weights: Any) -> Any:
    """The mean over the rows that count, and the new buffers."""
    key, names = jax.random.key(0), asked(function)
    if "weights" not in names:
        function = getattr(function, "each", function)
    value, after = call(function, params, batch, key=key, weights=weights, buffers=buffers)
    if value.ndim:
        value = jnp.sum(jnp.where(weights > 0, value, 0)) / jnp.sum(weights)
    return value, after if "buffers" in names else {}


def _each(function: Any, params: Any, buffers: Any, batch: Examples) -> Any:
    """What each row has or adds in evaluation mode, and how many parts it is the mean of."""
    value, _ = call(getattr(function, "each", function), params, batch, buffers=buffers)
    return value, function.counts(batch) if hasattr(function, "counts") else jnp.ones(len(value))


def _pooled(function: Any, counts: np.ndarray, each: Any, parts: Any) -> float:
    """The value of the rows that count."""
    each, own = np.asarray(each)[counts], np.asarray(parts)[counts]
    if hasattr(function, "of_sums"):
        return float(function.of_sums(jnp.asarray(each.sum(0))))
    return float(np.sum(np.where(own > 0, each, 0) * own) / np.sum(own))


def _floats(tree: Any, dtype: Any) -> Any:
    def leaf(a: Any) -> np.ndarray:
        a = np.asarray(a)
        return a.astype(dtype) if jnp.issubdtype(a.dtype, jnp.floating) else a

    return jax.tree.map(leaf, tree)


def of_called(functions: Functions, dtype: Any) -> Evaluate:
    """Of functions that PyTorch computes for the program: training without the program.

    Args:
        functions, dtype: as for `of_translated`.
    """
    loss: HostLoss = getattr(functions["loss"], "loss", functions["loss"])  # pyright: ignore
    words = np.zeros(2, np.uint32)

    def evaluate(point: Point, batch: Examples) -> Results:
        params, buffers, rows, counts = _floats(
            (dict(point.params), dict(point.buffers), tuple(batch), point.counts), dtype
        )
        with fixed_draws(), jax.enable_x64(np.dtype(dtype) == np.float64):
            value, slope, after = loss.host(True, params, (rows, words, counts, buffers))
            each = {name: _each(f, params, buffers, Examples(*rows)) for name, f in functions.items()}
            evaluation = {name: Value(_pooled(functions[name], counts, *pair)) for name, pair in each.items()}
        return Results(Found(float(value), slope, after), evaluation)

    return evaluate
