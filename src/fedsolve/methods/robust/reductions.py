"""Robust reductions by name: a coordinate at a time, or by choosing and weighing whole vectors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedsolve.geometry.by_name import build_part
from fedsolve.methods.robust.clipping import CentredClipping
from fedsolve.methods.robust.coordinates import Median, TrimmedMean
from fedsolve.methods.robust.outliers import WithoutOutliers
from fedsolve.methods.robust.reduction import Reduction
from fedsolve.methods.robust.vectors import GeometricMedian, Krum, MultiKrum, NormClipping

REDUCTIONS = {
    cls.__name__: cls
    for cls in (
        Median,
        TrimmedMean,
        GeometricMedian,
        Krum,
        MultiKrum,
        NormClipping,
        CentredClipping,
        WithoutOutliers,
    )
}
"""Every robust reduction by its name."""


def build_reduction(where: str, value: Any) -> Reduction:
    """A reduction from its name, in any case, or from a table with `name` and its parameters.

    Raises:
        InvalidInput: an unknown name or parameter (the nearest match is named), a missing one, a bad value.

    >>> build_reduction("reduction", "median")
    Median()
    >>> build_reduction("reduction", {"name": "TrimmedMean", "trim": 0.2})
    TrimmedMean(trim=0.2)
    """
    folded = {name.lower(): name for name in REDUCTIONS}
    table = {"name": value} if isinstance(value, str) else value
    if isinstance(table, Mapping) and "name" in table:
        name = str(table["name"])
        plain = name.lower().replace("_", "").replace("-", "")
        table = {**table, "name": folded.get(plain, name)}
    return build_part(f"reduction of {where}", table, REDUCTIONS)
