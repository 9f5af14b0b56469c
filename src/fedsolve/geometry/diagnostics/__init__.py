"""Diagnostics of a model beyond its metrics: optimality, feasibility, sparsity, rank and recovery."""

from fedsolve.geometry.diagnostics.diagnostic import Diagnostic, Point
from fedsolve.geometry.diagnostics.optimality import (
    Feasibility,
    FrankWolfeGap,
    Objective,
    ProxGradient,
    Suboptimality,
)
from fedsolve.geometry.diagnostics.structure import Density, Rank, RecoveryError, Support

__all__ = [
    "Density",
    "Diagnostic",
    "Feasibility",
    "FrankWolfeGap",
    "Objective",
    "Point",
    "ProxGradient",
    "Rank",
    "RecoveryError",
    "Suboptimality",
    "Support",
]
