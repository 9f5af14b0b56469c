"""The settings of a method: checked against its signature, with defaults, at one setting of a grid, built."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, get_args, get_origin

from fedsolve.cli.configuration.config import Config, MethodSection
from fedsolve.cli.configuration.values import axis_values
from fedsolve.config.build import arguments, build, from_plain
from fedsolve.config.references import is_reference
from fedsolve.config.signatures import checked, choices, given_types
from fedsolve.config.weighting import check_one_weighting
from fedsolve.core.algorithm import Algorithm
from fedsolve.core.errors import InvalidInput, unknown
from fedsolve.core.schedules import Schedule
from fedsolve.engine.sweep_grid import check_size


def resolve_settings(name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """A method's settings with its defaults filled in; what has no default is left out.

    Raises:
        InvalidInput: an unknown method or setting.
    """
    known = arguments(name)
    for key in settings:
        if key not in known:
            raise unknown(f"setting of {name}", key, known)
    defaults = {k: a.default for k, a in known.items() if isinstance(a.default, bool | int | float | str)}
    return {k: settings.get(k, defaults.get(k)) for k in known if k in settings or k in defaults}


def method_arguments(name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """A method's settings as its builder takes them: types checked, tables made the objects that they stand for.

    Raises:
        InvalidInput: an unknown setting, or a value of the wrong type (what was expected is named).
    """
    resolved, known, own = resolve_settings(name, settings), arguments(name), is_reference(name)
    return {key: _argument(f"{name}: {key}", value, known[key].hint, own) for key, value in resolved.items()}


def _argument(where: str, value: Any, hint: Any, own: bool) -> Any:
    """One setting, built from plain data where its annotation asks for an object, and checked."""
    built = from_plain(where, value, hint)
    if built is not value:
        return built
    words, kinds = choices(hint), given_types(hint)
    if words:
        if value not in words:
            raise InvalidInput(f"{where} = {value!r} must be one of {', '.join(map(str, words))}")
    elif hint is bool:
        if not isinstance(value, bool):
            raise InvalidInput(f"{where} = {value!r} must be true or false")
    elif str in kinds:  # one text, or several in a list
        return checked(where, value, hint)
    elif own:
        return checked(where, value, Any if hint is None else hint)
    elif isinstance(value, Mapping) and get_origin(next(iter(get_args(hint)), None)) is Mapping:
        return value  # bounds by name
    elif not isinstance(value, int | float) or isinstance(value, bool):
        rate = Schedule in kinds
        more = ' or a rate by round such as {schedule = "inverse_sqrt", initial = 0.1}' if rate else ""
        raise InvalidInput(f"{where} = {value!r} must be a number{more}")
    return value


def build_method(method: MethodSection, values: Mapping[str, Any] | None = None) -> Algorithm:
    """A method of a configuration, at one setting of a grid if `values` are given."""
    return build(method.name, method_arguments(method.name, with_values(method.settings, values or {})))


def with_values(settings: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """A method's settings at one setting of the grid; `psi.weight` is a key of the table `psi`, 'none' leaves out.

    >>> with_values({"psi": {"name": "L1"}, "tau": 1.0}, {"psi.weight": 0.1, "tau": "none"})
    {'psi': {'name': 'L1', 'weight': 0.1}}
    """
    found = dict(settings)
    for axis, value in values.items():
        head, dot, key = axis.partition(".")
        if dot:
            table = found.get(head)
            if not isinstance(table, Mapping):
                raise InvalidInput(
                    f"the axis {axis} needs {head} as a table: give --set {head}={{name=...}} or the like"
                )
            rest = {k: v for k, v in table.items() if k != key}
            found[head] = rest if value in ("none", None) else {**rest, key: value}
        elif value in ("none", None):
            found.pop(axis, None)
        else:
            found[axis] = value
    return found


def checked_grid(method: MethodSection, given: Mapping[str, Any], seeds: int) -> dict[str, list[Any]]:
    """The values of each axis of a method's grid, each of which builds the method.

    Raises:
        InvalidInput: an unknown axis (with the nearest match), a value that does not fit, too many settings for so
            many seeds.
    """
    known = arguments(method.name)
    for axis in given:
        if axis.partition(".")[0] not in known:
            raise unknown(f"setting of {method.name}", axis, known)
    grid = {axis: axis_values(f"grid: {axis}", values) for axis, values in given.items()}
    check_size([len(values) for values in grid.values()], seeds)
    for axis, values in grid.items():
        if "none" in values and axis in known and known[axis].default is not None:
            raise InvalidInput(f"grid: {axis}: none is not allowed; give numbers")
    first = {axis: values[0] for axis, values in grid.items()}
    for axis, values in grid.items():
        for value in values:
            build_method(method, first | {axis: value})
    return grid


def which_seeds(given: int | list[int]) -> Sequence[int]:
    """Seeds from how many (0, 1, ...) or which.

    Raises:
        InvalidInput: none, or one that comes twice.
    """
    if isinstance(given, int):
        return range(min(given, sys.maxsize))  # no list: that it is too long is found later, with the grid
    seeds = given
    if not seeds:
        raise InvalidInput(
            "seeds = []: give at least one, such as seeds = [0], or how many, such as seeds = 3"
        )
    if len(set(seeds)) < len(seeds):
        raise InvalidInput(f"seeds = {seeds}: a seed comes twice")
    return seeds


def with_one_weighting(config: Config) -> Config:
    """The configuration with its weighting, if it has one, among the settings of each method that takes it.

    Raises:
        InvalidInput: a method's settings name another.
    """
    if config.weighting is None:
        return config
    methods = []
    for method in config.method:
        own = method.settings.get("weighting", config.weighting)
        check_one_weighting(method.shown, own, config.weighting)
        taken = {"weighting": own} if "weighting" in arguments(method.name) else {}
        methods.append(method.model_copy(update={"settings": method.settings | taken}))
    return config.model_copy(update={"method": methods})


def untuned(config: Config) -> list[str]:
    """One line on the methods whose settings are the defaults, which suit no task in particular; none if none are."""
    named = [m for m in config.method if _tunable(m.settings) == _tunable(resolve_settings(m.name, {}))]
    if not named:
        return []
    swept = next((m.name for m in named if "client_lr" in m.settings), None)
    axis = "client_lr=1e-3:10:9log" if swept else "AXIS=VALUES"
    return [
        f"at default settings, not tuned for {config.task}: {', '.join(m.shown for m in named)}; "
        f"tune before comparing: fedsolve sweep {config.task} {swept or named[0].name} --grid {axis}"
    ]


def _tunable(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings without the weighting: it chooses the objective."""
    return {key: value for key, value in settings.items() if key != "weighting"}
