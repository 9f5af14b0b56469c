"""Geometry: penalties and sets with their operations, mirror maps, and where on a model they act."""

from fedsolve.geometry.blocks import Block, Blocks, Geometry, as_blocks
from fedsolve.geometry.mirrors import DiagonalQuadratic, Entropy, Euclidean, Mirror, PNorm, Quadratic
from fedsolve.geometry.penalties.groups import GroupL1
from fedsolve.geometry.penalties.images import TotalVariation2D
from fedsolve.geometry.penalties.matrices import NuclearNorm
from fedsolve.geometry.penalties.variation import TotalVariation
from fedsolve.geometry.penalties.vectors import L1, ElasticNet, LInf, SquaredL2
from fedsolve.geometry.regularizer import ConvexSet, Penalty, ProjectableSet, Regularizer
from fedsolve.geometry.sets.balls import Box, L1Ball, L2Ball, LInfBall, LpBall
from fedsolve.geometry.sets.simplex import Polytope, Simplex
from fedsolve.geometry.sets.sparse_sets import GroupL1Ball, KSupportBall
from fedsolve.geometry.sets.spectral import NuclearBall, SpectralBall

__all__ = [
    "L1",
    "Block",
    "Blocks",
    "Box",
    "ConvexSet",
    "DiagonalQuadratic",
    "ElasticNet",
    "Entropy",
    "Euclidean",
    "Geometry",
    "GroupL1",
    "GroupL1Ball",
    "KSupportBall",
    "L1Ball",
    "L2Ball",
    "LInf",
    "LInfBall",
    "LpBall",
    "Mirror",
    "NuclearBall",
    "NuclearNorm",
    "PNorm",
    "Penalty",
    "Polytope",
    "ProjectableSet",
    "Quadratic",
    "Regularizer",
    "Simplex",
    "SpectralBall",
    "SquaredL2",
    "TotalVariation",
    "TotalVariation2D",
    "as_blocks",
]


def __dir__() -> list[str]:
    return sorted(__all__)
