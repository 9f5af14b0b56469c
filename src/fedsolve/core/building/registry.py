"""What can be built by its name: the tables of a configuration, and the objects that they stand for."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

from fedsolve.core.errors import InvalidInput, check_known

T = TypeVar("T")


class Registry(dict[str, T]):
    """Entries of one kind by name.

    Where the entries are dataclasses, an object is built from its name alone or from a table with the name and the
    parameters, and written as such a table again.

    >>> @dataclasses.dataclass
    ... class Step:
    ...     size: float
    >>> steps = Registry("step", {"Step": Step})
    >>> steps.build("FedX", {"name": "Step", "size": 0.5})
    Step(size=0.5)
    """

    def __init__(
        self, kind: str, entries: Mapping[str, T], *, key: str = "name", any_spelling: bool = False
    ) -> None:
        """A registry.

        Args:
            kind: what an entry is called in errors.
            entries: by name.
            key: under which a table has the name.
            any_spelling: whether a table may write names in any case, with `-` and `_` anywhere.
        """
        super().__init__(entries)
        self.kind, self.key = kind, key
        self._spellings = {name.lower(): name for name in entries} if any_spelling else {}

    def find(self, name: Any, kind: str | None = None) -> T:
        """The entry of that name; `InvalidInput` for an unknown one (with the nearest match)."""
        check_known(kind or self.kind, name, self)
        return self[name]

    def build(self, where: str, table: Any) -> Any:
        """An object from its name alone, or from a table with its name and parameters.

        Args:
            where: whose it is, for errors.
            table: the name or the table.

        Raises:
            InvalidInput: an unknown name or parameter (the nearest match is named), a missing one, or a value that
                is refused.
        """
        kind = f"{self.kind} of {where}"
        values = {self.key: table} if isinstance(table, str) else table
        if not isinstance(values, Mapping) or self.key not in values:
            raise InvalidInput(f"{kind} = {table!r} must be a table with a {self.key}: {', '.join(self)}")
        name = self._spelled(values[self.key])
        cls: Any = self.find(name, kind)
        given = {parameter: value for parameter, value in values.items() if parameter != self.key}
        _check_parameters(name, cls, given)
        return cls(**given)

    def name_of(self, built: Any) -> str | None:
        """The name of the class of an object, if it is one of these."""
        return next((name for name, cls in self.items() if type(built) is cls), None)

    def _spelled(self, name: Any) -> Any:
        plain = str(name).lower().replace("_", "").replace("-", "")
        return self._spellings.get(plain, name)


def _check_parameters(name: str, cls: Any, given: Mapping[str, Any]) -> None:
    """Raise `InvalidInput` unless a class takes the parameters given, and needs no others."""
    fields = {field.name: field for field in dataclasses.fields(cls)}
    for parameter, value in given.items():
        check_known(f"parameter of {name}", parameter, fields)
        if isinstance(value, str | bool) and not fields[parameter].metadata.get("static"):
            raise InvalidInput(f"{name}: {parameter} = {value!r} must be a number")
    for parameter, field in fields.items():
        if field.default is dataclasses.MISSING and parameter not in given:
            raise InvalidInput(f"{name} needs {parameter}")
