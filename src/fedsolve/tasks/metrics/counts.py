"""Metrics from confusion counts: of two classes, and of several."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from fedsolve.core.errors import InvalidInput, check_integer, check_number
from fedsolve.tasks.metrics.sum_metric import SumMetric, columns_of_each, labels_of, scores_of

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
        """True negatives, false positives, false negatives, true positives."""
        return 4

    def each(self, outputs: Array, targets: Array, weights: Array | None = None) -> Array:
        """Score, class and weight of each example, (n, 3)."""
        return columns_of_each(*scores_of(outputs, targets, type(self).__name__), weights)

    def totals(self, each: Array, group: Array, groups: int) -> Array:
        """The counts of each group, (groups, 4); NaN in those with a score that is no number."""
        score, positive, weight = each.T
        cell = (group * 2 + (positive > 0)) * 2 + (score > self.threshold)
        weight = jnp.where(jnp.isnan(score), jnp.nan, weight)
        return jax.ops.segment_sum(weight, cell, groups * 4).reshape(groups, 4)

    def of_sums(self, sums: Array) -> Array:
        """The counts in the order of the columns."""
        return self.of_counts(sums[3], sums[1], sums[0], sums[2])

    def of_counts(self, tp: Array, fp: Array, tn: Array, fn: Array) -> Array:
        """The columns, from true and false positives and negatives."""
        return jnp.stack([tp, fp, tn, fn])

    def counted(self, sums: np.ndarray) -> np.ndarray:
        """All four."""
        return np.sum(sums)[None]


@dataclass(frozen=True)
class F1(BinaryCounts):
    """F1 score of two classes, 2 TP / (2 TP + FP + FN); NaN without true or predicted positives.

    Args:
        threshold, weighted: as of `BinaryCounts`.
    """

    columns: ClassVar[tuple[str, ...]] = ("",)

    def of_counts(self, tp: Array, fp: Array, tn: Array, fn: Array) -> Array:
        """2 TP / (2 TP + FP + FN)."""
        return (2 * tp / (2 * tp + fp + fn))[None]


@dataclass(frozen=True)
class Sensitivity(BinaryCounts):
    """Sensitivity, TP / (TP + FN), also called recall or true positive rate; NaN without positives.

    Args:
        threshold, weighted: as of `BinaryCounts`.
    """

    columns: ClassVar[tuple[str, ...]] = ("",)

    def of_counts(self, tp: Array, fp: Array, tn: Array, fn: Array) -> Array:
        """TP / (TP + FN)."""
        return (tp / (tp + fn))[None]


@dataclass(frozen=True)
class Specificity(BinaryCounts):
    """Specificity, TN / (TN + FP), also called true negative rate; NaN without negatives.

    Args:
        threshold, weighted: as of `BinaryCounts`.
    """

    columns: ClassVar[tuple[str, ...]] = ("",)

    def of_counts(self, tp: Array, fp: Array, tn: Array, fn: Array) -> Array:
        """TN / (TN + FP)."""
        return (tn / (tn + fp))[None]


@dataclass(frozen=True)
class Precision(BinaryCounts):
    """Precision, TP / (TP + FP), also called positive predictive value; NaN without predicted positives.

    Args:
        threshold, weighted: as of `BinaryCounts`.
    """

    columns: ClassVar[tuple[str, ...]] = ("",)

    def of_counts(self, tp: Array, fp: Array, tn: Array, fn: Array) -> Array:
        """TP / (TP + FP)."""
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
        """The sums of each class: examples, predictions and correct predictions."""
        return 3 * self.classes

    def each(self, outputs: Array, targets: Array, weights: Array | None = None) -> Array:
        """Class, prediction and weight of each example, (n, 3)."""
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
        """The counts of each group, (groups, 3 classes); NaN in those with a class that there is not."""
        true, predicted, weight = each.T
        known = (true >= 0) & (true < self.classes) & (predicted >= 0)
        weight = jnp.where(known, weight, jnp.nan)
        true, predicted = (jnp.where(known, x, 0).astype(jnp.int32) for x in (true, predicted))
        cells = [true, self.classes + predicted, 2 * self.classes + true]
        weights = [weight, weight, jnp.where(true == predicted, weight, jnp.where(known, 0, jnp.nan))]
        places = jnp.concatenate([group * self.width + cell for cell in cells])
        return jax.ops.segment_sum(jnp.concatenate(weights), places, groups * self.width).reshape(groups, -1)

    def of_sums(self, sums: Array) -> Array:
        """The mean over classes, shape (1,)."""
        examples, predictions, right = sums.reshape(3, self.classes)
        return _mean_over_classes(2 * right, examples + predictions)

    def counted(self, sums: np.ndarray) -> np.ndarray:
        """All examples, all predictions; and where more are right than there are of a class, infinity."""
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
        """The mean over classes, shape (1,)."""
        examples, _, right = sums.reshape(3, self.classes)
        return _mean_over_classes(right, examples)


def _mean_over_classes(above: Array, below: Array) -> Array:
    """The mean of above / below over the classes where below is not 0, shape (1,)."""
    there = below != 0
    values = jnp.where(there, above / jnp.where(there, below, 1), 0)
    return (jnp.sum(values) / jnp.sum(there))[None]
