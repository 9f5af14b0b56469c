"""Why a run diverged, in words: what the first evaluation, the method's rates and the data's sizes tell."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from fedsolve.core.loss_checks import why_not_finite
from fedsolve.core.optax_bridge import Transformation
from fedsolve.core.schedules import rate_at
from fedsolve.core.types import Batch, is_module
from fedsolve.engine.compute.cast import argument_name

_RATES = ("client_lr", "server_lr", "lr", "eta", "eta_max")
_LARGE = 1e4  # beyond it squares and products of the data leave little room in float32


def divergence_hint(
    start: float, rates: Mapping[str, float], largest: float, method: str, slope_is_finite: bool = True
) -> str:
    """What to say after "... is not finite": why, and what to change.

    Args:
        start: the training loss of the initial model.
        rates: the method's, by name.
        largest: the largest absolute value of the data.
        method: its name.
        slope_is_finite: whether the gradient of the initial model is.

    >>> divergence_hint(2.3, {"client_lr": 10.0, "server_lr": 1.0}, 1.0, "FedAvg")
    ' (client_lr 10, server_lr 1): lower the rates'
    >>> divergence_hint(float("nan"), {"client_lr": 0.1}, 1.0, "FedAvg")
    ': the training loss of the initial model is nan already: look at the data, the loss and the initial model'
    """
    if not math.isfinite(start):
        where = "look at the data, the loss and the initial model"
        reach = f", the data reach {largest:.2g}" if largest > _LARGE else ""
        return f": the training loss of the initial model is {start} already{reach}: {where}"
    why = why_not_finite(start, slope_is_finite)
    if why is not None:
        return f": {why}"
    values = ", ".join(f"{name} {value:g}" for name, value in rates.items())
    remedy = f"scale the data, which reach {largest:.2g}" if largest > _LARGE else ""
    if rates:
        return f" ({values}): {f'{remedy}, or ' if remedy else ''}lower the rates"
    return f": {method} has no rate of its own to lower: {remedy or 'look at the data and the loss'}"


def rates(part: Any, round: int, path: tuple[str, ...] = ()) -> dict[str, float]:
    """The rates of a method, its solver, its server optimiser and what it wraps, in a round (from 0).

    Args:
        part: the method, or what lies at `path` in it.
        round: the round.
        path: names of the fields that lead to `part`.

    Returns:
        Rates by the name of the argument that each comes from; of two of one name the first.
    """
    by_name: dict[str, float] = {}
    for field in dataclasses.fields(part):
        value, here = getattr(part, field.name), (*path, field.name)
        if field.name in _RATES:
            by_name.setdefault(argument_name(here), float(rate_at(value, round)))
        elif isinstance(value, Transformation) and "learning_rate" in value.values:
            name = argument_name((*here, "values", "learning_rate"))
            by_name.setdefault(name, float(rate_at(value.values["learning_rate"], round)))
        elif is_module(value):
            for name, rate in rates(value, round, here).items():
                by_name.setdefault(name, rate)
    return by_name


def largest_value(examples: Batch) -> float:
    """The largest absolute value of the floating-point data, 0 if there are none."""
    sizes = [jnp.max(jnp.abs(a)) for a in jax.tree.leaves(examples) if jnp.issubdtype(a.dtype, jnp.floating)]
    return max(map(float, sizes), default=0.0)
