"""The area under the ROC curve, from a histogram of scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from fedsolve.core.errors import InvalidInput, check_integer, check_number
from fedsolve.tasks.metrics.sum_metric import SumMetric, columns_of_each, scores_of

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
        """The bins of negatives, then of positives."""
        return 2 * self.bins

    def each(self, outputs: Array, targets: Array, weights: Array | None = None) -> Array:
        """The score, class and weight of each example, (n, 3)."""
        return columns_of_each(*scores_of(outputs, targets, "AUC"), weights)

    def totals(self, each: Array, group: Array, groups: int) -> Array:
        """The two histograms of each group, (groups, 2 bins); NaN in those with a score that is no number."""
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
        """The area and its error bound, shape (2,)."""
        negative, positive = sums.reshape(2, self.bins)
        share = positive / jnp.sum(positive)
        total = jnp.sum(negative)
        below = (jnp.cumsum(negative) - negative / 2) / total
        return jnp.stack([jnp.sum(share * below), jnp.sum(share * (negative / total)) / 2])

    def counted(self, sums: np.ndarray) -> np.ndarray:
        """All of both histograms."""
        return np.sum(sums)[None]
