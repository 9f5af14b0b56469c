"""Geometry: penalties and sets by the faces they show, mirror maps, and where on a model they act."""

from fedsolve.geometry.balls import L1Ball, L2Ball
from fedsolve.geometry.blocks import Block, Blocks, Geometry, as_blocks
from fedsolve.geometry.mirrors import DiagonalQuadratic, Entropy, Euclidean, Mirror, PNorm, Quadratic
from fedsolve.geometry.regularizer import ConvexSet, Penalty, ProjectableSet, Regularizer
from fedsolve.geometry.vectors import L1

__all__ = [
    "L1",
    "Block",
    "Blocks",
    "ConvexSet",
    "DiagonalQuadratic",
    "Entropy",
    "Euclidean",
    "Geometry",
    "L1Ball",
    "L2Ball",
    "Mirror",
    "PNorm",
    "Penalty",
    "ProjectableSet",
    "Quadratic",
    "Regularizer",
    "as_blocks",
]
