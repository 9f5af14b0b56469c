"""Metrics of classifiers from sums over examples, such as F1 and AUC: `fs.metrics`.

    task = fs.Task.from_arrays(loss, w, clients, predict=f, metrics={"auc": fs.metrics.AUC()})

A metric takes outputs and targets. Sums of several batches, clients or devices are added up; the metric is then
computed of the total. So simulations and federations give the same numbers, whatever the batches, and clients have
values of their own.
"""

from fedsolve.tasks.metrics.auc import AUC
from fedsolve.tasks.metrics.counts import (
    F1,
    BalancedAccuracy,
    BinaryCounts,
    MacroF1,
    Precision,
    Sensitivity,
    Specificity,
)

__all__ = [
    "AUC",
    "F1",
    "BalancedAccuracy",
    "BinaryCounts",
    "MacroF1",
    "Precision",
    "Sensitivity",
    "Specificity",
]
