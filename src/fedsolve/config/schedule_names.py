"""Every schedule that a configuration can name: ours, and optax's under the names of their functions.

{schedule="cosine_decay", init_value=0.3, decay_steps=100} is optax.cosine_decay_schedule(0.3, 100). A table `join` puts
schedules one behind the other, as optax.join_schedules does: each counts rounds from its own boundary.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from fedsolve.core.building import Registry
from fedsolve.core.errors import InvalidInput, check_known, check_range, shown
from fedsolve.core.schedules import (
    Exponential,
    InverseSqrt,
    Reacting,
    ReduceOnPlateau,
    Schedule,
    as_count,
    as_rate,
    rate_at,
)
from fedsolve.core.types import Scalar, module, static
from fedsolve.folders.untrusted import MALFORMED, loads


class OptaxFunction(NamedTuple):
    """A function of optax that makes a schedule: its name there, and what the rate does, in one line."""

    function: str
    summary: str

    def signature(self) -> Mapping[str, inspect.Parameter]:
        """The arguments by name."""
        import optax

        return inspect.signature(getattr(optax, self.function)).parameters


OPTAX: Mapping[str, OptaxFunction] = {
    "constant": OptaxFunction("constant_schedule", "one rate"),
    "cosine_decay": OptaxFunction("cosine_decay_schedule", "half a cosine from init_value down"),
    "cosine_onecycle": OptaxFunction("cosine_onecycle_schedule", "up and down once, by cosines"),
    "exponential_decay": OptaxFunction(
        "exponential_decay", "init_value x decay_rate^(round / transition_steps)"
    ),
    "join": OptaxFunction("join_schedules", "one schedule behind the other, changing at the boundaries"),
    "linear": OptaxFunction("linear_schedule", "a line from init_value to end_value"),
    "linear_onecycle": OptaxFunction("linear_onecycle_schedule", "up and down once, by lines"),
    "piecewise_constant": OptaxFunction("piecewise_constant_schedule", "steps: multiplied at each boundary"),
    "piecewise_interpolate": OptaxFunction(
        "piecewise_interpolate_schedule", "between boundaries by lines or cosines"
    ),
    "polynomial": OptaxFunction("polynomial_schedule", "a polynomial from init_value to end_value"),
    "sgdr": OptaxFunction("sgdr_schedule", "cosines with warm restarts"),
    "warmup_constant": OptaxFunction("warmup_constant_schedule", "a line up to peak_value, then constant"),
    "warmup_cosine_decay": OptaxFunction(
        "warmup_cosine_decay_schedule", "a line up, then half a cosine down"
    ),
    "warmup_exponential_decay": OptaxFunction(
        "warmup_exponential_decay_schedule", "a line up, then exponential decay"
    ),
}
"""The schedules of optax that have a name."""


@module
class OptaxSchedule(Schedule):
    """A schedule of optax by its name, as plain data; part of the program, so another one compiles anew.

    Attributes:
        name: one of `OPTAX`.
        arguments: of optax's function, by name, kept as JSON; the parts of `join` are tables or numbers.

    Raises:
        InvalidInput: an unknown name or argument, a missing one, or a value that is refused.

    >>> round(float(OptaxSchedule("cosine_decay", {"init_value": 0.3, "decay_steps": 100})(50)), 6)
    0.15
    """

    name: str = static()
    arguments: str = static()

    def __init__(self, name: str, arguments: Mapping[str, Any] | str) -> None:
        check_known("schedule of optax", name, OPTAX)
        try:
            given = loads(arguments) if isinstance(arguments, str) else arguments
            text = json.dumps(given, sort_keys=True, allow_nan=False)
        except MALFORMED:
            raise InvalidInput(f"{name}: {shown(arguments)} must be finite numbers by name") from None
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "arguments", text)
        _build_optax(name, given)

    def __call__(self, round: Scalar) -> Scalar:
        """The rate in a round."""
        return _build_optax(self.name, loads(self.arguments))(as_count(round))

    def __repr__(self) -> str:
        given = ", ".join(f"{key}={value!r}" for key, value in loads(self.arguments).items())
        return f"optax.{OPTAX[self.name].function}({given})"

    @property
    def table(self) -> dict[str, Any]:
        """As a configuration writes it."""
        return {SCHEDULES.key: self.name, **loads(self.arguments)}


class _Schedules(Registry[Any]):
    """Ours are built from their classes, those of optax from their functions."""

    def build(self, where: str, table: Any) -> Any:
        """A schedule from a table with its name and its arguments; see `Registry.build`."""
        name = table.get(self.key) if isinstance(table, Mapping) else table
        if not isinstance(name, str) or name not in OPTAX:
            return super().build(where, table)
        given = {} if isinstance(table, str) else {k: v for k, v in table.items() if k != self.key}
        return OptaxSchedule(name, given)


SCHEDULES = _Schedules(
    "schedule",
    {"exponential": Exponential, "inverse_sqrt": InverseSqrt, "reduce_on_plateau": ReduceOnPlateau, **OPTAX},
    key="schedule",
)
"""Every schedule that a configuration can name."""


def _build_optax(name: str, given: Mapping[str, Any]) -> Callable[[Any], Any]:
    """Optax's schedule of checked arguments; `InvalidInput` if they do not fit."""
    import optax

    parameters = OPTAX[name].signature()
    for key in given:
        check_known(f"parameter of {name}", key, parameters)
    for key, parameter in parameters.items():
        if key not in given and parameter.default is inspect.Parameter.empty:
            raise InvalidInput(f"{name} needs {key}, as optax.{OPTAX[name].function} does")
    values = {key: _value(f"{name}: {key}", key, value) for key, value in given.items()}
    if name == "join":  # optax itself leaves out what is too many
        parts, ends = len(values["schedules"]), values["boundaries"]
        if len(ends) != parts - 1 or sorted(set(ends)) != ends:
            raise InvalidInput(
                f"join: boundaries = {shown(ends)} of {parts} schedules must be {parts - 1} rounds in ascending order"
            )
    try:
        made = getattr(optax, OPTAX[name].function)(**values)
        as_rate(name, made)
    except InvalidInput:
        raise
    except Exception as error:  # optax's own checks
        raise InvalidInput(f"{name}: optax.{OPTAX[name].function} refuses it: {error}") from None
    return made


