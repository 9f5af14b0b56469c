"""How the clients' own means of a metric are spread: their mean, percentiles and worst."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

_BAD = {"loss", "error", "bits"}
"""Words of a metric's name that say it is better small."""


def by_client(names: Iterable[str], means: np.ndarray, known: np.ndarray) -> dict[str, float]:
    """Mean, 10th and 90th percentile and worst of the clients' means of every metric.

    Args:
        names: of the metrics.
        means: of shape (clients, metrics).
        known: which of them are means of anything, of that shape; all are NaN where none is.
    """
    found: dict[str, float] = {}
    for name, column, here in zip(names, means.T, known.T, strict=True):
        column = column[here] if here.any() else np.full(1, np.nan)
        with np.errstate(invalid="ignore"):  # infinite losses
            p10, p90 = np.percentile(column, [10, 90])
        worst = column.max() if _BAD & set(name.split("_")) else column.min()
        found |= {
            f"client_{name}_mean": float(column.mean()),
            f"client_{name}_p10": float(p10),
            f"client_{name}_p90": float(p90),
            f"client_{name}_worst": float(worst),
        }
    return found
