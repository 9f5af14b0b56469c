"""Options in the place of `**options` in a signature and in a docstring, and whether a call fits a signature."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass
from typing import Any, TypeGuard

from fedsolve.core.errors import InvalidInput, check_integer, check_number, shown


@dataclass(frozen=True)
class About:
    """What an option means and takes.

    Attributes:
        text: its meaning.
        otherwise: what is done where it is not given, if its default does not say so.
        least: the least whole number that it takes; None if it takes none.
        bits: whole numbers are below 2^bits.
        words: texts that it takes.
        share: whether it takes a number in (0, 1].
        positive: whether it takes a number above 0.
        axes: names of the whole numbers from 1 on of a table that it takes, all of them.
        objects: whether it takes an object beside its words, which who uses it knows.
        instead_of: the option in whose place it is given: one of the two at most.
        swept: whether a sweep takes it too.
        written: (name, meaning) of what stands for it in a configuration and on the command line, which hold text.
        written_default: its default there, if it has one only there.
    """

    text: str
    otherwise: str = ""
    least: int | None = None
    bits: int = 31
    words: tuple[str, ...] = ()
    share: bool = False
    positive: bool = False
    axes: tuple[str, ...] = ()
    objects: bool = False
    instead_of: str = ""
    swept: bool = True
    written: tuple[str, About] | None = None
    written_default: Any = None

    def check(self, name: str, value: Any) -> Any:
        """The value, whole numbers as Python's own.

        Raises:
            InvalidInput: the option does not take it.
        """
        if self.positive:
            return check_number(name, value, above=0)
        if self.axes:
            if not isinstance(value, Mapping) or set(value) != set(self.axes):
                raise InvalidInput(f"{name} = {shown(value)} must be a table of {' and '.join(self.axes)}")
            return {axis: check_integer(f"{name}.{axis}", value[axis], 1) for axis in self.axes}
        if self.least is None and not self.words:
            return value  # an object, which who uses it knows
        if isinstance(value, str) and value in self.words:
            return value
        if self.objects and not isinstance(value, str):
            return value
        words = [repr(word) for word in self.words]
        if self.least is None:
            raise InvalidInput(f"{name} = {shown(value)} must be {' or '.join(words)}")
        return check_integer(name, value, self.least, bits=self.bits, words=words)


def about_of(option: Field[Any]) -> About:
    """What is said of an option, a field of `fedsolve.engine.options.RunOptions`."""
    return option.metadata["about"]


def with_options(function: Callable[..., Any], options: list[Field[Any]]) -> inspect.Signature:
    """The function's signature with the options first among the keywords."""
    signature, kinds = inspect.signature(function), inspect.Parameter
    kept = [p for p in signature.parameters.values() if p.kind is not kinds.VAR_KEYWORD]
    keywords = [
        kinds(
            f.name,
            kinds.KEYWORD_ONLY,
            default=kinds.empty if f.default is MISSING else f.default,
            annotation=f.type,
        )
        for f in options
    ]
    first = sum(p.kind is not kinds.KEYWORD_ONLY for p in kept)
    return signature.replace(parameters=[*kept[:first], *keywords, *kept[first:]])


def with_lines(text: str, options: list[Field[Any]], words: Callable[[Field[Any]], str] | None = None) -> str:
    """The docstring with a line for each option: what `words` gives of it, or the words of its `About`."""
    lines = []
    for line in text.splitlines():
        if not line.lstrip().startswith("**options"):
            lines.append(line)
            continue
        indent = line[: len(line) - len(line.lstrip())]
        lines += [f"{indent}{f.name}: {(words or _in_words)(f)}" for f in options]
    return "\n".join(lines)


def _in_words(option: Field[Any]) -> str:
    about = about_of(option)
    default = about.otherwise or ("" if option.default in (MISSING, None) else repr(option.default))
    least = "above 0" if about.positive else f"at least {about.least}" if about.least is not None else ""
    return about.text + (f"; {least}" if least else "") + (f"; default {default}." if default else ".")


def takes(function: Any, names: Sequence[str]) -> TypeGuard[Callable[..., Any]]:
    """Whether something can be called with so many arguments, by position; a built-in that does not tell can.

    >>> takes(lambda at: None, ["at"]), takes(lambda: None, ["at"]), takes(3, ["at"])
    (True, False, False)
    """
    if not callable(function):
        return False
    try:
        inspect.signature(function).bind(*names)
    except ValueError:
        return True
    except TypeError:
        return False
    return True
