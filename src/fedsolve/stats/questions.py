"""Questions about the rows of all sites together: what a site replies are sums, which are added up over sites."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Protocol, TypeVar, get_type_hints

import numpy as np

from fedsolve.config.signatures import fits
from fedsolve.core.errors import InvalidInput, unknown
from fedsolve.data.column_replies import as_column_values, number_text
from fedsolve.data.column_statistics import CategoryStatistics, Minimum, Statistics
from fedsolve.folders.untrusted import loads

T = TypeVar("T")
Sums = dict[str, np.ndarray]
"""float64 arrays by name; those of all sites have the same shapes."""
LARGEST = 2.0**70
"""Of a sum of one site."""


class SiteTable:
    """A site's columns, and how few rows a number that leaves it may be of.

    Args:
        name: of the site.
        columns: numbers, NaN where one is missing, or texts, '' where one is missing, shape (rows,), by name.
        min_rows: that the site must have, and a cell of a table, >= 1; 1 allows everything.
    """

    def __init__(self, name: str, columns: Mapping[str, Any], min_rows: int) -> None:
        self.name, self.min_rows, self._columns = name, min_rows, columns
        self.cache = dict[Any, Any]()

    def column(self, name: str) -> np.ndarray | list[str]:
        """A column of numbers, float64, or of texts."""
        if name not in self._columns:
            raise unknown("column", name, self._columns)
        return self.cached(("column", name), lambda: as_column_values(self._columns[name]))

    def numbers(self, name: str) -> np.ndarray:
        """A column of numbers, float64, shape (rows,)."""
        values = self.column(name)
        if isinstance(values, list):
            raise InvalidInput(f"column {name} is text, and numbers are needed: recode it (dates as days)")
        return values

    def texts(self, name: str) -> np.ndarray:
        """A column of categories as texts, '' where one is missing, shape (rows,)."""
        values = self.column(name)
        if isinstance(values, np.ndarray):
            values = ["" if np.isnan(x) else number_text(x) for x in values.tolist()]
        return np.array(values, str)

    @property
    def size(self) -> int:
        """The number of rows of its first column."""
        return len(self.column(next(iter(self._columns)))) if self._columns else 0

    def cached(self, key: Any, make: Callable[[], Any]) -> Any:
        """What was made for a key before: the questions of one analysis need the same arrays again."""
        if key not in self.cache:
            self.cache[key] = make()
        return self.cache[key]

    def last(self, what: str, key: Any, make: Callable[[], Any]) -> Any:
        """What was made for the last key; large arrays for others leave memory."""
        if self.cache.get(what, (None,))[0] != key:
            self.cache.pop(what, None)
            self.cache[what] = key, make()
        return self.cache[what][1]


@dataclass(frozen=True)
class Question:
    """What all sites are asked; subclasses have fields of text, numbers and tuples of these."""

    KINDS: ClassVar[dict[str, type[Question]]] = {}
    ANALYSIS: ClassVar[str] = ""  # which an owner must allow; '' for one of the analysis that comes with it

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        Question.KINDS[cls.__name__] = cls

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are read, in order, each once."""
        raise NotImplementedError

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each sum."""
        raise NotImplementedError

    def sums(self, table: SiteTable) -> Sums:
        """The sums over a site's rows; `InvalidInput` says why the site gives none."""
        raise NotImplementedError

    def to_json(self) -> str:
        """As text, from which `from_json` makes the same question."""
        return json.dumps(as_plain(self))

    @staticmethod
    def from_json(text: str) -> Question:
        """A question that came from outside; `InvalidInput` for one that no version of fedsolve asks."""
        return from_plain(loads(text), Question)


_OTHER = InvalidInput("the question is of another version of fedsolve")


def as_plain(value: Any) -> Any:
    """A question as what JSON holds; anything else unchanged."""
    if isinstance(value, Question):
        return {"kind": type(value).__name__} | {
            f.name: as_plain(getattr(value, f.name)) for f in fields(value)
        }
    return value


