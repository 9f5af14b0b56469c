"""Robust aggregation around any method: reductions that tolerate a few malicious clients, in place of the mean.

fs.robust.Robust(fs.FedAdam(0.1), fs.robust.Median())
"""

from fedsolve.core.building import Registry
from fedsolve.methods.robust.reductions import CentredClipping, Median, TrimmedMean, WithoutOutliers
from fedsolve.methods.robust.vectors import GeometricMedian, Krum, MultiKrum, NormClipping, Reduction
from fedsolve.methods.robust.wrapper import Robust

__all__ = [
    "CentredClipping",
    "GeometricMedian",
    "Krum",
    "Median",
    "MultiKrum",
    "NormClipping",
    "Reduction",
    "Robust",
    "TrimmedMean",
    "WithoutOutliers",
]

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
