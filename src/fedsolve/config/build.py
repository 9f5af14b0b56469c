"""A method from its name and its settings: what it takes, with an example, and what it comes from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from fedsolve.config.catalogue import Entry, current_name, entry, split_name, wrapper_entry
from fedsolve.config.config_objects import from_plain, inline_toml
from fedsolve.config.references import construct, is_reference
from fedsolve.config.signature_types import Argument, arguments_of
from fedsolve.core.errors import InvalidInput, unknown

if TYPE_CHECKING:
    from fedsolve.core.algorithm import Algorithm


def arguments(name: str) -> dict[str, Argument]:
    """The arguments of a method by name, read from signatures; client options and its wrappers' own included.

    Raises:
        InvalidInput: an unknown name.
    """
    wrapper, inner = split_name(name)
    if wrapper:
        return arguments(inner) | own_arguments(wrapper_entry(wrapper))
    return dict(arguments_of(entry(inner).build))


def own_arguments(wrapper: Entry) -> dict[str, Argument]:
    """A wrapper's arguments beside the method that it wraps and what it fills in itself."""
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
    known, given = arguments(name), dict(settings or {})
    for key in given:
        if key not in known:
            raise unknown(f"setting of {name}", key, known)
    for key, argument in known.items():
        if argument.is_needed and key not in given:
            raise InvalidInput(_lacks(name, key))
    return _build(name, {k: from_plain(f"{name}: {k}", v, known[k].hint) for k, v in given.items()})


def _lacks(name: str, key: str) -> str:
    """What to say of an argument without a default that was not given."""
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
        own = {key: settings.pop(key) for key in own_arguments(around) if key in settings}
        built = _build(inner, settings)
        if is_reference(wrapper):
            return _construct(wrapper, around.wrap, {"inner": built, **own})
        return around.wrap(built, **own)
    if is_reference(inner):
        return _construct(inner, entry(inner).build, settings)
    try:
        return entry(inner).build(**settings)
    except TypeError as error:
        raise InvalidInput(f"{inner}: {error}") from None


def _construct(name: str, builder: Callable[..., Any], settings: Mapping[str, Any]) -> Algorithm:
    """A user's own method from its class or function."""
    from fedsolve.core.algorithm import Algorithm

    return construct("algorithm", name, Algorithm, builder, settings)


def example_of(name: str) -> dict[str, Any]:
    """Values of what a method asks for, as a configuration writes them.

    >>> example_of("SCAFFOLD+FedFW")
    {'constraint': {'name': 'L1Ball', 'radius': 10.0}}
    """
    wrapper, inner = split_name(name)
    if wrapper:
        return {**example_of(inner), **wrapper_entry(wrapper).example}
    return dict(entry(inner).example)


def citations(name: str) -> tuple[str, ...]:
    """Citation keys of the papers behind a name."""
    wrapper, inner = split_name(name)
    if wrapper:
        around = () if current_name(name) == wrapper else citations(inner)
        return (*wrapper_entry(wrapper).papers, *around)
    return () if is_reference(inner) else entry(inner).papers