def from_plain(value: Any, expected: type) -> Any:
    """A question in what JSON holds, each field of its type."""
    made = _from_plain(value)
    if not isinstance(made, expected):
        raise _OTHER
    return made


def _from_plain(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_from_plain, value))
    if not isinstance(value, dict):
        return value
    kind = Question.KINDS.get(value.get("kind", ""))
    held = {name: _from_plain(part) for name, part in value.items() if name != "kind"}
    if kind is None or set(held) != {f.name for f in fields(kind)}:
        raise _OTHER
    hints = get_type_hints(kind)
    if not all(fits(part, hints[name], lambda x, cls: type(x) is cls) for name, part in held.items()):
        raise _OTHER
    return kind(**held)


def check_sums(question: Question, sums: Mapping[str, Any]) -> Sums:
    """A site's reply; `InvalidInput` unless it has the shapes of the question and finite numbers."""
    shapes = question.shapes()
    arrays = {name: np.asarray(value, np.float64) for name, value in sums.items()}
    if {name: array.shape for name, array in arrays.items()} != shapes:
        raise InvalidInput(f"it replies sums of other shapes than {shapes}")
    for name, array in arrays.items():
        if not (np.abs(array) < LARGEST).all():
            raise InvalidInput(f"its sums {name!r} are not finite or above 2^70: rescale the columns")
    return arrays


class Sites(Protocol):
    """The sites of an analysis, wherever they are.

    Attributes:
        names: of those that take part.
        notes: what the result is to say about them.
    """

    names: list[str]
    notes: list[str]

    def levels(self, columns: Mapping[str, bool]) -> dict[str, tuple[str, ...]]:
        """The categories of each column that has some, by name; True for one of which they are needed."""
        ...

    def sums(self, question: Question) -> Sums:
        """The sums over all sites that take part: `SitesChanged` if there are fewer than before."""
        ...


class SitesChanged(Exception):
    """Sites refuse a later question: the analysis begins again without them."""


def until_settled(fit: Callable[[], T]) -> T:
    """What an analysis finds, once all sites that take part answer all of its questions."""
    while True:
        with suppress(SitesChanged):
            return fit()


def added(question: Question, replies: Iterable[Sums]) -> Sums:
    """The sums of all sites, in their order."""
    total = {name: np.zeros(shape) for name, shape in question.shapes().items()}
    for reply in replies:
        for name, array in reply.items():
            total[name] += array
    return total


def found_levels(found: Statistics, notes: list[str]) -> dict[str, tuple[str, ...]]:
    """The categories of columns of text; `InvalidInput` for a column that too few sites have."""
    for name, why in found.unreported.items():
        reasons = [note for note in found.notes if f"column {name}:" in note]
        raise InvalidInput(f"column {name} cannot be used: {'; '.join([why, *reasons[:1]])}")
    notes += [note for note in found.notes if note not in notes]
    levels = {}
    for name, column in found.columns.items():
        if isinstance(column, CategoryStatistics):
            levels[name] = tuple(column.counts)
            if len(levels[name]) < 2:
                some = ", ".join(map(repr, levels[name])) or "none"
                raise InvalidInput(
                    f"column {name} has fewer than two categories of enough rows ({some}): omit or recode it"
                )
    return levels


def who_takes_part(replied: int, refused: Mapping[str, str], minimum: Minimum) -> list[str]:
    """Notes on the sites that do not take part; `InvalidInput` if too few do."""
    reasons = [f"{name} does not take part: {why}" for name, why in refused.items()]
    if replied < max(minimum.clients, 1):
        few = f"{replied} sites take part, and {max(minimum.clients, 1)} are the minimum (min_clients)"
        others = f"; {len(reasons) - 1} more refuse" if len(reasons) > 1 else ""
        raise InvalidInput("; ".join([few, *reasons[:1]]) + others)
    return reasons


def left_words(name: str, why: str) -> str:
    """Why an analysis ends when a site does not answer any more."""
    rest = "sums without it are of another analysis: begin again"
    return f"{name} left in the middle of the analysis: {why}; {rest}"
