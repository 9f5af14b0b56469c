"""A method from its name and its settings, and back: the plain data that build it."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from functools import cache
from typing import Any, get_origin

import jax
import numpy as np

from fedsolve.config.catalogue import Entry, current_name, entry, split_name, wrapper_entry
from fedsolve.config.references import construct, is_reference
from fedsolve.config.schedule_names import OptaxSchedule
from fedsolve.config.signatures import Argument, alternatives, arguments_of, checked, choices
from fedsolve.core.algorithm import Algorithm, name_of
from fedsolve.core.building import Registry, record_of
from fedsolve.core.errors import FedsolveError, InvalidInput, unknown
from fedsolve.core.schedules import Schedule
from fedsolve.geometry.blocks import Blocks
from fedsolve.methods.trained import Support, support

# Plain data of a configuration and the objects that it stands for: penalties, sets, reductions, rates by round.


def from_plain(where: str, value: Any, hint: Any) -> Any:
    """The object that plain data stands for, by the annotation of the argument; any other value as it is.

    >>> from fedsolve.geometry.mirrors import Mirror
    >>> from_plain("mirror", {"name": "PNorm", "p": 1.5}, Mirror)
    PNorm(p=1.5)
    """
    kinds = alternatives(hint) if isinstance(value, str | int | float | list | Mapping) else ()
    if not kinds:
        return value
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
    from fedsolve.geometry import GEOMETRIES, MIRRORS
    from fedsolve.geometry.blocks import ArrayFunction
    from fedsolve.geometry.mirrors import Mirror
    from fedsolve.methods.compression import COMPRESSORS, Compressor
    from fedsolve.methods.frank_wolfe import STEPS, FrankWolfeSteps
    from fedsolve.methods.robust import REDUCTIONS
    from fedsolve.methods.robust.vectors import Reduction
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


def arguments(name: str) -> dict[str, Argument]:
    """The arguments of a method by name, read from signatures; client options and its wrappers' own included."""
    wrapper, inner = split_name(name)
    if wrapper:
        return arguments(inner) | wrapper_arguments(wrapper_entry(wrapper))
    return dict(arguments_of(entry(inner).build))


def wrapper_arguments(wrapper: Entry) -> dict[str, Argument]:
    # without the method that it wraps, and what it fills in itself
    return {k: v for k, v in arguments_of(wrapper.wrap).items() if k not in ("inner", "renyi", "losses")}


def build(name: str, settings: Mapping[str, Any] | None = None) -> Algorithm:
    """Build a method by name, or your own as `module:Class`; `SCAFFOLD+X` and `mine:Wrapper+X` wrap any method X.

    Args:
        name: a name of the catalogue (`fedsolve list algorithms`), also a former one, or `module:Class`.
        settings: the arguments by name. An object (a penalty, a set, a reduction, a schedule) may also be given as a
            configuration file writes it: `{"name": "L1", "weight": 0.1}`.

    Returns:
        The method with those settings and defaults for the others, wrappers outermost.

    Raises:
        InvalidInput: an unknown name or setting (the nearest match is named), or a bad value.

    >>> build("SCAFFOLD+FedDuAdam", {"client_lr": 0.1}).name
    'SCAFFOLD+FedDuAdam'
    """
    if settings is not None and not isinstance(settings, Mapping):
        raise InvalidInput(f"settings = {settings!r} of {name} must be values by name")
    # one pass: names, then what has no default, then each value by its annotation
    known, given = arguments(name), dict(settings or {})
    for key in given:
        if key not in known:
            raise unknown(f"setting of {name}", key, known)
    for key, argument in known.items():
        if argument.is_needed and key not in given:
            raise InvalidInput(_missing_argument(name, key))
    own = is_reference(name)
    return _build(name, {k: _argument(f"{name}: {k}", v, known[k].hint, own) for k, v in given.items()})


def _argument(where: str, value: Any, hint: Any, own: bool) -> Any:
    # objects, arrays and traced numbers pass: their class checks them; only plain data are looked at here
    if not isinstance(value, bool | int | float | str | list | Mapping):
        return value
    built = from_plain(where, value, hint)
    if built is not value:
        return built
    words, kinds = choices(hint), alternatives(hint)
    if words:
        if value not in words:
            raise InvalidInput(f"{where} = {value!r} must be one of {', '.join(map(str, words))}")
    elif own or bool in kinds or str in kinds:  # of a user's own method the annotation is all that is known
        return checked(where, value, Any if hint is None else hint)
    elif not isinstance(value, int | float) or isinstance(value, bool):
        if any(get_origin(kind) is Mapping for kind in kinds):
            return value  # bounds by name, which their method checks
        rate = Schedule in kinds
        more = ' or a rate by round such as {schedule = "inverse_sqrt", initial = 0.1}' if rate else ""
        raise InvalidInput(f"{where} = {value!r} must be a number{more}")
    return value


