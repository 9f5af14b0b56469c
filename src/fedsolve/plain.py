"""Plain data of a configuration and the objects that it stands for: penalties, sets, reductions, rates by round."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from fedsolve.annotations import given_types
from fedsolve.errors import InvalidInput, unknown


def from_plain(where: str, value: Any, hint: Any) -> Any:
    """The object that plain data stands for, by the annotation of the argument; any other value as it is.

    Raises:
        InvalidInput: an unknown name or parameter, a missing one, or a value that is refused.

    >>> from fedsolve.geometry.mirrors import Mirror
    >>> from_plain("mirror", {"name": "PNorm", "p": 1.5}, Mirror)
    PNorm(p=1.5)
    """
    if not isinstance(value, str | int | float | list | Mapping):
        return value
    build = _builder(hint, isinstance(value, Mapping))
    return value if build is None else build(where, value)


def _builder(hint: Any, is_table: bool) -> Callable[[str, Any], Any] | None:
    """What builds an argument with this annotation; None where it is no object."""
    kinds = given_types(hint)
    if not kinds:
        return None
    from fedsolve.algorithms.frank_wolfe_steps import STEPS, FrankWolfeSteps
    from fedsolve.geometry.catalogue import build_geometry, build_mirror, build_part
    from fedsolve.geometry.faces import ArrayFunction
    from fedsolve.geometry.mirrors import Mirror
    from fedsolve.schedules import Schedule
    from fedsolve.server.base import ServerOptimizer
    from fedsolve.server.catalogue import build_server_optimizer
    from fedsolve.wrappers.robust.base import Reduction
    from fedsolve.wrappers.robust.catalogue import build_reduction

    builders: dict[type, Callable[[str, Any], Any]] = {
        ArrayFunction: build_geometry,
        Mirror: build_mirror,
        FrankWolfeSteps: lambda where, value: build_part(f"steps of {where}", value, STEPS),
        Reduction: build_reduction,
        ServerOptimizer: build_server_optimizer,
    }
    if is_table:  # a number is a rate already
        builders[Schedule] = schedule
    return next((builders[kind] for kind in kinds if kind in builders), None)


def schedule(where: str, table: Mapping[str, Any]) -> Any:
    """A rate by round from its table.

    Raises:
        InvalidInput: an unknown schedule or parameter, or a missing one.
    """
    from fedsolve.schedules import Exponential, InverseSqrt

    kinds = {"exponential": (Exponential, ("initial", "decay")), "inverse_sqrt": (InverseSqrt, ("initial",))}
    values = dict(table)
    kind = values.pop("schedule", None)
    if kind is None:
        raise InvalidInput(f"{where}: a rate by round needs schedule = one of {', '.join(kinds)}")
    if not isinstance(kind, str) or kind not in kinds:
        raise unknown(f"schedule of {where}", str(kind), kinds)
    cls, names = kinds[kind]
    for key, value in values.items():
        if key not in names:
            raise unknown(f"parameter of the schedule {kind}", key, names)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise InvalidInput(f"{where}: {key} = {value!r} must be a number")
    for key in names:
        if key not in values:
            raise InvalidInput(f"{where}: the schedule {kind} needs {key}")
    return cls(**values)


def inline_toml(value: Any) -> str:
    """A value as TOML on one line, as `--set` takes it.

    >>> inline_toml({"name": "L1", "weight": 1e-3, "on": ["w", "b"], "each": True})
    '{name="L1",weight=0.001,on=["w","b"],each=true}'
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{k}={inline_toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(inline_toml, value)) + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else str(value)
    return str(value)
