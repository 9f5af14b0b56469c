"""Questions about the rows of all sites together: what a site replies are sums, which are added up over sites."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import fields
from functools import cached_property
from typing import Any, ClassVar, TypeVar, get_type_hints

import numpy as np

from fedsolve.config.signatures import fits
from fedsolve.core.errors import InvalidInput, Unavailable, shown, unknown
from fedsolve.data.column_replies import as_column_values, number_text
from fedsolve.data.column_statistics import CategoryStatistics, Minimum, Statistics
from fedsolve.folders.untrusted import MALFORMED, loads
from fedsolve.results.columns import number, plain

T = TypeVar("T")
Sums = dict[str, np.ndarray]
"""float64 arrays by name; those of all sites have the same shapes."""
LARGEST = 2.0**70
"""Of a sum of one site."""

# Questions, requests and results as what JSON holds.


class Stored:
    """A dataclass of which JSON holds the fields, and the name of its class as `kind`."""

    KINDS: ClassVar[dict[str, type[Stored]]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        Stored.KINDS[cls.__name__] = cls

    def as_plain(self) -> dict[str, Any]:
        own: Any = self
        values = {f.name: getattr(self, f.name) for f in fields(own)}
        values = {name: v.as_plain() if isinstance(v, Stored) else v for name, v in values.items()}
        return plain({"kind": type(self).__name__} | values)

    @classmethod
    def read(cls, said: Any) -> Any:
        """What gave `as_plain`; `InvalidInput` for anything else."""
        try:
            kind = Stored.KINDS[said["kind"]]
            if issubclass(kind, cls):
                return from_fields(kind, {name: value for name, value in said.items() if name != "kind"})
            raise TypeError(kind)
        except InvalidInput:
            raise
        except MALFORMED as error:
            raise InvalidInput(f"it is damaged, or of another version of fedsolve: {error!r}") from None

    def to_json(self) -> str:
        return json.dumps(self.as_plain())

    @classmethod
    def from_json(cls, text: str) -> Any:
        return cls.read(loads(text))


def from_fields(kind: type[T], values: Mapping[str, Any]) -> T:
    """A dataclass from what JSON holds of its fields: each of its type exactly, arrays and tuples as lists."""
    hints = get_type_hints(kind)
    return kind(**{name: _restored(name, value, hints[name]) for name, value in values.items()})


def _restored(name: str, value: Any, hint: Any) -> Any:
    if hint is np.ndarray:
        return np.array(value, np.float64)
    if isinstance(hint, type) and issubclass(hint, Stored):
        return hint.read(value)
    if hint in (float, tuple[float, ...]):
        value = list(map(number, value)) if isinstance(value, list) else number(value)
    held = _tuples(value)
    if not fits(held, hint, lambda x, cls: cls is Any or type(x) is cls):
        raise InvalidInput(f"its {name} is {shown(value)}, which is of another type, or another version's")
    return held


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


# A site, and what it is asked.


class SiteTable(Mapping[str, Any]):
    """A site's columns as numbers, float64, or lists of texts, and how few rows a number that leaves it may be of.

    Args:
        name: of the site.
        columns: numbers, NaN where one is missing, or texts, '' where one is missing, shape (rows,), by name.
        min_rows: that the site must have, and a cell of a table, >= 1; 1 allows everything.
    """

    def __init__(self, name: str, columns: Mapping[str, Any], min_rows: int) -> None:
        self.name, self.min_rows, self._columns = name, min_rows, columns
        self.cache = dict[Any, Any]()

    def __getitem__(self, name: str) -> np.ndarray | list[str]:
        if name not in self:
            raise unknown("column", name, self._columns)
        return self.cached(("column", name), lambda: as_column_values(self._columns[name]))

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def numbers(self, name: str) -> np.ndarray:
        if isinstance(values := self[name], list):
            raise InvalidInput(f"column {name} is text, and numbers are needed: recode it (dates as days)")
        return values

    def texts(self, name: str) -> np.ndarray:
        # '' where one is missing
        values = self[name]
        if isinstance(values, np.ndarray):
            values = ["" if np.isnan(x) else number_text(x) for x in values.tolist()]
        return np.array(values, str)

    def cached(self, key: Any, make: Callable[[], Any]) -> Any:
        # the questions of one analysis need the same arrays again
        if key not in self.cache:
            self.cache[key] = make()
        return self.cache[key]

    def last(self, what: str, key: Any, make: Callable[[], Any]) -> Any:
        # what was made for the last key; large arrays for others leave memory
        if self.cache.get(what, (None,))[0] != key:
            self.cache.pop(what, None)
            self.cache[what] = key, make()
        return self.cache[what][1]


class Question(Stored):
    """What all sites are asked; subclasses are dataclasses with fields of text, numbers and tuples of these."""

    ANALYSIS: ClassVar[str] = ""  # which an owner must allow; '' for one of the analysis that comes with it

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are read, in order, each once: those of its design."""
        own: Any = self
        return own.design.columns

    def sums(self, table: SiteTable) -> Sums:
        """The sums over a site's rows; `InvalidInput` says why the site gives none."""
        raise NotImplementedError

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of the sums, which are those over no rows."""
        nobody = SiteTable("", dict.fromkeys(self.columns, np.zeros(0)), 0)
        return {name: array.shape for name, array in self.sums(nobody).items()}

    def check(self, sums: Mapping[str, Any]) -> Sums:
        arrays = {name: np.asarray(value, np.float64) for name, value in sums.items()}
        if {name: array.shape for name, array in arrays.items()} != self.shapes:
            raise InvalidInput(f"it replies sums of other shapes than {self.shapes}")
        for name, array in arrays.items():
            if not (np.abs(array) < LARGEST).all():
                raise InvalidInput(f"its sums {name!r} are not finite or above 2^70: rescale the columns")
        return arrays


# The sites of an analysis, and an analysis.


class SitesChanged(Exception):
    """Sites refuse a later question: the analysis begins again without them."""


class Sites:
    """The sites of an analysis, wherever they are."""

    def __init__(self, minimum: Minimum) -> None:
        # `names` of those that take part, once they have answered; `notes` for the result to say about them
        self.minimum, self.names, self.notes = minimum, list[str](), list[str]()
        self.rows = 0.0  # over which the first question is

    def levels(self, columns: Mapping[str, bool]) -> dict[str, tuple[str, ...]]:
        """The categories of each column that has some, by name; True for one of which they are needed."""
        raise NotImplementedError

    def ask(self, question: Question) -> tuple[dict[str, Sums], dict[str, str]]:
        """What sites reply, by name, and why others do not; after the first question, those that take part."""
        raise NotImplementedError

    def sums(self, question: Question) -> Sums:
        has_begun, (replies, refused) = bool(self.names), self.ask(question)
        if refused or not has_begun:
            self.names = list(replies)
            self.notes += who_takes_part(len(replies), refused, self.minimum)
        if refused and has_begun:
            raise SitesChanged
        return self.unchanged({name: sum(of[name] for of in replies.values()) for name in question.shapes})

    def about(self, columns: tuple[str, ...], found: Sums, notes: tuple[str, ...] = ()) -> dict[str, Any]:
        """What a result says about its rows, from sums with `rows` and those `left_out` for each column."""
        left_out = dict(zip(columns, map(int, found["left_out"]), strict=True))
        own = {"rows": int(found["rows"]), "left_out": left_out, "sites": tuple(self.names)}
        return own | {"notes": (*dict.fromkeys(self.notes), *notes)}

    def unchanged(self, sums: Mapping[str, Any]) -> Sums:
        """Sums of one analysis; `Unavailable` if the sites have other rows than before."""
        rows = float(sums.get("rows", self.rows))
        if self.rows not in (0.0, rows):
            had = f"the sites have {rows:,.0f} rows, and had {self.rows:,.0f}"
            raise Unavailable(f"{had}: their data changed while they were asked; begin again")
        self.rows = rows
        return {name: np.array(array, order="C") for name, array in sums.items()}


class Request(Stored):
    ANALYSIS: ClassVar[str]  # as owners of sites allow it

    def fit(self, sites: Sites) -> Any:
        """Ask the sites, round after round, until all that take part answer all questions."""
        # `InvalidInput` where there is no finite estimate, or sites refuse; `Unavailable` if one leaves in the
        # middle.
        while True:
            sites.rows = 0.0
            with suppress(SitesChanged):
                return self._fit(sites)

    def _fit(self, sites: Sites) -> Any:
        raise NotImplementedError


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
                few = "fewer than two categories of enough rows"
                raise InvalidInput(f"column {name} has {few} ({some}): leave it out, or recode it")
    return levels


def who_takes_part(replied: int, refused: Mapping[str, str], minimum: Minimum) -> list[str]:
    """Notes on the sites that do not take part; `InvalidInput` if too few do."""
    reasons = [f"{name} does not take part: {why}" for name, why in refused.items()]
    if replied < minimum.clients:
        few = f"{replied} sites take part, and {minimum.clients} are the minimum (min_clients)"
        others = f"; {len(reasons) - 1} more refuse" if len(reasons) > 1 else ""
        raise InvalidInput("; ".join([few, *reasons[:1]]) + others)
    return reasons
