"""Every error fedsolve raises on purpose, and shared checks: one line says what, where, the value and the remedy.

A value is one of an argument. Examples have field, client and row named, never what they hold: a line may be logged, or
sent. A `ConfidentialError` alone shows more, on the owner's own terminal.

The command line turns each into its exit code; any other exception is a bug and keeps its traceback.
"""

from __future__ import annotations

import difflib
import importlib.util
import math
import re
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any, TypeGuard

_LONGEST = 60
_SHORT_LIST, _LIKE = (
    12,
    0.75,
)  # known names that are always listed, and how like a near match is that stands alone
_OF_ARRAYS = ("__array__", "__arrow_c_stream__", "__dataframe__", "toarray")
"""What arrays and tables of all packages have, one or another."""


class FedsolveError(Exception):
    """Base class of all errors that a user can correct; `exit_code` is the command line's exit code.

    Attributes:
        about_request: whether it follows from what a client is asked and from no data of its own.
    """

    exit_code = 2
    about_request = False


class InvalidInput(FedsolveError, ValueError):
    """An argument, a configuration, a file or data cannot be used; nothing has been changed."""


class ConfidentialError(InvalidInput):
    """An `InvalidInput` whose whole text is for the owner of the data alone.

    It shows a label or category that is none of those known, or quotes an exception of the owner's code, whose words
    may quote examples.

    Attributes:
        without_value: what others may read.
    """

    def __init__(self, line: str, without_value: str) -> None:
        super().__init__(line)
        shows = " (its own log shows it)"
        self.without_value = without_value.removesuffix(shows) + shows  # of one that says another, once


class Diverged(FedsolveError, FloatingPointError):
    """Every client of a round returned a non-finite update; the last valid checkpoint is kept.

    Attributes:
        history: the record of the run (a `History`) up to that round, which ends it with NaN.
    """

    exit_code = 3

    def __init__(self, message: str, history: Any = None) -> None:
        super().__init__(message)
        self.history = history


class Unavailable(FedsolveError):
    """Too few clients of a federation were connected or gave valid answers in time; the last checkpoint is kept."""

    exit_code = 4


class Interrupted(FedsolveError):
    """The run was stopped by the user after its state was saved."""

    exit_code = 130


def unknown(kind: str, name: str, known: Iterable[str]) -> InvalidInput:
    """An error for a name that is not in `known`, with its nearest match; a long list only where none is near.

    >>> str(unknown("algorithm", "FedAdm", ["FedAvg", "FedAdam"]))
    "unknown algorithm 'FedAdm': did you mean 'FedAdam'? Known: FedAdam, FedAvg"
    """
    names, text = sorted(known), f"unknown {kind} '{name}':"
    near = nearest(str(name), names)
    text += f" did you mean '{near}'?" if near else ""
    likeness = difflib.SequenceMatcher(None, str(name).lower(), near.lower()).ratio() if near else 0
    if len(names) > _SHORT_LIST and likeness > _LIKE:
        return InvalidInput(text)
    return InvalidInput(f"{text} Known: {', '.join(names) or 'none'}")


