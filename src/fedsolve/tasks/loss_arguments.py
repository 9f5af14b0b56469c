"""What a loss or a metric asks for besides the model and a batch, and the one way in which all of them are called.

    loss(params, batch)        (): the mean over the batch's examples; or (n,): each example's own value
    ..., key=None              a key of JAX in training, None in evaluation: that is the mode, too
    ..., weights=None          (n,), 0 or 1: the value is sum(w l) / max(sum(w), 1); None where every example counts
    ..., buffers=None          what a model keeps beside its parameters; (value, new buffers) is returned

They are asked for by name and given by keyword, and only those that a function has. An argument of one of these names
whose default is not None is the function's own. An object that passes arguments on says itself which of them it asks
for, in an attribute `asks`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

from fedsolve.core.buffers import WithBuffers
from fedsolve.core.errors import unknown
from fedsolve.core.types import Batch, Params

NAMES = ("key", "weights", "buffers")
Function = Callable[..., Any]


def asked(function: Function, what: str = "the loss") -> frozenset[str]:
    """Which of `NAMES` a function of (params, batch) asks for; `what` is what an error calls it.

    `InvalidInput` names the nearest of `NAMES` where it needs a third argument of another name.

    >>> sorted(asked(lambda params, batch, key, weights=None: 0.0))
    ['key', 'weights']
    >>> asked(lambda params, batch, kye: 0.0)
    Traceback (most recent call last):
    ...
    fedsolve.InvalidInput: unknown argument of the loss 'kye': did you mean 'key'? Known: buffers, key, weights
    """
    says = getattr(function, "asks", None)
    if says is not None:
        return frozenset(says)
    bound = function.keywords if isinstance(function, functools.partial) else {}  # given already
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # a function of C, whose arguments nobody knows
        return frozenset()
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    asked_for = set()
    for p in [p for p in parameters if p.kind not in several][2:]:
        if p.name in bound or p.default not in (None, inspect.Parameter.empty):
            continue
        if p.name in NAMES:
            asked_for.add(p.name)
        elif p.default is inspect.Parameter.empty:
            raise unknown(f"argument of {what}", p.name, NAMES)
    return frozenset(asked_for)


def call(
    function: Function,
    params: Params,
    batch: Batch,
    *,
    key: Array | None = None,
    weights: Array | None = None,
    buffers: Any = None,
) -> tuple[Any, Any]:
    # the value, () or (n,) as the function gives it, and the new buffers (those given, where it returns
    # none); a model that is evaluated may come with its buffers (`WithBuffers`)
    if isinstance(params, WithBuffers):
        params, buffers = params.params, params.buffers.given()
    given = {"key": key, "weights": weights, "buffers": buffers}
    names = asked(function)
    found = function(params, batch, **{name: value for name, value in given.items() if name in names})
    return found if isinstance(found, tuple) and "buffers" in names else (found, buffers)


def mean_of(value: Array) -> Array:
    return value if jnp.ndim(value) == 0 else jnp.mean(value)
