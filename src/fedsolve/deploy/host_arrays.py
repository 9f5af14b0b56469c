"""What a server computes of numbers in main memory: whether they are finite, how large they are, means, weights."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from fedsolve.core.types import is_module, reports

Buffers = dict[str, np.ndarray]
"""Tensors that are averaged plainly beside the model, such as BatchNorm's running statistics, by name."""


def all_finite(tree: Any) -> bool:
    """Whether all numbers of a tree are finite."""
    return all(np.isfinite(x).all() for x in jax.tree.leaves(tree))


def stays_finite(before: Any, after: Any) -> bool:
    """Whether everything that was finite in one server state is finite in the next.

    What is only reported may be infinite, as epsilon without noise is, but not NaN.
    """
    pairs = zip(jax.tree.leaves(_unreported(before)), jax.tree.leaves(_unreported(after)), strict=True)
    return all((np.isfinite(new) | ~np.isfinite(old)).all() for old, new in pairs) and not any(
        np.isnan(value).any() for value, _ in reports(after).values()
    )


def _unreported(state: Any) -> Any:
    """A state without the scalars that it reports."""
    if isinstance(state, Mapping) or not is_module(state):
        return state
    fields = [f for f in dataclasses.fields(state) if not f.metadata.get("static")]
    return [() if f.metadata.get("report") else _unreported(getattr(state, f.name)) for f in fields]


def norm(tree: Any) -> float:
    """The Euclidean norm of all numbers of a tree."""
    return math.sqrt(sum(float(np.vdot(x, x)) for x in map(np.asarray, jax.tree.leaves(tree))))


def max_abs(tree: Any) -> float:
    """The largest absolute number of a tree, 0 of an empty one."""
    return max(
        (float(np.abs(x).max()) for x in map(np.asarray, jax.tree.leaves(tree)) if x.size), default=0.0
    )


def mean_buffers(buffers: Sequence[Buffers]) -> Buffers:
    """The plain mean over clients of each buffer, in its own type; means of integers (counters) are rounded."""

    def mean(values: list[np.ndarray]) -> np.ndarray:
        exact = np.mean(np.stack(values).astype(np.float64), axis=0)
        is_integer = not np.issubdtype(values[0].dtype, np.floating)
        return np.asarray(np.round(exact) if is_integer else exact, values[0].dtype)

    return {name: mean([b[name] for b in buffers]) for name in buffers[0]}


def cap_weights(weights: Sequence[float], share: float | None) -> list[float]:
    """Weights of which none is more than a share of their sum: those above are cut to the largest that may stand.

    Where so few clients came that somebody must have more (fewer than 1/share), all count alike.

    >>> cap_weights([10.0, 20.0, 1000.0], 0.5)
    [10.0, 20.0, 30.0]
    >>> cap_weights([10.0, 20.0, 1000.0], 0.2)
    [10.0, 10.0, 10.0]
    """
    if share is None or not weights:
        return list(weights)
    down = sorted(weights, reverse=True)
    if len(down) * share <= 1:
        return [down[-1]] * len(down)
    rest, cut = sum(down), 0
    # with the `cut` largest at c and the others at their own:  c = share (rest + cut c)
    while down[cut] > (limit := share * rest / (1 - cut * share)):
        rest -= down[cut]
        cut += 1
    return [min(w, limit) for w in weights]
