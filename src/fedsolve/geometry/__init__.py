"""Geometry: penalties and sets with their operations, mirror maps, and the leaves of a model to which they apply."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedsolve.core.building import Registry
from fedsolve.core.errors import InvalidInput
from fedsolve.geometry.balls import Box, L1Ball, L2Ball, LInfBall, LpBall
from fedsolve.geometry.blocks import Block, Blocks, Geometry, as_blocks
from fedsolve.geometry.mirrors import DiagonalQuadratic, Entropy, Euclidean, Mirror, PNorm, Quadratic
from fedsolve.geometry.penalties import L1, ElasticNet, GroupL1, LInf, NuclearNorm, SquaredL2
from fedsolve.geometry.regularizer import ConvexSet, Penalty, ProjectableSet, Regularizer
from fedsolve.geometry.simplex import GroupL1Ball, KSupportBall, Polytope, Simplex
from fedsolve.geometry.spectral import NuclearBall, SpectralBall
from fedsolve.geometry.variation import TotalVariation, TotalVariation2D

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

_PENALTIES = "L1 ElasticNet SquaredL2 LInf GroupL1 NuclearNorm TotalVariation TotalVariation2D"
_SETS = "L1Ball L2Ball LInfBall Box LpBall Simplex Polytope NuclearBall SpectralBall GroupL1Ball KSupportBall"
_MIRRORS = "Euclidean DiagonalQuadratic PNorm Entropy"

GEOMETRIES: Registry[Callable[..., Any]] = Registry(
    "penalty or set", {name: globals()[name] for name in f"{_PENALTIES} {_SETS}".split()}
)
MIRRORS: Registry[Callable[..., Any]] = Registry(
    "mirror map", {name: globals()[name] for name in _MIRRORS.split()}
)
"""Every mirror map that a configuration can name."""


def build_geometry(where: str, value: Any) -> Blocks | Any:
    """A penalty or set from a table, or several from a list of tables.

    A table has `name`, the parameters, and optionally `on`, a pattern of leaves that each get their own;
    without it the whole parameter vector is meant.

    >>> build_geometry("psi", {"name": "L1Ball", "radius": 10.0, "on": "weight"}).parts[0].pattern
    'weight'
    """
    if isinstance(value, Sequence) and not isinstance(value, str):
        parts = [_one(where, table) for table in value]
        return Blocks(tuple(block for part in parts for block in part.parts))
    return _one(where, value)


def _one(where: str, table: Any) -> Blocks:
    own = dict(table) if isinstance(table, Mapping) else table
    pattern = own.pop("on", None) if isinstance(own, dict) else None
    psi = GEOMETRIES.build(where, own)
    if pattern is None:
        return Blocks((Block(psi),))
    if not isinstance(pattern, str):
        raise InvalidInput(f"{where}: on = {pattern!r} must be a pattern of leaves such as 'weight'")
    return psi.on(pattern)


def __dir__() -> list[str]:
    return sorted(__all__)
