"""Which evaluations of a metric are better than those before: what ends a run early or lowers its rates goes by it."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

import numpy as np

from fedsolve.core.errors import InvalidInput, check_known

_HIGHER_IS_BETTER = (
    "accuracy", "acc", "precision", "recall", "f1", "auc", "auroc", "auprc", "r2", "sensitivity", "specificity",
    "dice", "iou", "kappa", "mcc", "ndcg",
)  # fmt: skip


def higher_is_better(name: str) -> bool:
    """Whether more of a metric is better, by the words of its name, in any case.

    >>> higher_is_better("test_accuracy"), higher_is_better("F1 µ"), higher_is_better("train_loss")
    (True, True, False)
    """
    words = re.split(r"[\W_]+", name.lower())
    return "error" not in words and any(word in _HIGHER_IS_BETTER for word in words)


_BEST_AT = {
    "slope": 1.0,
    "intercept": 0.0,
}  # of `Calibration`; no count is better, nor a bin of `Reliability`
_COUNTS = re.compile(r"_([tf][pn]|(n|predicted|observed)_\d+)$")


def badness(name: str, values: np.ndarray) -> np.ndarray:
    """How bad values of a metric are, larger where worse; NaN of one that has no direction."""
    values, name = np.asarray(values, float), name.removesuffix("_averaged")
    if _COUNTS.search(name):
        return np.full_like(values, np.nan)
    if (best := _BEST_AT.get(name.rpartition("_")[2])) is not None:
        return np.abs(values - best)
    return -values if higher_is_better(name) else values


def check_direction(name: str, what: str) -> None:
    """Raise `InvalidInput` unless the name of a metric says that more of it is better."""
    if not higher_is_better(name):
        raise InvalidInput(
            f"metric {name} is {what}, of which more is better, as early stopping and tables read from its name: "
            f"give it one with a word such as {', '.join(_HIGHER_IS_BETTER[:6])}"
        )


def signed(metric: str, evaluations: Mapping[str, np.ndarray], whose: str) -> np.ndarray:
    """A metric's evaluations, shape (evaluations,), larger where better; -inf where it is not a number."""
    check_recorded(whose, metric, evaluations)
    return np.nan_to_num(-badness(metric, evaluations[metric]), nan=-np.inf)


def check_recorded(whose: str, metric: str, columns: Collection[str]) -> None:
    """Raise `InvalidInput` unless a metric of `whose` is among the columns of a record; it names the nearest."""
    part = "validation_"
    if metric.startswith(part) and not any(name.startswith(part) for name in columns):
        raise InvalidInput(
            f"no {metric} for {whose}: the task has no validation examples, give task.hold_out(0.1) or --validation 0.1"
        )
    check_known(f"metric of {whose}", metric, columns)


def improvements(values: np.ndarray, min_delta: float) -> np.ndarray:
    """The places of values that are larger than the best before them by more than `min_delta`; the first is one.

    >>> improvements(np.array([1.0, 3.0, 3.5, 3.0, 4.5]), 1.0).tolist()
    [0, 1, 4]
    """
    improved, best = [0], values[0]
    for index, value in enumerate(values.tolist()):
        if value > best + min_delta:
            improved.append(index)
            best = value
    return np.array(improved)
