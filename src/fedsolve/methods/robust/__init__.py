"""Robust aggregation around any method: reductions that a few bad clients cannot move, in place of the mean.

fs.robust.Robust(fs.FedAdam(0.1), fs.robust.Median())
"""

from fedsolve.methods.robust.clipping import CentredClipping
from fedsolve.methods.robust.coordinates import Median, TrimmedMean
from fedsolve.methods.robust.outliers import WithoutOutliers
from fedsolve.methods.robust.reduction import Reduction
from fedsolve.methods.robust.vectors import GeometricMedian, Krum, MultiKrum, NormClipping
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


def __dir__() -> list[str]:
    return sorted(__all__)
