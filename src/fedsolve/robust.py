"""Robust aggregation around any method: reductions that a few bad clients cannot move, in place of the mean.

fs.robust.Robust(fs.FedAdam(0.1), fs.robust.Median())
"""

from fedsolve.wrappers.robust.base import Reduction
from fedsolve.wrappers.robust.clipping import CentredClipping
from fedsolve.wrappers.robust.coordinates import Median, TrimmedMean
from fedsolve.wrappers.robust.outliers import WithoutOutliers
from fedsolve.wrappers.robust.vectors import GeometricMedian, Krum, MultiKrum, NormClipping
from fedsolve.wrappers.robust.wrapper import Robust

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


def __dir__() -> list[str]:
    return sorted(__all__)
