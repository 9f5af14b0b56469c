"""Which messages are sums, by their types, and how each of their numbers is sent as a whole number."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any, NamedTuple

import jax

from fedsolve.core import introspect, trees
from fedsolve.core.algorithm import Algorithm, name_of
from fedsolve.core.errors import InvalidInput
from fedsolve.core.types import is_module, replace
from fedsolve.methods.compression.compressor import Encoded
from fedsolve.methods.secure.fixed_point import Number, scale_exponent, single

SCALAR_BOUND = 2.0**20
"""Largest size of a scalar that no bound is given for."""
_UPDATE, _SQUARED_NORM = "delta", "squared_norm"


def ways(message: Any, inherited: str = "mean") -> Any:
    """How each leaf of a message is reduced in sums, in its structure: a maximum that is only logged by a mean."""
    if not is_module(message):
        return jax.tree.map(lambda _: inherited, message)
    parts = {}
    for f in fields(message):
        if not f.metadata.get("static"):
            by = f.metadata.get("reduce", inherited)
            by = "average" if by == "max" and f.metadata.get("logged") else by
            parts[f.name] = ways(getattr(message, f.name), by)
    return replace(message, **parts)


def why_not_a_sum(algorithm: Algorithm, as_sent: bool, message: Any) -> str:
    """Why a server needs more than sums of messages, '' if sums will do.

    Args:
        algorithm: the method.
        as_sent: whether messages are reduced as they are sent.
        message: one, or its shapes.
    """
    if algorithm.traits.reduction is not None:
        return "a robust reduction looks at each message"
    if not as_sent:
        return "the server changes each message before it adds them up"
    largest = [
        name for name, by in zip(_names(message), jax.tree.leaves(ways(message)), strict=True) if by == "max"
    ]
    return f"the maximum of {largest[0]} is not a sum" if largest else ""


def check_inner(algorithm: Algorithm) -> None:
    """Raise `InvalidInput` if a method asks for more than a sum over one cohort, by its traits."""
    traits = algorithm.traits
    if traits.reduction is not None:
        reason = f"{why_not_a_sum(algorithm, True, ())}, and a sum hides them: leave the reduction out"
    elif traits.buffer:
        reason = (
            "the clients of a buffer begin at different times, and a sum has one cohort: take a method with "
            "synchronous rounds"
        )
    elif traits.privacy == "central":
        reason = (
            "rounding to whole numbers may exceed the norm that the server's noise is made for: give DP "
            "at='distributed'"
        )
    else:
        return
    raise InvalidInput(f"Secure cannot wrap {name_of(algorithm)}: {reason}")


def check_sum(algorithm: Algorithm, broadcast: Any, message: Any, client: Any) -> None:
    """Raise `InvalidInput` unless the server of a method needs sums of messages alone."""
    as_sent = introspect.is_forwarded(algorithm, broadcast, message, client)
    reason = why_not_a_sum(algorithm, as_sent, message)
    if not reason:
        return
    name, has_codes = name_of(algorithm), any(map(_is_code, jax.tree.leaves(message, is_leaf=_is_code)))
    remedy = next((words for of, words in _REMEDIES.items() if of in name), "take another method")
    if has_codes:
        remedy = "take a linear compressor, such as fs.compression.RandomK"
    path = _names(message)[0].split(".")
    last = next(i for i, part in enumerate(path) if part != "inner")
    field = "" if as_sent else f"`{'.'.join(path[: last + 1])}` is not a sum, since "
    raise InvalidInput(f"Secure cannot wrap {name}: {field}{reason}; {remedy}")


_REMEDIES = {"FedFW": "set sends='step'", "FedLiLS": "set server='one'"}


class Limits(NamedTuple):
    """What numbers of messages are sent within: bound and bits of arrays, bounds of other fields, clients at most."""

    bound: float
    bits: int
    bounds: Mapping[str, float]
    clients: int


def layout(
    structure: Any, shapes: list[tuple[int, ...] | None], entries: int, limits: Limits
) -> list[Number]:
    """How each leaf of a message is sent.

    Args:
        structure: of the message.
        shapes: of its leaves, None of those that are sent otherwise.
        entries: of the model.
        limits: of numbers and clients.

    Raises:
        InvalidInput: a bound for a field that the message does not have.
    """
    numbered = structure.unflatten(range(structure.num_leaves))
    names, bounds, found = _names(numbered), limits.bounds, []
    by_name = [{name, *name.split(".")} for name in names]
    if unused := sorted(set(bounds) - set().union(*by_name)):
        raise InvalidInput(f"bounds has {unused[0]!r}: the message has {', '.join(names)}")
    scalars, gains = set(_single_leaves(numbered)), _gains(numbered)
    for i, (name, by) in enumerate(zip(names, jax.tree.leaves(ways(numbered)), strict=True)):
        is_scalar = i in scalars and shapes[i] == () and _UPDATE not in by_name[i]
        usual = SCALAR_BOUND if is_scalar else gains.get(i, 1.0) * limits.bound
        if name.endswith(_SQUARED_NORM):
            usual = entries * limits.bound**2
        own = single(
            next((bounds[part] for part in (name, *reversed(name.split("."))) if part in bounds), usual)
        )
        bits = 64 if is_scalar else limits.bits
        found.append(Number(name, by, bits, own, scale_exponent(bits, limits.clients, own)))
    return found


def _single_leaves(message: Any) -> Iterator[int]:
    """The leaves that are whole fields of a module, of a message of their numbers."""
    if is_module(message):
        for f in fields(message):
            value = getattr(message, f.name)
            if type(value) is int and not f.metadata.get("static"):
                yield value
            yield from _single_leaves(value)
    elif isinstance(message, tuple | list):
        for part in message:
            yield from _single_leaves(part)


def _gains(message: Any) -> dict[int, float]:
    """1 + omega, by which entries of linear codes exceed those of the array; of a message of the leaves' numbers."""
    codes = [x for x in jax.tree.leaves(message, is_leaf=_is_code) if _is_code(x) and x.compressor.is_linear]
    return {i: 1 + x.compressor.error(math.prod(x.shape)) for x in codes for i in jax.tree.leaves(x)}


def _is_code(x: Any) -> bool:
    return isinstance(x, Encoded)


def update_leaves(structure: Any) -> list[int]:
    """The numbers of the leaves of the client update, the field `delta`."""
    names = _names(structure.unflatten(range(structure.num_leaves)))
    return [i for i, name in enumerate(names) if _UPDATE in name.split(".")]


def _names(message: Any) -> list[str]:
    return trees.named_leaves(message)[0]
