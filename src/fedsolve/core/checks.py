"""The checks of numbers that everything shares: each refuses in one line that says what, the value and its range."""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any, TypeGuard

from fedsolve.core.errors import InvalidInput, shown

SEED_BITS = 32  # of a key: seeds 2^32 apart would be one


def is_integer(value: object) -> TypeGuard[int]:
    """Whether `value` is an integer, Python's or NumPy's; True and False are none."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_plain_number(value: object) -> bool:
    """Whether `value` is a real number that can be looked at now: no tracer, no array, no schedule, not True or False.

    >>> is_plain_number(0.1), is_plain_number([0.1]), is_plain_number(True)
    (True, False, False)
    """
    if isinstance(value, bool):
        return False
    return isinstance(value, int | float) or (isinstance(value, Real) and hasattr(value, "dtype"))


def is_one_of(value: object, choices: Collection[str]) -> TypeGuard[str]:
    """Whether a value is one of some texts; no list or array is, which Python and NumPy could not compare."""
    return isinstance(value, str) and value in choices


def check_integer(
    name: str,
    value: Any,
    at_least: int = 0,
    *,
    bits: int | None = None,
    none: str = "",
    words: Sequence[str] = (),
) -> Any:
    """`value` as an int.

    Args:
        name: what the error calls it.
        value: an integer of Python or NumPy.
        at_least: the smallest that is allowed.
        bits: it must be below 2^bits; None for no bound.
        none: what None stands for; None passes where this is given.
        words: what else could have been given, for the error.

    Raises:
        InvalidInput: no integer, a truth value, or one out of its range.

    >>> check_integer("num_clients", 2.5, 1)
    Traceback (most recent call last):
    ...
    fedsolve.InvalidInput: num_clients = 2.5 must be an integer of at least 1
    """
    if value is None and none:
        return None
    number: Any = value
    if not is_integer(number) or number < at_least:
        wanted = [f"an integer of at least {at_least}", *words, *([f"None for {none}"] if none else [])]
        raise InvalidInput(f"{name} = {shown(value)} must be {' or '.join(wanted)}")
    if bits is not None and number >= 2**bits:
        raise InvalidInput(f"{name} = {shown(value)} must be below 2^{bits}")
    return int(number)


def check_seed(value: Any) -> int:
    """A seed as an int; `InvalidInput` unless it is an integer of 32 bits: a key would drop the bits above."""
    return check_integer("seed", value, bits=SEED_BITS)


def check_flag(name: str, value: object) -> None:
    """Raise `InvalidInput` unless `value` is True or False."""
    if not isinstance(value, bool):
        raise InvalidInput(f"{name} = {shown(value)} must be true or false")


def check_number(name: str, value: Any, **bounds: float) -> float:
    """`value` as a float; `InvalidInput` if it is not a number or leaves its bounds (see `check_range`).

    >>> check_number("alpha", "small", above=0)
    Traceback (most recent call last):
    ...
    fedsolve.InvalidInput: alpha = 'small' must be a number
    """
    if not is_plain_number(value):
        raise InvalidInput(f"{name} = {shown(value)} must be a number")
    check_range(name, value, **bounds)  # pyright: ignore[reportArgumentType]
    return float(value)


def check_range(
    name: str,
    value: object,
    *,
    above: float | None = None,
    at_least: float | None = None,
    below: float | None = None,
    at_most: float | None = None,
    optional: bool = False,
    whole: bool = False,
) -> None:
    """Check a hyper-parameter, which may be traced: one finite number within its range.

    Args:
        name: what the error calls it.
        value: a number of Python or NumPy, or an array of shape (); a tracer passes, since it holds no number yet.
        above, at_least, below, at_most: its range.
        optional: whether None passes.
        whole: whether it must be an integer, of any type (3.0 is one).

    Raises:
        InvalidInput: anything else, such as True, a list or a number out of its range.

    >>> check_range("client_lr", -1.0, above=0)
    Traceback (most recent call last):
    ...
    fedsolve.InvalidInput: client_lr = -1.0 must be finite and > 0
    >>> check_range("client_lr", [0.1, 0.2], above=0)
    Traceback (most recent call last):
    ...
    fedsolve.InvalidInput: client_lr = [0.1, 0.2] must be a number
    """
    number = None if value is None and optional else _number(name, value)
    if number is None:
        return
    bounds = [
        (above is not None and not number > above, f"> {above}"),
        (at_least is not None and not number >= at_least, f">= {at_least}"),
        (below is not None and not number < below, f"< {below}"),
        (at_most is not None and not number <= at_most, f"<= {at_most}"),
    ]
    if not math.isfinite(number) or any(bad for bad, _ in bounds):
        given = [b is not None for b in (above, at_least, below, at_most)]
        wanted = "".join(f" and {text}" for (_, text), on in zip(bounds, given, strict=True) if on)
        raise InvalidInput(f"{name} = {shown(value)} must be finite{wanted}")
    if whole and not number.is_integer():
        raise InvalidInput(f"{name} = {shown(value)} must be an integer")


def check_different(where: str, values: Sequence[Any]) -> None:
    """Raise `InvalidInput` if one of an axis's values comes twice: a run would be made, and counted, twice."""
    seen: set[Any] = set()
    for value in values:
        key = value if isinstance(value, Hashable) else repr(value)
        if key in seen:
            raise InvalidInput(f"{where}: the value {shown(value)} comes twice")
        seen.add(key)


def check_path(name: str, value: object) -> Path:
    """`value` as a path; `InvalidInput` unless it is text or a path, without a null character.

    >>> check_path("folder", 3)
    Traceback (most recent call last):
    ...
    fedsolve.InvalidInput: folder = 3 must be a path
    """
    if not isinstance(value, str | Path) or "\0" in str(value):
        raise InvalidInput(f"{name} = {shown(value)} must be a path")
    return Path(value)


def _number(name: str, value: Any) -> float | None:
    """`value` as a float, None if it is traced and cannot be looked at."""
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        import numpy as np  # not before it is needed: this module is loaded by every command

        try:
            array = np.asarray(value)
        except TypeError:  # a tracer
            return None
        if array.shape != ():
            raise InvalidInput(f"{name} has shape {array.shape}: it must be one number")
        value = array.item()
    if not is_plain_number(value):
        raise InvalidInput(f"{name} = {shown(value)} must be a number")
    try:
        return float(value)
    except OverflowError:  # an integer of hundreds of digits
        return math.inf


def check_same(kind: str, given: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Raise `InvalidInput`, naming the first difference, unless two sets of named shapes are the same.

    >>> check_same("parameter", {"w": (3,)}, {"w": (2,)})
    Traceback (most recent call last):
    ...
    fedsolve.InvalidInput: parameter 'w' has shape (3,), the model here has (2,): build both from the same code
    """
    for name in [*wanted, *given]:
        theirs = f"has shape {tuple(given[name])}" if name in given else "is missing"
        ours = f"has {tuple(wanted[name])}" if name in wanted else "has none"
        if name not in given or name not in wanted or tuple(given[name]) != tuple(wanted[name]):
            raise InvalidInput(
                f"{kind} '{name}' {theirs}, the model here {ours}: build both from the same code"
            )