def check_known(kind: str, name: object, known: Collection[str]) -> None:
    """Raise `unknown` unless `name` is one of `known`; no list or array is, which Python could not compare."""
    if not isinstance(name, str) or name not in known:
        raise unknown(kind, str(name), known)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is most like `name`, or else the shortest that has it as a word; None if there is none.

    >>> nearest("cleint_lr", ["client_lr", "server_lr"]), nearest("learning_rate", ["server_lr", "clip_norm"])
    ('client_lr', 'server_lr')
    """
    folded, asked = {n.lower(): n for n in known}, name.lower()
    if asked not in folded and not any("learning_rate" in n for n in folded):
        asked = asked.replace("learning_rate", "lr")
    near = difflib.get_close_matches(asked, folded, n=1, cutoff=0.5)
    near = near or sorted((n for n in folded if asked in n.split("_")), key=lambda n: (len(n), n))
    return folded[near[0]] if near else None


def trim_common_prefix(*texts: str) -> tuple[str, ...]:
    """Texts for an error's one line: as they are or, where one is long, cut to begin where they are no longer equal.

    >>> trim_common_prefix("SGD(lr=0.1, momentum=None, weight_decay=None), ServerSGD(lr=1.0)", "SGD(lr=0.2)")
    ('...lr=0.1, momentum=None, weight_decay=None), ServerSGD(lr=1.0)', '...lr=0.2)')
    """
    if max(map(len, texts)) <= _LONGEST:
        return texts
    same = next((i for i, letters in enumerate(zip(*texts, strict=False)) if len(set(letters)) > 1), 0)
    start = max(texts[0].rfind(" ", 0, same), texts[0].rfind("(", 0, same)) + 1
    shortened = [text[start : start + _LONGEST] for text in texts]
    before = "..." if start else ""
    return tuple(
        before + k + ("..." if start + len(k) < len(t) else "") for k, t in zip(shortened, texts, strict=True)
    )


def shown(value: object) -> str:
    """The value of an argument for an error's one line: its representation, cut where it is long.

    Of arrays and tables, which may be examples, type and shape are shown, also in containers. What can be nothing else
    than examples is for `of_type`.

    >>> shown([0] * 1000)
    '[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0...'
    """
    try:
        text = repr(_without_entries(value))
        text = re.sub(r" at 0x[0-9a-f]+>", ">", " ".join(text.split()))  # where it lies helps nobody
    except Exception:  # what it is does not matter: it is being refused (an integer too long to print, too)
        text = of_type(value)
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "..."


def shown_label(value: object) -> str:
    """`shown` of a label for a `ConfidentialError`; what is not whole is a measurement, of which the type is told.

    >>> shown_label(3), shown_label("dead"), shown_label(0.25)
    ('3', "'dead'", 'a float')
    """
    return of_type(value) if isinstance(value, float) and not value.is_integer() else shown(value)


class _Array:
    # what is shown in the place of an array or a table
    def __init__(self, value: Any) -> None:
        self._value = value

    def __repr__(self) -> str:
        shape = getattr(self._value, "shape", None)
        return (
            f"<{type(self._value).__name__}{f' of shape {tuple(shape)}' if isinstance(shape, tuple) else ''}>"
        )


def _without_entries(value: Any) -> Any:
    # a value with its arrays and tables, also those in plain containers, replaced by what is shown of them
    if type(value) is dict:
        return {_without_entries(key): _without_entries(value[key]) for key in list(value)[:_LONGEST]}
    if type(value) in (list, tuple, set, frozenset):
        return type(value)(_without_entries(entry) for entry in list(value)[:_LONGEST])
    is_array = not isinstance(value, type) and any(hasattr(value, name) for name in _OF_ARRAYS)
    return _Array(value) if is_array and getattr(value, "shape", None) != () else value


def of_type(value: object) -> str:
    """What a value is: the name of its type, with its article.

    >>> of_type(1), of_type(1.0)
    ('an int', 'a float')
    """
    return with_article(type(value).__name__)


def with_article(name: str) -> str:
    """A name with "a" or "an" before it, by its first letter."""
    return f"an {name}" if name[:1].lower() in tuple("aeiou") else f"a {name}"


def require(package: str, what: str, extra: str, name: str = "") -> None:
    """Raise `InvalidInput` unless a package is installed: "plots need matplotlib, which is not installed: ..."."""
    if importlib.util.find_spec(package) is None:
        raise InvalidInput(
            f"{what} {name or package}, which is not installed: pip install 'fedsolve[{extra}]'"
        )


for _error in (FedsolveError, InvalidInput, Diverged, Interrupted):
    _error.__module__ = "fedsolve"  # as tracebacks show it, and as a user imports it

# The checks of numbers that everything shares: each refuses in one line that says what, the value and its range.

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
    """`value` as an int; `InvalidInput` if it is no integer of Python or NumPy, a truth value, or out of its range.

    It must be below 2^bits. Where `none` says what None stands for, None passes; `words` says what else could have
    been given.

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


def check_flag(name: str, value: object) -> Any:
    if not isinstance(value, bool):
        raise InvalidInput(f"{name} = {shown(value)} must be true or false")
    return value


def check_choice(name: str, value: object, choices: Sequence[str | None]) -> Any:
    """`value`; `InvalidInput` unless it is one of some texts, or None where that is one of the choices.

    >>> check_choice("f", "middle", ("start", "end", "mean"))
    Traceback (most recent call last):
    ...
    fedsolve.InvalidInput: f = 'middle' must be 'start', 'end' or 'mean'
    """
    if not (isinstance(value, str | None) and value in choices):
        words = ", ".join(map(repr, choices[:-1]))
        raise InvalidInput(f"{name} = {shown(value)} must be {words} or {choices[-1]!r}")
    return value


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
    """Check a hyper-parameter: one finite number within its range, else `InvalidInput`; a tracer has none, and passes.

    `optional`: None passes; `whole`: it must be an integer, of any type (3.0 is one).

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
    # `value` as a float, None if it is traced and cannot be looked at
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
    """Raise `InvalidInput`, naming the first difference, unless two sets of arrays or shapes have the same shapes.

    >>> check_same("parameter", {"w": (3,)}, {"w": (2,)})
    Traceback (most recent call last):
    ...
    fedsolve.InvalidInput: parameter 'w' has shape (3,), the model here has (2,): build both from the same code
    """
    given, wanted = ({n: tuple(getattr(x, "shape", x)) for n, x in one.items()} for one in (given, wanted))
    for name in [*wanted, *given]:
        theirs = f"has shape {given[name]}" if name in given else "is missing"
        ours = f"has {wanted[name]}" if name in wanted else "has none"
        if given.get(name) != wanted.get(name):
            raise InvalidInput(
                f"{kind} '{name}' {theirs}, the model here {ours}: build both from the same code"
            )