def _missing_argument(name: str, key: str) -> str:
    if key == "inner":
        return f"{name} wraps a method: write {name}+FedAvg, or another method in its place"
    example = example_of(name)
    if key not in example:
        return f"{name} needs {key}, which has no default: give --set {key}=..."
    value = example[key]
    if not isinstance(value, Mapping):
        return f"{name} needs {key}, such as {value!r}"
    built = f"{value['name']}({', '.join(repr(v) for k, v in value.items() if k != 'name')})"
    return f"{name} needs {key}, such as {built}; in a configuration {inline_toml(value)}"


def _build(name: str, settings: dict[str, Any]) -> Algorithm:
    wrapper, inner = split_name(name)
    if wrapper:
        around = wrapper_entry(wrapper)
        # a setting that both take, such as a clip norm, is the wrapper's: the inner method has its default
        own = {key: settings.pop(key) for key in wrapper_arguments(around) if key in settings}
        built = _build(inner, settings)
        if is_reference(wrapper):
            return construct("algorithm", wrapper, Algorithm, around.wrap, {"inner": built, **own})
        return around.wrap(built, **own)
    if is_reference(inner):
        return construct("algorithm", inner, Algorithm, entry(inner).build, settings)
    try:
        return entry(inner).build(**settings)
    except TypeError as error:
        raise InvalidInput(f"{inner}: {error}") from None


def example_of(name: str) -> dict[str, Any]:
    """Values of what a method asks for, as a configuration writes them.

    >>> example_of("SCAFFOLD+FedFW")
    {'constraint': {'name': 'L1Ball', 'radius': 10.0}}
    """
    wrapper, inner = split_name(name)
    if wrapper:
        return {**example_of(inner), **wrapper_entry(wrapper).example}
    return dict(entry(inner).example)


def loop_support(name: str) -> Support:
    """Whether a method runs with clients that train by a loop of their own (`fs.flower.TrainedClient`).

    >>> loop_support("FedNova").needs
    ('steps',)
    """
    try:
        return support(build(name, example_of(name)))
    except InvalidInput as error:  # a package that is not installed
        return Support(str(error))


def citations(name: str) -> tuple[str, ...]:
    wrapper, inner = split_name(name)
    if wrapper:
        around = () if current_name(name) == wrapper else citations(inner)
        return (*wrapper_entry(wrapper).papers, *around)
    return () if is_reference(inner) else entry(inner).papers


# A method as a configuration writes it: the name and the settings, plain data, that build it again.


def recipe_of(algorithm: Algorithm) -> tuple[str, dict[str, Any]] | None:
    """The name and the settings, plain data, of which `build` makes an equal method; None if none do.

    They are those that the method's builder recorded. What they build must be equal in every part: no name is better
    than a wrong one.

    >>> import fedsolve as fs
    >>> recipe_of(fs.FedAdam(0.05, tau=1e-4))
    ('FedAdam', {'client_lr': 0.05, 'tau': 0.0001})
    """
    try:
        name, settings = _recorded_settings(algorithm)
        return (name, settings) if _is_equal(build(name, settings), algorithm) else None
    except (FedsolveError, TypeError, ValueError):  # no plain data, or no builder takes them together
        return None


def call_text(name: str, settings: Mapping[str, Any]) -> str:
    """A method as a person writes it, from its name and settings as plain data.

    >>> call_text("FedAvg", {"client_lr": 0.1, "server_lr": {"schedule": "inverse_sqrt", "initial": 0.2}})
    'FedAvg(client_lr=0.1, server_lr=inverse_sqrt(initial=0.2))'
    """
    return f"{name}({', '.join(f'{key}={_text(value)}' for key, value in settings.items())})"


