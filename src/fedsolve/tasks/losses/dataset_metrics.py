"""Metrics of a whole set of examples, which no mean over examples gives: F1, AUC, a root mean square, a count."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fedsolve.core.errors import InvalidInput
from fedsolve.core.types import Batch, Params


@dataclass(frozen=True)
class Whole:
    """A score of the outputs on all examples of a set, such as scikit-learn's.

    Attributes:
        outputs: (params, batch) -> one array, or a tuple of arrays, with a row for each example of the batch; in
            jax.numpy. It runs compiled, a few examples at a time; it must not mix examples.
        score: the same arrays for the whole set, as NumPy arrays, in the order of the set -> a number. It runs on
            the host.

    Raises:
        InvalidInput: outputs or score is no function.

    >>> from sklearn.metrics import f1_score
    >>> f1 = Whole(lambda w, batch: (batch.y, batch.x @ w > 0), f1_score)
    """

    outputs: Callable[[Params, Batch], Any]
    score: Callable[..., Any]

    def __post_init__(self) -> None:
        for name, value in (("outputs", self.outputs), ("score", self.score)):
            if not callable(value):
                raise InvalidInput(f"{name} = {value!r} of Whole must be a function")
