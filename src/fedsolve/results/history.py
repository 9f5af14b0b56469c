"""The record of a run: what was evaluated, what each round did, and the settings it ran with.

It knows no engine. Columns are float64, or int64 where every value is an integer, so the JSON form gives back
the same arrays. `round` counts finished rounds: an evaluation at round 0 is the initial model, and
the first entry of the per-round columns is round 1.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedsolve.core.errors import InvalidInput, check_known, is_integer, shown
from fedsolve.folders.sealed import unsealed
from fedsolve.folders.untrusted import MALFORMED, loads
from fedsolve.results.columns import Columns, as_column, checked_columns, dumps, number
from fedsolve.results.metrics import describe, summary

Setting = str | int | float | bool | None
"""A value of a resolved configuration."""


@dataclass(frozen=True, eq=False)
class History:
    """One finished run.

    Attributes:
        label: the method's name as shown.
        task: the task's name.
        settings: the resolved configuration; the strings 'NaN' and '(-)Infinity' are read back as numbers.
        evaluations: columns over evaluations, each of shape (evaluations,): round, seconds (since the start),
            train_loss, and further metrics, also with the suffix `_averaged`; time (simulated seconds) of a run
            on the clock of a fleet.
        rounds: columns over rounds, each of shape (rounds,): round, server_lr, participants, dropped,
            bytes_up, bytes_down (of all clients of that round together); on a clock also time, asked (clients
            that were sent the model) and waited (mean share of the round that a message waited for the last).
        seconds: wall-clock seconds of the run, compilation excluded.
        compile_seconds: seconds of compilation.
        notes: remarks and warnings of the run, shown with it.
        totals: columns of sums over all rounds so far, whether they have a row in `rounds` or not, a row for each
            evaluation after the first round: round, participants, dropped, bytes_up, bytes_down, and asked and rejected
            where rounds have them. Empty in records without them: then the rows of `rounds` are summed.

    Raises:
        InvalidInput: a required column is missing, or columns have different lengths or more than one axis.
    """

    label: str
    task: str
    settings: dict[str, Setting]
    evaluations: Columns
    rounds: Columns
    seconds: float = 0.0
    compile_seconds: float = 0.0
    notes: tuple[str, ...] = ()
    totals: Columns = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        where = f"history '{self.label}'"
        needed = {"evaluations": ("round", "seconds", "train_loss"), "rounds": ("round",)}
        needed["totals"] = ("round",) if self.totals else ()
        for part, names in needed.items():
            columns = checked_columns(getattr(self, part), f"{where}, {part}", names)
            object.__setattr__(self, part, columns)
        if not len(self.evaluations["round"]):
            raise InvalidInput(f"{where} holds no evaluation: evaluate at least once")
        object.__setattr__(self, "notes", tuple(self.notes))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, History) and self.to_json() == other.to_json()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"History({self.words()})"

    def words(self) -> str:
        """What ran, how far, and its last evaluation, on one line."""
        last = {name: values[-1] for name, values in self.evaluations.items()}
        return f"{self.label} on {self.task}: {last['round']} rounds, {summary(last)}"

    def column(self, name: str) -> np.ndarray:
        """An evaluation column, shape (evaluations,); `InvalidInput` if there is none of that name."""
        check_known(f"metric of '{self.label}'", name, self.evaluations)
        return self.evaluations[name]

    def final(self, name: str) -> float:
        """The value at the last evaluation; NaN if the run had diverged."""
        return float(self.column(name)[-1])

    def best(self, name: str) -> float:
        """The best value that is a number: the largest of an accuracy, the smallest of a loss; else NaN."""
        values = self.column(name)
        values = values[~np.isnan(values)]
        if not len(values):
            return float("nan")
        return float(values.max() if describe(name).higher_is_better else values.min())

    def rounds_to(self, name: str, target: float) -> int | None:
        """The first evaluated round at which the metric is at least as good as `target`; None if never."""
        return self._first("round", name, target)

    def time_to(self, name: str, target: float) -> float | None:
        """The simulated seconds at the first evaluation that is as good as `target`; None if never.

        Raises:
            InvalidInput: the run was on no clock.
        """
        self.column("time")
        return self._first("time", name, target)

    def _first(self, what: str, name: str, target: float) -> Any:
        return first_as_good(self.column(name), name, target, self.evaluations[what])

    def total(self, name: str) -> int:
        """The sum of a count over all rounds (bytes_up, dropped, ...); 0 if it was not recorded."""
        return int(self._sums(name)[-1])

    def megabytes(self) -> np.ndarray:
        """Data sent by then, both ways and all clients, in MB of 10^6 bytes, shape (evaluations,)."""
        sent = self._sums("bytes_up") + self._sums("bytes_down")
        rounds = (self.totals or self.rounds)["round"]
        return sent[np.searchsorted(rounds, self.evaluations["round"], side="right")] / 1e6

    def _sums(self, name: str) -> np.ndarray:
        """A count summed up to each row of the totals, after a 0; up to each round where there are no totals."""
        if self.totals:
            sums = self.totals.get(name, np.zeros(len(self.totals["round"]), np.int64))
        else:
            sums = np.cumsum(self.rounds.get(name, np.zeros(len(self.rounds["round"]), np.int64)))
        return np.concatenate([np.zeros(1, sums.dtype), np.nan_to_num(sums)])

    def at_evaluations(self, name: str) -> np.ndarray:
        """A per-round column at the evaluated rounds, NaN where not recorded, shape (evaluations,)."""
        rounds, at = self.rounds["round"], self.evaluations["round"]
        rows = np.minimum(np.searchsorted(rounds, at), max(0, len(rounds) - 1))
        if not len(rounds):
            return np.full(len(at), np.nan)
        return np.where(rounds[rows] == at, self.rounds[name][rows], np.nan)

    def to_json(self, indent: int | None = None, *, rounds: bool = True) -> str:
        """Standard JSON text that `from_json` turns back exactly; without the `rounds`, only how many there are."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return dumps(fields if rounds else fields | {"rounds": len(self.rounds["round"])}, indent)

    @classmethod
    def from_json(cls, text: str | bytes, rounds: Callable[[], Columns] | None = None) -> History:
        """The history that `to_json` wrote; `InvalidInput` if the text is not one.

        Args:
            text: it, or the content of a `history.json`, which has a checksum too.
            rounds: () -> the rounds' columns, asked where the text leaves them out.
        """
        text, _ = unsealed("the JSON of a history", text.encode() if isinstance(text, str) else text)
        try:
            data = loads(text)
            if rounds is not None and is_integer(count := data["rounds"]):
                data["rounds"] = rounds()
                if len(data["rounds"]["round"]) != count:
                    raise ValueError(f"it is of {count} rounds, not {len(data['rounds']['round'])}")
            _check_words(data)
            for part in ("evaluations", "rounds", "totals"):
                data[part] = {k: as_column(v) for k, v in data.get(part, {}).items()}
            data["settings"] = {k: number(v) for k, v in data["settings"].items()}
            for name in ("seconds", "compile_seconds"):
                data[name] = number(data[name])
            return cls(**data)
        except InvalidInput:
            raise
        except MALFORMED as error:
            raise InvalidInput(f"not the JSON of a history: {error!r}") from None


def first_as_good(values: np.ndarray, name: str, target: float, at: np.ndarray) -> Any:
    """The entry of `at` where values of the metric `name` are first as good as `target`; None if they never are."""
    reached = values >= target if describe(name).higher_is_better else values <= target
    return at[int(np.argmax(reached))].item() if reached.any() else None


def _check_words(data: dict[str, Any]) -> None:
    """Raise `ValueError` where a record's words are none, which whoever shows them relies on."""
    for name in ("label", "task"):
        if not isinstance(data[name], str):
            raise ValueError(f"its {name} is {shown(data[name])}, no text")
    if not all(isinstance(note, str) for note in data["notes"]):
        raise ValueError(f"its notes are {shown(data['notes'])}, not texts")
    for name in ("seconds", "compile_seconds"):
        if isinstance(data[name], bool) or not isinstance(number(data[name]), int | float):
            raise ValueError(f"its {name} are {shown(data[name])}, no number")
