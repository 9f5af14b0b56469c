"""A metric of `fs.metrics` as plain data, as clients of a federation send it beside its sums, and back."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from fedsolve.core.errors import InvalidInput
from fedsolve.tasks import metrics
from fedsolve.tasks.metrics.sum_metric import SumMetric


def describe(metric: SumMetric) -> dict[str, Any]:
    """A metric as plain data.

    >>> describe(metrics.AUC(50))
    {'metric': 'AUC', 'weighted': False, 'bins': 50, 'scale': 1.0}
    """
    return {"metric": type(metric).__name__, **dataclasses.asdict(metric)}


def described(data: object) -> SumMetric:
    """The metric that `describe` describes.

    Raises:
        InvalidInput: data that are none.
    """
    fields = dict(data) if isinstance(data, Mapping) else {}
    name = fields.pop("metric", None)
    if name not in metrics.__all__ or not all(isinstance(key, str) for key in fields):
        raise InvalidInput(f"no metric of fs.metrics is described by {str(data)[:80]!r}")
    kind: Any = getattr(metrics, str(name))
    if set(fields) != {f.name for f in dataclasses.fields(kind)}:
        raise InvalidInput(f"{name} has no such fields: {', '.join(sorted(fields))[:80]}")
    return kind(**fields)
