"""Plain data of a configuration and the objects that it stands for: penalties, sets, reductions, rates by round."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import cache
from typing import Any

from fedsolve.config.signature_types import given_types
from fedsolve.core.building import Registry


def from_plain(where: str, value: Any, hint: Any) -> Any:
    """The object that plain data stands for, by the annotation of the argument; any other value as it is.

    Raises:
        InvalidInput: an unknown name or parameter, a missing one, or a value that is refused.

    >>> from fedsolve.geometry.mirrors import Mirror
    >>> from_plain("mirror", {"name": "PNorm", "p": 1.5}, Mirror)
    PNorm(p=1.5)
    """
    kinds = given_types(hint) if isinstance(value, str | int | float | list | Mapping) else ()
    if not kinds:
        return value
    from fedsolve.core.schedules import Schedule
    from fedsolve.geometry import build_geometry
    from fedsolve.geometry.blocks import ArrayFunction

    known = registries()
    kind = next((kind for kind in kinds if kind in known), None)
    if kind is None or (kind is Schedule and not isinstance(value, Mapping)):  # a number is a rate already
        return value
    return build_geometry(where, value) if kind is ArrayFunction else known[kind].build(where, value)


@cache
def registries() -> Mapping[type, Registry[Any]]:
    """What a configuration can build beside methods and tasks, by the class that an argument is annotated with."""
    from fedsolve.config.schedule_names import SCHEDULES
    from fedsolve.core.schedules import Schedule
    from fedsolve.geometry import GEOMETRIES, MIRRORS
    from fedsolve.geometry.blocks import ArrayFunction
    from fedsolve.geometry.mirrors import Mirror
    from fedsolve.methods.compression import COMPRESSORS, Compressor
    from fedsolve.methods.frank_wolfe.steps import STEPS, FrankWolfeSteps
    from fedsolve.methods.robust import REDUCTIONS
    from fedsolve.methods.robust.reduction import Reduction
    from fedsolve.methods.server import Adaptive, DoublyAdaptive, Muon, ServerOptimizer, ServerSGD

    # those made of numbers alone
    optimizers = {cls.__name__: cls for cls in (ServerSGD, Adaptive, DoublyAdaptive)} | {"Muon": Muon}
    return {
        ArrayFunction: GEOMETRIES,
        Mirror: MIRRORS,
        FrankWolfeSteps: STEPS,
        Reduction: REDUCTIONS,
        Compressor: COMPRESSORS,
        ServerOptimizer: Registry("server optimiser", optimizers),
        Schedule: SCHEDULES,
    }


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