def _value(where: str, key: str, value: Any) -> Any:
    """One argument, checked by its name, as optax takes it."""
    match key:
        case "schedules":
            return [_joined_part(f"{where}[{i}]", part) for i, part in enumerate(_list(where, value))]
        case "boundaries":
            return [_count(where, n) for n in _list(where, value)]
        case "boundaries_and_scales":
            if not isinstance(value, Mapping) or not all(str(n).isdecimal() for n in value):
                raise InvalidInput(f"{where} = {shown(value)} must be factors by round, such as {{50 = 0.1}}")
            return {
                int(n): _number(where, scale) for n, scale in sorted(value.items(), key=lambda p: int(p[0]))
            }
        case "cosine_kwargs":
            tables = _list(where, value)
            if not all(isinstance(table, Mapping) for table in tables):
                raise InvalidInput(
                    f"{where} = {shown(value)} must be tables, each with the arguments of one cosine"
                )
            return [{k: _value(f"{where}: {k}", k, v) for k, v in table.items()} for table in tables]
        case "interpolate_type":
            check_known(where, value, ("linear", "cosine"))
            return value
        case "staircase":
            if not isinstance(value, bool):
                raise InvalidInput(f"{where} = {shown(value)} must be true or false")
            return value
        case "transition_begin" | "warmup_steps":
            return _count(where, value)
        case "transition_steps" | "decay_steps":
            return _count(where, value, least=1)
    return _number(where, value)


def _joined_part(where: str, part: Any) -> Callable[[Any], Any]:
    """One of the schedules that are joined: a table, or a number for a constant rate."""
    if isinstance(part, Mapping):
        schedule = SCHEDULES.build(where, part)
        if isinstance(schedule, Reacting):
            raise InvalidInput(f"{where}: {part[SCHEDULES.key]} follows evaluations, so it cannot be joined")
    else:
        schedule = as_rate(where, _number(where, part))
    return lambda round: rate_at(schedule, round)


def _list(where: str, value: Any) -> list[Any]:
    if not isinstance(value, list | tuple) or not value:
        raise InvalidInput(f"{where} = {shown(value)} must be a list")
    return list(value)


def _count(where: str, value: Any, least: int = 0) -> int:
    check_range(where, value, at_least=least, whole=True)
    return int(value)


def _number(where: str, value: Any) -> float:
    check_range(where, value)
    return value
