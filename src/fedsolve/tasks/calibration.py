"""Whether predicted probabilities of two classes are right, from sums over examples, and what makes them so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from fedsolve.core.errors import InvalidInput, check_integer, check_number
from fedsolve.core.trees import all_matching, named_leaves
from fedsolve.core.types import Params
from fedsolve.tasks.sum_metrics import SumMetric, columns_of_each, scores_of

_MOST_BINS = 4096


@dataclass(frozen=True)
class BrierScore(SumMetric):
    """Brier score of two classes, the mean of (p - y)^2, where y is 1 for labels above 0; in [0, 1], 0 is best.

    p = 1 / (1 + exp(-s)) of the model's output s, or of two outputs of the second minus the first, as with logistic
    loss and cross-entropy.

    Args:
        weighted: as of `BinaryCounts`.
    """

    more_is_better: ClassVar[bool] = False

    @property
    def width(self) -> int:
        # examples, squares
        return 2

    def each(self, outputs: Array, targets: Array, weights: Array | None = None) -> Array:
        return columns_of_each(*scores_of(outputs, targets, type(self).__name__), weights)

    def totals(self, each: Array, group: Array, groups: int) -> Array:
        score, positive, weight = each.T
        return _sums([weight, weight * (jax.nn.sigmoid(score) - positive) ** 2], group, 1, groups)

    def of_sums(self, sums: Array) -> Array:
        return (sums[1] / sums[0])[None]

    def counted(self, sums: np.ndarray) -> np.ndarray:
        return sums


def _sums(columns: list[Array], cell: Array, cells: int, groups: int) -> Array:
    # of each group the sums of all columns by cell, (groups, columns * cells)
    found = jax.ops.segment_sum(jnp.stack(columns, axis=1), cell, groups * cells)
    return found.reshape(groups, cells, -1).swapaxes(1, 2).reshape(groups, -1)


@dataclass(frozen=True)
class CalibrationError(BrierScore):
    """Expected calibration error, sum_k (n_k / n) |mean of p - fraction of label 1| over equal bins k of p in [0, 1].

    It depends on the bins, and chance makes it large on few examples.

    Args:
        bins: 1 to 4,096; a client of a federation sends three numbers for each.
        weighted: as of `BinaryCounts`.

    Raises:
        InvalidInput: bins out of range; when it is used, a model with more than two outputs.
    """

    bins: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        if check_integer("bins", self.bins, 1) > _MOST_BINS:
            raise InvalidInput(f"bins = {self.bins} of {type(self).__name__} must be at most {_MOST_BINS:,}")

    @property
    def width(self) -> int:
        # of each bin: examples, sum of p, examples of label 1
        return 3 * self.bins

    def totals(self, each: Array, group: Array, groups: int) -> Array:
        score, positive, weight = each.T
        p = jax.nn.sigmoid(score)
        cell = group * self.bins + _place(p * self.bins, self.bins)
        return _sums([weight, weight * p, weight * positive], cell, self.bins, groups)

    def of_sums(self, sums: Array) -> Array:
        n, p, positive = sums.reshape(3, self.bins)
        return (jnp.sum(jnp.abs(p - positive)) / jnp.sum(n))[None]

    def counted(self, sums: np.ndarray) -> np.ndarray:
        return sums.reshape(-1, self.bins).sum(axis=1)


def _place(at: Array, bins: int) -> Array:
    return jnp.clip(jnp.nan_to_num(at).astype(jnp.int32), 0, bins - 1)


@dataclass(frozen=True)
class Reliability(CalibrationError):
    """The bins of `CalibrationError`, which `fedsolve.report.plots.reliability` draws.

    The columns of bin i, from 0, are NAME_n_i (examples), NAME_predicted_i (mean of p) and NAME_observed_i (fraction of
    label 1), the last two NaN where it is empty.

    Args:
        bins, weighted: as of `CalibrationError`.
    """

    @property
    def columns(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return tuple(f"_{part}_{i}" for part in ("n", "predicted", "observed") for i in range(self.bins))

    def of_sums(self, sums: Array) -> Array:
        n, p, positive = sums.reshape(3, self.bins)
        return jnp.concatenate([n, p / n, positive / n])


_LIMIT = 32.0


@dataclass(frozen=True)
class Calibration(CalibrationError):
    """Calibration slope and intercept (Cox 1958): log odds of label 1 = intercept + slope * s, fitted to labels.

    s are the log odds of p. With slope 1 and intercept 0 probabilities are right; a slope below 1 means that they are
    too near 0 and 1, an intercept below 0 that they are too large. `recalibrate` applies both.

    They follow from one round of sums: equal bins of s between -32 and 32, beyond which s counts as that, each with
    examples, labels 1, and both's sums of s. Examples count with the mean s of their bin. NAME_slope_error and
    NAME_intercept_error bound how far that is from logistic regression on all examples, by second derivatives and by
    how far examples of a bin can spread; they are infinite where bins are too wide. All are NaN with labels of one
    class alone, or if a threshold of s separates the labels.

    Args:
        bins: 1 to 4,096; a client of a federation sends four numbers for each.
        weighted: as of `BinaryCounts`.
    """

    bins: int = 1024
    columns: ClassVar[tuple[str, ...]] = ("_slope", "_intercept", "_slope_error", "_intercept_error")

    @property
    def width(self) -> int:
        # of each bin: examples, labels 1, and of both the sums of places in the bin, in [0, 1]
        return 4 * self.bins

    def totals(self, each: Array, group: Array, groups: int) -> Array:
        score, positive, weight = each.T
        at = (jnp.clip(score, -_LIMIT, _LIMIT) / _LIMIT + 1) * self.bins / 2
        place = _place(at, self.bins)
        ones, inside = weight * positive, weight * (at - place)
        return _sums([weight, ones, inside, inside * positive], group * self.bins + place, self.bins, groups)

    def of_sums(self, sums: Array) -> Array:
        n, ones, inside, inside_ones = sums.reshape(4, self.bins) / jnp.sum(sums[: self.bins])
        width = 2 * _LIMIT / self.bins
        low, share = width * jnp.arange(self.bins) - _LIMIT, inside / jnp.where(n > 0, n, 1)
        centre = jnp.sum(n * (low + width * share))
        x = low + width * share - centre
        labels = jnp.stack([jnp.sum(ones), jnp.sum(ones * (low - centre) + width * inside_ones)])
        fitted = _fit(n, x, labels)
        slope = fitted[1]
        gradient, hessian = _derivatives(fitted, n, x, labels)
        inverse = _inverse(hessian)
        # what the spread within bins adds to the gradient at most, and the step that this can cause. Within a bin
        # p (1 - p), which bounds its own slope, grows so much at most; along the step the Hessian falls to 0.63
        grows, far = jnp.exp(jnp.abs(slope) * width), jnp.abs(x) + width
        p = jax.nn.sigmoid(fitted[0] + slope * x)
        curve = grows * n * width**2 * share * (1 - share) * p * (1 - p)
        bend = jnp.stack([slope**2 / 2 * jnp.ones_like(x), jnp.abs(slope) + far * slope**2 / 2])
        most = bend @ curve + jnp.abs(gradient)
        step = 1.6 * grows * jnp.sqrt(most @ jnp.abs(inverse) @ most)
        ends = jnp.stack([jnp.ones(self.bins), jnp.sign(x) * far])
        reach = step * jnp.sqrt(jnp.max(jnp.where(n > 0, jnp.sum(ends * (inverse @ ends), axis=0), 0)))
        step = jnp.where(reach <= 1, step, jnp.inf)
        back = jnp.stack([jnp.ones(()), -centre])
        errors = step * jnp.sqrt(jnp.stack([inverse[1, 1], back @ inverse @ back]))
        is_fitted = (hessian[0, 0] > 1e-7) & (jnp.linalg.det(hessian) > 1e-8 * hessian[0, 0] ** 2)
        return jnp.where(is_fitted, jnp.concatenate([jnp.stack([slope, fitted @ back]), errors]), jnp.nan)


def _derivatives(fitted: Array, n: Array, x: Array, labels: Array) -> tuple[Array, Array]:
    # gradient (2,) and Hessian (2, 2) of the mean logistic loss by intercept and slope
    p, rows = jax.nn.sigmoid(fitted[0] + fitted[1] * x), jnp.stack([jnp.ones_like(x), x])
    return rows @ (n * p) - labels, (rows * (n * p * (1 - p))) @ rows.T


def _inverse(hessian: Array) -> Array:
    (a, b), (_, d) = hessian
    return jnp.array([[d, -b], [-b, a]]) / (a * d - b * b)


def _fit(n: Array, x: Array, labels: Array) -> Array:
    # Newton's method; of steps halved again and again the one with the least loss, or none
    sizes = jnp.append(0.5 ** jnp.arange(12), 0)

    def loss(fitted: Array) -> Array:
        return jnp.sum(n * jax.nn.softplus(fitted[0] + fitted[1] * x)) - fitted @ labels

    def step(_: int, fitted: Array) -> Array:
        gradient, hessian = _derivatives(fitted, n, x, labels)
        direction = jnp.nan_to_num(_inverse(hessian) @ gradient, posinf=0, neginf=0)
        tried = fitted - sizes[:, None] * direction
        return tried[jnp.nanargmin(jax.vmap(loss)(tried))]

    return lax.fori_loop(0, 40, step, jnp.zeros(2, x.dtype))


def recalibrate(params: Params, slope: float, intercept: float, layer: str = "*") -> Params:
    """A model whose log odds are `intercept + slope * s` in place of its s (Platt scaling).

    With slope and intercept that `Calibration` found on held-out examples of all clients, probabilities are right on
    average; the order of examples, and so the AUC, stays.

    Args:
        params: of the model, a pytree with names, whose last layer is linear.
        slope: of s, > 0.
        intercept: in log odds.
        layer: pattern of the paths of the last layer's parameters, such as "2.*"; "*" for a linear model.

    Returns:
        The parameters, of the same types, with another last layer.

    Raises:
        InvalidInput: numbers that are not finite, a slope that is not above 0, a layer that is not there, or without
            one bias (`bias`, `intercept_` or `b`) of one or two outputs.

    >>> recalibrate({"coef_": np.ones((1, 2)), "intercept_": np.zeros(1)}, 0.5, -3.0)
    {'coef_': array([[0.5, 0.5]]), 'intercept_': array([-3.])}
    """
    check_number("slope", slope, above=0)
    check_number("intercept", intercept)
    paths, leaves = named_leaves(params)
    chosen = all_matching("layer", paths, [layer])
    biases = [i for i in chosen if paths[i].rpartition(".")[2] in ("bias", "intercept_", "b")]
    if len(biases) != 1 or len(chosen) > 2 or np.size(leaves[biases[0]]) > 2:
        known = ", ".join(paths)
        raise InvalidInput(
            f"layer = '{layer}' must be one weight and one bias, of one or two outputs: the model has {known}"
        )
    for i in chosen:
        leaf = np.asarray(leaves[i])
        changed = np.array(leaf * slope, leaf.dtype)
        if i in biases:  # of two outputs the second minus the first is the score
            changed.reshape(-1)[-1] += intercept
        leaves[i] = changed
    return jax.tree.unflatten(jax.tree.structure(params), leaves)
