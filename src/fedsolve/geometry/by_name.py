"""Penalties, sets and mirror maps by name, and built from the table that a configuration file gives."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedsolve import geometry
from fedsolve.core.errors import InvalidInput, unknown
from fedsolve.geometry.blocks import Block, Blocks

_PENALTIES = "L1 ElasticNet SquaredL2 LInf GroupL1 NuclearNorm TotalVariation TotalVariation2D"
_SETS = "L1Ball L2Ball LInfBall Box LpBall Simplex Polytope NuclearBall SpectralBall GroupL1Ball KSupportBall"
_MIRRORS = "Euclidean DiagonalQuadratic PNorm Entropy"

GEOMETRIES: dict[str, Callable[..., Any]] = {n: getattr(geometry, n) for n in f"{_PENALTIES} {_SETS}".split()}
"""Every penalty and set by its name."""
MIRRORS: dict[str, Callable[..., Any]] = {name: getattr(geometry, name) for name in _MIRRORS.split()}
"""Every mirror map that a configuration can name."""


def build_geometry(where: str, value: Any) -> Blocks | Any:
    """A penalty or set from a table, or several from a list of tables.

    A table has `name`, the parameters, and optionally `on`, a pattern of leaves that each get their own;
    without it the whole parameter vector is meant.

    Raises:
        InvalidInput: an unknown name or parameter (the nearest match is named), or a value it refuses.

    >>> build_geometry("psi", {"name": "L1Ball", "radius": 10.0, "on": "weight"}).parts[0].pattern
    'weight'
    """
    if isinstance(value, Sequence) and not isinstance(value, str):
        parts = [_one(where, table) for table in value]
        return Blocks(tuple(block for part in parts for block in part.parts))
    return _one(where, value)


def build_mirror(where: str, value: Any) -> Any:
    """A mirror map from a table with `name` and its parameters.

    Raises:
        InvalidInput: as `build_geometry`.
    """
    return build_part(f"mirror map of {where}", value, MIRRORS)


def _one(where: str, table: Any) -> Blocks:
    own = dict(table) if isinstance(table, Mapping) else table
    pattern = own.pop("on", None) if isinstance(own, dict) else None
    psi = build_part(f"penalty or set of {where}", own, GEOMETRIES)
    if pattern is None:
        return Blocks((Block(psi),))
    if not isinstance(pattern, str):
        raise InvalidInput(f"{where}: on = {pattern!r} must be a pattern of leaves such as 'weight'")
    return psi.on(pattern)


def build_part(kind: str, table: Any, known: Mapping[str, Callable[..., Any]], key: str = "name") -> Any:
    """An object from its name alone, or a table with parameters and, under `key`, the name.

    Raises:
        InvalidInput: an unknown name or parameter, a missing one, or a value that is refused.
    """
    values = {key: table} if isinstance(table, str) else table
    if not isinstance(values, Mapping) or key not in values:
        raise InvalidInput(f"{kind} = {table!r} must be a table with a {key}: {', '.join(known)}")
    values = dict(values)
    name = values.pop(key)
    if not isinstance(name, str) or name not in known:
        raise unknown(kind, str(name), known)
    fields = {f.name: f for f in dataclasses.fields(known[name])}  # type: ignore[arg-type]
    for parameter, value in values.items():
        if parameter not in fields:
            raise unknown(f"parameter of {name}", parameter, fields)
        if isinstance(value, str | bool) and not fields[parameter].metadata.get("static"):
            raise InvalidInput(f"{name}: {parameter} = {value!r} must be a number")
    for parameter, field in fields.items():
        if field.default is dataclasses.MISSING and parameter not in values:
            raise InvalidInput(f"{name} needs {parameter}")
    return known[name](**values)
