"""Robust reductions by name: a coordinate at a time, or by choosing and weighing whole vectors."""

from __future__ import annotations

from fedsolve.core.building.registry import Registry
from fedsolve.methods.robust.clipping import CentredClipping
from fedsolve.methods.robust.coordinates import Median, TrimmedMean
from fedsolve.methods.robust.outliers import WithoutOutliers
from fedsolve.methods.robust.reduction import Reduction
from fedsolve.methods.robust.vectors import GeometricMedian, Krum, MultiKrum, NormClipping

_CLASSES: tuple[type[Reduction], ...] = (
    Median,
    TrimmedMean,
    GeometricMedian,
    Krum,
    MultiKrum,
    NormClipping,
    CentredClipping,
    WithoutOutliers,
)

REDUCTIONS = Registry("reduction", {cls.__name__: cls for cls in _CLASSES}, any_spelling=True)
"""Every robust reduction by its name, which a configuration may write in any case.

>>> REDUCTIONS.build("reduction", "median")
Median()
>>> REDUCTIONS.build("reduction", {"name": "TrimmedMean", "trim": 0.2})
TrimmedMean(trim=0.2)
"""
