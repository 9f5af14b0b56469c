"""What a column of a history means to a reader: its title, its unit, its scale and which way is better."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from fedsolve.core.metric_direction import higher_is_better

AVERAGED = "_averaged"
"""Suffix of a metric evaluated at the mean of the last two iterates."""

_TITLES = {
    "train_loss": "Training loss",
    "test_loss": "Test loss",
    "test_accuracy": "Test accuracy",
    "train_accuracy": "Training accuracy",
    "client_loss_mean": "Client loss, mean",
    "client_loss_p10": "Client loss, 10th percentile",
    "client_loss_p90": "Client loss, 90th percentile",
    "client_loss_worst": "Client loss, worst client",
    "unseen_loss": "Loss of unseen clients",
    "unseen_accuracy": "Accuracy of unseen clients",
    "objective": "Objective F + psi",
    "objective_error": "Objective error |F - F*|",
    "gap": "Frank-Wolfe gap",
    "prox_gradient": "Norm of the prox-gradient",
    "infeasibility": "Violation of the set",
    "distance": "Distance to the set",
    "f1": "F1 score of the support",
    "centralised_f1": "F1 score of the centralised solution's support",
    "recovery_error": "Recovery error",
    "server_lr": "Global learning rate",
    "squared_distance": "Squared distance to the minimiser",
    "loss_evaluations": "Loss evaluations",
    "diversity": "Diversity of client updates",
    "round": "Communication round",
    "seconds": "Time",
    "time": "Simulated time",
    "energy": "Simulated energy of the clients",
    "megabytes": "Data sent, up and down",
}
_UNITS = {
    "log10": "decades",
    "server_lr": "no unit",
    "loss_evaluations": "a client and round",
    "round": "",
    "seconds": "s",
    "time": "s",
    "energy": "J",
    "megabytes": "MB",
}
_ACRONYMS = {"auc": "AUC", "f1": "F1"}
_OPTIMALITY = ("gap", "prox_gradient", "suboptimality", "recovery_error", "squared_distance")


@dataclass(frozen=True)
class Metric:
    """How a column is shown: values are multiplied by `scale` and carry `unit` ('' if none)."""

    key: str
    title: str
    unit: str
    scale: float
    higher_is_better: bool

    @property
    def label(self) -> str:
        return f"{self.title} ({self.unit})" if self.unit else self.title


def describe(name: str) -> Metric:
    """How the column `name` is shown.

    >>> describe("test_accuracy").label
    'Test accuracy (%)'
    >>> describe("train_loss_averaged").label
    'Training loss, averaged iterate (mean per example)'
    """
    base = name.removesuffix(AVERAGED)
    words = base.split("_")
    spelt = ["training", *words[1:]] if words[0] == "train" else words
    title = _TITLES.get(base) or " ".join(_ACRONYMS.get(word, word) for word in spelt)
    title = title[0].upper() + title[1:] if title else title
    fraction = "accuracy" in words
    unit = _UNITS.get(base, "%" if fraction else "mean per example" if "loss" in words else "")
    unit = "bits" if "bits" in words else unit
    return Metric(
        name,
        title + (", averaged iterate" if name != base else ""),
        unit,
        100.0 if fraction else 1.0,
        higher_is_better(base),
    )


def summary(metrics: Mapping[str, float]) -> str:
    """The latest evaluation in a few words.

    >>> summary({"test_accuracy": 0.912, "train_loss": 0.25})
    'test accuracy 91.2 %, training loss 0.25'
    """
    main = next((name for name in ("test_accuracy", "test_loss") if name in metrics), "")
    return ", ".join(_metric(name, metrics[name]) for name in (main, "train_loss") if name in metrics)


def _metric(name: str, value: float) -> str:
    shown = describe(name)
    text = f"{value * shown.scale:.1f} %" if shown.unit == "%" else f"{value:.4g}"
    return f"{shown.title[0].lower()}{shown.title[1:]} {text}"


def duration(seconds: float) -> str:
    """A time in one unit.

    >>> duration(3.2), duration(150), duration(9000)
    ('3 s', '2 min', '2.5 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def wants_log(name: str, columns: Iterable[np.ndarray]) -> bool:
    """Whether a loss, objective, rate, gap or diversity is drawn on a log scale: positive and over a decade apart."""
    if not ({"loss", "lr", "diversity", "objective"} & set(name.split("_")) or name in _OPTIMALITY):
        return False
    arrays = [np.asarray(c, float) for c in columns]
    values = np.concatenate([a[np.isfinite(a)] for a in arrays]) if arrays else np.zeros(0)
    return bool(len(values) and values.min() > 0 and values.max() > 10 * values.min())
