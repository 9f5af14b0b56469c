"""How the methods of a comparison weigh clients: one weighting for all, and a note where they differ."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from fedsolve.config.build import arguments, build, recipe_of
from fedsolve.core.algorithm import Algorithm
from fedsolve.core.errors import InvalidInput
from fedsolve.core.types import Weighting, check_weighting


def different_objectives(methods: Mapping[str, Algorithm], remedy: str) -> list[str]:
    """One line if methods minimise different objectives, as they weigh clients differently; `remedy` gives them one."""
    by: dict[str, list[str]] = {}
    for label, method in methods.items():
        by.setdefault(method.traits.weighting, []).append(label)
    if len(by) < 2:
        return []
    minimise = "minimises" if len(by["uniform"]) == 1 else "minimise"
    return [
        f"different objectives: {', '.join(by['uniform'])} {minimise} the mean loss over clients (weighting uniform), "
        f"{', '.join(by['examples'])} over examples; one for all: {remedy}"
    ]


def with_weighting(label: str, method: Algorithm, weighting: Weighting) -> Algorithm:
    """A method, and what it wraps, with another weighting; itself where it has that one alone."""
    check_weighting(weighting)
    recorded = recipe_of(method)
    if recorded is None:
        changed = _with_field(method, weighting)
    else:
        name, settings = recorded
        check_one_weighting(label, settings.get("weighting", weighting), weighting)
        changed = method
        if "weighting" in arguments(name):
            changed = build(name, settings | {"weighting": weighting})
    check_weighs(label, changed, weighting, "weighting={!r}")
    return changed


def check_weighs(label: str, method: Algorithm, weighting: str, option: str) -> None:
    own = method.traits.weighting
    if own != weighting:
        raise InvalidInput(
            f"{label} cannot weigh clients by {weighting!r}, it is {own!r} alone: "
            f"leave the method out or give {option.format(own)}"
        )


def check_one_weighting(label: str, given: object, weighting: str) -> None:
    if given != weighting:
        raise InvalidInput(
            f"{label}: weighting = {given!r} does not go with weighting = {weighting!r} for all: give one of them"
        )


def _with_field(method: Algorithm, weighting: Weighting) -> Algorithm:
    # a method without a name, with another weighting in its outermost part that has one
    names = {f.name for f in dataclasses.fields(method)} if dataclasses.is_dataclass(method) else set()
    if "weighting" in names:
        return dataclasses.replace(method, weighting=weighting)  # pyright: ignore[reportArgumentType]
    inner = getattr(method, "inner", None)
    if "inner" in names and isinstance(inner, Algorithm):
        return dataclasses.replace(method, inner=_with_field(inner, weighting))  # pyright: ignore[reportArgumentType]
    return method
