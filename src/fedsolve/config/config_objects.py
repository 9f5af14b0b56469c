"""Plain data of a configuration and the objects that it stands for: penalties, sets, reductions, rates by round."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from fedsolve.config.signature_types import given_types


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
    from fedsolve.config.server_optimizers import build_server_optimizer
    from fedsolve.core.schedules import Schedule
    from fedsolve.geometry.by_name import build_geometry, build_mirror, build_part
    from fedsolve.geometry.faces import ArrayFunction
    from fedsolve.geometry.mirrors import Mirror
    from fedsolve.methods.frank_wolfe.steps import STEPS, FrankWolfeSteps
    from fedsolve.methods.robust.reduction import Reduction
    from fedsolve.methods.robust.reductions import build_reduction
    from fedsolve.methods.server.server_optimizer import ServerOptimizer

    builders: dict[type, Callable[[str, Any], Any]] = {
        ArrayFunction: build_geometry,
        Mirror: build_mirror,
        FrankWolfeSteps: lambda where, value: build_part(f"steps of {where}", value, STEPS),
        Reduction: build_reduction,
        ServerOptimizer: build_server_optimizer,
    }
    if is_table:  # a number is a rate already
        builders[Schedule] = _schedule
    return next((builders[kind] for kind in kinds if kind in builders), None)


def _schedule(where: str, table: Mapping[str, Any]) -> Any:
    """A rate by round from its table.

    Raises:
        InvalidInput: an unknown schedule or parameter, a missing one, or a value that is refused.
    """
    from fedsolve.core.schedules import SCHEDULES
    from fedsolve.geometry.by_name import build_part

    return build_part(f"schedule of {where}", table, SCHEDULES, key="schedule")


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
