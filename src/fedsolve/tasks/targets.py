"""Which targets a loss takes: a label that is none of its classes would train without a sign of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import numpy as np

from fedsolve.core.errors import ConfidentialError, InvalidInput, shown_label
from fedsolve.core.types import Batch, Params
from fedsolve.data.examples import SparseRows


@dataclass(frozen=True)
class Classes:
    """Labels 0 .. count - 1, one for each of the model's outputs."""

    count: int  # how many classes
    padding: int | None = None  # a label that stands for none, which may lie outside; None if there is none
    remedy: ClassVar[str] = "number the classes from 0, or give the model an output for each"

    @property
    def words(self) -> str:
        # what is taken, for an error
        beside = (
            "" if self.padding is None or self.padding < self.count else f", and {self.padding} for padding"
        )
        return f"0 to {self.count - 1} for the model's {self.count} outputs{beside}"

    def between(self, low: int, high: int) -> bool:
        # would every integer of a range do?
        return low >= 0 and high < self.count

    def wrong(self, y: np.ndarray) -> np.ndarray:
        # booleans of the shape of y
        bad = ~((y >= 0) & (y < self.count))
        if y.dtype.kind not in "iub":
            bad |= y != np.floor(y)
        return bad if self.padding is None else bad & (y != self.padding)


@dataclass(frozen=True)
class TwoSides:
    """Labels 0 and 1, or -1 and 1: what is above 0 is on the one side, everything else on the other."""

    words: ClassVar[str] = "0 and 1, or -1 and 1"
    remedy: ClassVar[str] = "number the two classes 0 and 1"

    def between(self, low: int, high: int) -> bool:
        return low >= 0 and high <= 1

    def wrong(self, y: np.ndarray) -> np.ndarray:
        # where both -1 and 0 are there, the zeros are wrong
        negative = y == -1
        bad = ~(negative | (y == 0) | (y == 1))
        return (y == 0) if negative.any() and not bad.any() else bad


@dataclass(frozen=True)
class Tags:
    """Rows of tags as `SparseRows`: columns 0 .. count - 1 with the value 1, filled up by entries of value 0."""

    count: int  # how many tags
    remedy: ClassVar[str] = "number the tags from 0, or give the model an output for each"

    @property
    def words(self) -> str:
        return f"tags 0 to {self.count - 1} for the model's {self.count} outputs, each with the value 1"


Targets = Classes | TwoSides | Tags


@dataclass(frozen=True)
class WrongTarget:
    """The first target of some examples that a loss does not take, and the range of all of them."""

    row: int  # its example
    value: Any  # what it is
    low: Any  # low, high: the range
    high: Any


def targets_of(loss: Any, params: Callable[[], Params], examples: Batch) -> Targets | None:
    # by the shape of the model's outputs. A loss says so by a method `targets(params, batch)`, which is
    # traced, as is `params()`; None if it does not say
    says = getattr(loss, "targets", None)
    if says is None:
        return None
    targets: list[Targets | None] = []
    batch = jax.tree.map(lambda a: np.broadcast_to(np.zeros((), a.dtype), (2, *a.shape[1:])), examples)
    try:
        jax.eval_shape(lambda batch: targets.append(says(params(), batch)), batch)
    except InvalidInput:
        raise
    except Exception:  # a model that does not fit the examples: a run says in which way
        return None
    return targets[0]


def first_wrong(targets: Targets, y: Any, ends: tuple[int, int] | None = None) -> WrongTarget | None:
    # integers within the range cost one look at both ends; `ends` are the least and the largest of y where
    # these are known
    if isinstance(targets, Tags):
        return _first_tag(targets, y)
    y = np.asarray(y)
    if y.dtype.kind in "iub":
        low, high = (int(y.min()), int(y.max())) if ends is None else ends
        if targets.between(low, high):
            return None
    return _first(targets.wrong(y), y)


def _first_tag(targets: Tags, y: SparseRows) -> WrongTarget | None:
    indices, values = np.asarray(y.indices), np.asarray(y.values)
    outside = (indices < 0) | (indices >= targets.count)
    return _first(outside, indices) or _first((values != 0) & (values != 1), values)


def _first(wrong: np.ndarray, y: np.ndarray) -> WrongTarget | None:
    if not wrong.any():
        return None
    index = int(np.argmax(wrong))
    row = index // (wrong.size // len(wrong))
    return WrongTarget(row, y.reshape(-1)[index].item(), y.min().item(), y.max().item())


def refuse(targets: Targets, found: WrongTarget, where: str, of: str) -> InvalidInput:
    # `where` the first is, and `of` which examples the range is
    takes = f"the loss takes {targets.words}; {targets.remedy}"
    return ConfidentialError(
        f"{where} has label {shown_label(found.value)}, and the labels of {of} range from {shown_label(found.low)} to "
        f"{shown_label(found.high)}: {takes}",
        f"{where} has a label that is no class: {takes}",
    )
