"""Geometry: penalties and sets by the faces they show, mirror maps, and where on a model they act."""

from fedsolve.geometry.balls import Box, L1Ball, L2Ball, LInfBall, LpBall
from fedsolve.geometry.blocks import Block, Blocks, Geometry, as_blocks
from fedsolve.geometry.groups import GroupL1
from fedsolve.geometry.images import TotalVariation2D
from fedsolve.geometry.matrices import NuclearNorm
from fedsolve.geometry.mirrors import DiagonalQuadratic, Entropy, Euclidean, Mirror, PNorm, Quadratic
from fedsolve.geometry.regularizer import ConvexSet, Penalty, ProjectableSet, Regularizer
from fedsolve.geometry.simplex import Polytope, Simplex
from fedsolve.geometry.sparse_sets import GroupL1Ball, KSupportBall
from fedsolve.geometry.spectral import NuclearBall, SpectralBall
from fedsolve.geometry.variation import TotalVariation
from fedsolve.geometry.vectors import L1, ElasticNet, LInf, SquaredL2

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