def changed_settings(name: str, settings: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """A method of the catalogue as `call_text` writes it, and those of some settings that are not its own.

    Settings with their default are left out. Of a user's own method nothing is known: all settings come back.

    >>> changed_settings("FedAvg", {"client_lr": 0.3, "server_lr": 1.0, "rounds": 9})
    ('FedAvg(client_lr=0.3)', {'rounds': 9})
    """
    wrappers = name.split("+")
    if any(is_reference(part) for part in wrappers):
        return name, dict(settings)
    try:
        known = arguments(name)
    except FedsolveError:  # a label, or a method of another version
        return name, dict(settings)
    own = {key: value for key, value in settings.items() if key in known}
    changed = {key: value for key, value in own.items() if _text(value) != _text(known[key].default)}
    return call_text(name, changed), {key: value for key, value in settings.items() if key not in known}


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        parts = dict(value)
        name = parts.pop("name", parts.pop("schedule", "dict"))
        return call_text(str(name), parts)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_text, value))}]"
    if isinstance(value, float):
        return f"{value:.10g}"
    return f"{value:g}" if isinstance(value, np.number) else str(value)


class Form:
    """An object as data of some kind: `of` tells the parts of an object apart, a subclass says what each becomes."""

    # So are written a configuration, an order to clients, the identity of a run in words, and its digests.

    def of(self, value: Any) -> Any:
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return self.object(value)
        if isinstance(value, np.ndarray | jax.Array):
            return self.array(value)
        if isinstance(value, np.generic):
            return self.number(value)
        if value is None or isinstance(value, bool | int | float | str):
            return self.plain(value)
        if isinstance(value, tuple | list):
            return self.sequence(value)
        return self.table(value) if isinstance(value, dict) else self.other(value)

    def object(self, value: Any) -> Any:
        return self.other(value)

    def array(self, value: Any) -> Any:
        return self.other(value)

    def number(self, value: Any) -> Any:
        return self.array(value)

    def plain(self, value: Any) -> Any:
        return value

    def sequence(self, value: Any) -> Any:
        return [self.of(part) for part in value]

    def table(self, value: Any) -> Any:
        return {str(key): self.of(part) for key, part in value.items()}

    def other(self, value: Any) -> Any:
        raise ValueError(f"no plain data stand for {type(value).__name__}")


class _Plain(Form):
    # a setting as `from_plain` reads it

    def object(self, value: Any) -> Any:
        if isinstance(value, Blocks):
            tables = [
                self.of(part.psi) | ({} if part.together else {"on": part.pattern}) for part in value.parts
            ]
            return tables[0] if len(tables) == 1 else tables
        if isinstance(value, OptaxSchedule):
            return value.table
        for registry in registries().values():
            if (name := registry.name_of(value)) is not None:
                given = [(f.name, getattr(value, f.name)) for f in dataclasses.fields(value) if f.init]
                return {registry.key: name, **{k: self.of(part) for k, part in given if part is not None}}
        return self.other(value)

    def array(self, value: Any) -> Any:
        return self.of(np.asarray(value).item()) if np.ndim(value) == 0 else self.other(value)

    def plain(self, value: Any) -> Any:
        return self.other(value) if value is None else value

    def other(self, value: Any) -> Any:
        return self.table(value) if isinstance(value, Mapping) else super().other(value)


to_plain = _Plain().of
"""A setting as `from_plain` reads it; `ValueError` where no plain data stand for it."""


def _recorded_settings(algorithm: Algorithm) -> tuple[str, dict[str, Any]]:
    # the name, wrappers first (`Robust+FedAdam`), and the settings of all parts
    made = record_of(algorithm)
    if made is None:
        raise ValueError(f"nothing recorded how {name_of(algorithm)} was made")
    options = dict(made.options)
    inner, name, settings = options.pop("inner", None), made.name, {}
    if inner is not None:
        inside, settings = _recorded_settings(inner)
        name = name if split_name(name) == (name, inside) else f"{name}+{inside}"
    known = arguments(name)
    changed = {key: value for key, value in options.items() if not _is_default(value, known[key].default)}
    return name, {key: to_plain(value) for key, value in changed.items()} | settings


def _is_default(value: Any, default: Any) -> bool:
    if value is None or default is None:
        return value is default
    try:
        return repr(to_plain(value)) == repr(to_plain(default))
    except ValueError:
        return False


def _is_equal(one: Algorithm, other: Algorithm) -> bool:
    (leaves, structure), (others, other_structure) = jax.tree.flatten(one), jax.tree.flatten(other)
    return structure == other_structure and all(map(np.array_equal, leaves, others))
