"""Metrics of classifiers from sums over examples, such as F1 and AUC: `fs.metrics`.

    task = fs.Task.from_arrays(loss, w, clients, predict=f, metrics={"auc": fs.metrics.AUC()})

A metric takes outputs and targets. Sums of several batches, clients or devices are added up; the metric is then
computed of the total. So simulations and federations give the same numbers, whatever the batches, and clients have
values of their own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from fedsolve.core.errors import InvalidInput, check_integer, check_number
from fedsolve.tasks.calibration import BrierScore, Calibration, CalibrationError, Reliability, recalibrate
from fedsolve.tasks.sum_metrics import SumMetric, columns_of_each, labels_of, scores_of

__all__ = [
    "AUC",
    "F1",
    "BalancedAccuracy",
    "BinaryCounts",
    "BrierScore",
    "Calibration",
    "CalibrationError",
    "MacroF1",
    "Precision",
    "Reliability",
    "Sensitivity",
    "Specificity",
    "recalibrate",
]


# Metrics from confusion counts: of two classes, and of several.


_MOST_CLASSES = 1024


@dataclass(frozen=True)
class BinaryCounts(SumMetric):
    """Confusion counts of two classes, in the columns NAME_tp, NAME_fp, NAME_tn and NAME_fn.

    An example is predicted positive if the model's output, or of two outputs the second minus the first, is above the
    threshold. It is positive if its label is above 0.

    Args:
        threshold: finite; 0 for margins, log odds and pairs of logits, 0.5 for probabilities.
        weighted: whether examples count by their weights, the third field of a batch.

    Raises:
        InvalidInput: a threshold that is no number; when it is used, a model with more than two outputs.
    """

    threshold: float = 0.0
    columns: ClassVar[tuple[str, ...]] = ("_tp", "_fp", "_tn", "_fn")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("threshold", self.threshold)

    @property
    def width(self) -> int:
        # true negatives, false positives, false negatives, true positives
        return 4

    def each(self, outputs: Array, targets: Array, weights: Array | None = None) -> Array:
        return columns_of_each(*scores_of(outputs, targets, type(self).__name__), weights)

    def totals(self, each: Array, group: Array, groups: int) -> Array:
        # (groups, 4); NaN in groups with a score that is no number
        score, positive, weight = each.T
        cell = (group * 2 + (positive > 0)) * 2 + (score > self.threshold)
        weight = jnp.where(jnp.isnan(score), jnp.nan, weight)
        return jax.ops.segment_sum(weight, cell, groups * 4).reshape(groups, 4)

    def of_sums(self, sums: Array) -> Array:
        return self.of_counts(sums[3], sums[1], sums[0], sums[2])

    def of_counts(self, tp: Array, fp: Array, tn: Array, fn: Array) -> Array:
        # the columns, from true and false positives and negatives
        return jnp.stack([tp, fp, tn, fn])

    def counted(self, sums: np.ndarray) -> np.ndarray:
        return np.sum(sums)[None]


@dataclass(frozen=True)
class F1(BinaryCounts):
    """F1 score, 2 TP / (2 TP + FP + FN), with the options of `BinaryCounts`; NaN without any positives."""

    columns: ClassVar[tuple[str, ...]] = ("",)

    def of_counts(self, tp: Array, fp: Array, tn: Array, fn: Array) -> Array:
        return (2 * tp / (2 * tp + fp + fn))[None]


@dataclass(frozen=True)
class Sensitivity(BinaryCounts):
    """Sensitivity (recall), TP / (TP + FN), with the options of `BinaryCounts`; NaN without positives."""

    columns: ClassVar[tuple[str, ...]] = ("",)

    def of_counts(self, tp: Array, fp: Array, tn: Array, fn: Array) -> Array:
        return (tp / (tp + fn))[None]


@dataclass(frozen=True)
class Specificity(BinaryCounts):
    """Specificity, TN / (TN + FP), with the options of `BinaryCounts`; NaN without negatives."""

    columns: ClassVar[tuple[str, ...]] = ("",)

    def of_counts(self, tp: Array, fp: Array, tn: Array, fn: Array) -> Array:
        return (tn / (tn + fp))[None]


@dataclass(frozen=True)
class Precision(BinaryCounts):
    """Precision, TP / (TP + FP), with the options of `BinaryCounts`; NaN without predicted positives."""

    columns: ClassVar[tuple[str, ...]] = ("",)

    def of_counts(self, tp: Array, fp: Array, tn: Array, fn: Array) -> Array:
        return (tp / (tp + fp))[None]


@dataclass(frozen=True)
class MacroF1(SumMetric):
    """Macro F1, the mean over classes of each class's F1; scikit-learn's `f1_score(average="macro")`.

    A model predicts the class of its largest output. Classes that neither occur nor are predicted are left out.

    Args:
        classes: how many, 2 to 1,024; a client of a federation sends three numbers for each.
        weighted: whether examples count by their weights, the third field of a batch.

    Raises:
        InvalidInput: classes out of range; when it is used, a model with another number of outputs.
    """

    classes: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        if check_integer("classes", self.classes, 2) > _MOST_CLASSES:
            raise InvalidInput(
                f"classes = {self.classes} of {type(self).__name__} must be at most {_MOST_CLASSES:,}"
            )

    @property
    def width(self) -> int:
        # of each class: examples, predictions and correct predictions
        return 3 * self.classes

    def each(self, outputs: Array, targets: Array, weights: Array | None = None) -> Array:
        what = f"{type(self).__name__}({self.classes})"
        labels = labels_of(outputs, targets, what)
        if self.classes == 2 and outputs.size == len(labels):
            margin = outputs.reshape(-1)
            return columns_of_each(labels > 0, jnp.where(jnp.isnan(margin), -1, margin > 0), weights)
        if outputs.shape != (len(labels), self.classes):
            raise InvalidInput(
                f"{what} takes an output for each class: the model has outputs of shape {outputs.shape}"
            )
        predicted = jnp.where(jnp.isnan(outputs).any(1), -1, jnp.argmax(outputs, axis=1))
        return columns_of_each(labels, predicted, weights)

    def totals(self, each: Array, group: Array, groups: int) -> Array:
        # (groups, 3 classes); NaN in groups with a class that there is not
        true, predicted, weight = each.T
        known = (true >= 0) & (true < self.classes) & (predicted >= 0)
        weight = jnp.where(known, weight, jnp.nan)
        true, predicted = (jnp.where(known, x, 0).astype(jnp.int32) for x in (true, predicted))
        cells = [true, self.classes + predicted, 2 * self.classes + true]
        weights = [weight, weight, jnp.where(true == predicted, weight, jnp.where(known, 0, jnp.nan))]
        places = jnp.concatenate([group * self.width + cell for cell in cells])
        return jax.ops.segment_sum(jnp.concatenate(weights), places, groups * self.width).reshape(groups, -1)

    def of_sums(self, sums: Array) -> Array:
        examples, predictions, right = sums.reshape(3, self.classes)
        return _mean_over_classes(2 * right, examples + predictions)

    def counted(self, sums: np.ndarray) -> np.ndarray:
        # all examples, all predictions; and infinity where more are right than there are of a class
        examples, predictions, right = sums.reshape(3, self.classes)
        excess = np.inf if (right > np.minimum(examples, predictions) * (1 + 1e-6)).any() else 0.0
        return np.array([examples.sum(), predictions.sum(), excess])


@dataclass(frozen=True)
class BalancedAccuracy(MacroF1):
    """Balanced accuracy, the mean over classes of each class's accuracy; scikit-learn's `balanced_accuracy_score`.

    A model predicts the class of its largest output. Classes that do not occur are left out.

    Args:
        classes, weighted: as of `MacroF1`.
    """

    def of_sums(self, sums: Array) -> Array:
        examples, _, right = sums.reshape(3, self.classes)
        return _mean_over_classes(right, examples)


def _mean_over_classes(above: Array, below: Array) -> Array:
    # the mean of above / below over the classes where below is not 0, shape (1,)
    there = below != 0
    values = jnp.where(there, above / jnp.where(there, below, 1), 0)
    return (jnp.sum(values) / jnp.sum(there))[None]


# The area under the ROC curve, from a histogram of scores.


_MOST_BINS = 4096


@dataclass(frozen=True)
class AUC(SumMetric):
    """Area under the ROC curve of two classes, from histograms of their scores.

    It is the fraction of pairs, a positive and a negative, in the right order.

    The score is the model's output, or of two outputs the second minus the first. Scores s are counted in equal bins
    of sign(s) r / (1 + r), r = sqrt(|s| / scale), which keeps their order and takes scores of any size; pairs in one
    bin count half. The column NAME_error bounds how far the value is from the exact one: half the share of pairs that
    are in one bin.

    Args:
        bins: of the histogram, 2 to 4,096; a client of a federation sends twice as many numbers.
        scale: the size of scores that matter, > 0: half of all bins are for scores between -scale and scale.
        weighted: whether examples count by their weights, the third field of a batch.

    Raises:
        InvalidInput: bins or a scale out of range; when it is used, a model with more than two outputs.
    """

    bins: int = 500
    scale: float = 1.0
    columns: ClassVar[tuple[str, ...]] = ("", "_error")

    def __post_init__(self) -> None:
        super().__post_init__()
        if check_integer("bins", self.bins, 2) > _MOST_BINS:
            raise InvalidInput(f"bins = {self.bins} of AUC must be at most {_MOST_BINS:,}")
        check_number("scale", self.scale, above=0)

    @property
    def width(self) -> int:
        # the bins of negatives, then of positives
        return 2 * self.bins

    def each(self, outputs: Array, targets: Array, weights: Array | None = None) -> Array:
        return columns_of_each(*scores_of(outputs, targets, "AUC"), weights)

    def totals(self, each: Array, group: Array, groups: int) -> Array:
        # both histograms of each group, (groups, 2 bins); NaN in groups with a score that is no number
        score, positive, weight = each.T
        unknown = jnp.isnan(score)
        score = jnp.clip(jnp.where(unknown, 0, score), -1e30, 1e30)
        root = jnp.sqrt(jnp.abs(score) / self.scale)
        share = 0.5 + 0.5 * jnp.sign(score) * root / (1 + root)
        place = jnp.clip((share * self.bins).astype(jnp.int32), 0, self.bins - 1)
        cell = (group * 2 + (positive > 0)) * self.bins + place
        counts = jax.ops.segment_sum(jnp.where(unknown, jnp.nan, weight), cell, groups * self.width)
        return counts.reshape(groups, self.width)

    def of_sums(self, sums: Array) -> Array:
        # the area and its error bound, shape (2,)
        negative, positive = sums.reshape(2, self.bins)
        share = positive / jnp.sum(positive)
        total = jnp.sum(negative)
        below = (jnp.cumsum(negative) - negative / 2) / total
        return jnp.stack([jnp.sum(share * below), jnp.sum(share * (negative / total)) / 2])

    def counted(self, sums: np.ndarray) -> np.ndarray:
        return np.sum(sums)[None]


# A metric of `fs.metrics` as plain data, as clients of a federation send it beside its sums, and back.


def describe(metric: SumMetric) -> dict[str, Any]:
    """A metric as plain data.

    >>> describe(AUC(50))
    {'metric': 'AUC', 'weighted': False, 'bins': 50, 'scale': 1.0}
    """
    return {"metric": type(metric).__name__, **dataclasses.asdict(metric)}


def described(data: object) -> SumMetric:
    # the inverse of `describe`
    fields = dict(data) if isinstance(data, Mapping) else {}
    name = fields.pop("metric", None)
    kind: Any = globals()[name] if name in __all__ else None
    if not isinstance(kind, type) or not all(isinstance(key, str) for key in fields):
        raise InvalidInput(f"no metric of fs.metrics is described by {str(data)[:80]!r}")
    if set(fields) != {f.name for f in dataclasses.fields(kind)}:
        raise InvalidInput(f"{name} has no such fields: {', '.join(sorted(fields))[:80]}")
    return kind(**fields)
