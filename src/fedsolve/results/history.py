"""The record of a run: what was evaluated, what each round did, and the settings it ran with.

It knows no engine. Columns are float64, or int64 where every value is an integer, so the JSON form gives back
the same arrays. `round` counts finished rounds: an evaluation at round 0 is the initial model, and
the first entry of the per-round columns is round 1.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, get_args

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
    """

    label: str
    task: str
    settings: dict[str, Setting]
    evaluations: Columns
    rounds: Columns
    seconds: float = 0.0
    compile_seconds: float = 0.0
    notes: tuple[str, ...] = ()
    totals: Columns = field(default_factory=dict)

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
        return first_as_good(self.column(name), name, target, self.evaluations["round"])

    def time_to(self, name: str, target: float) -> float | None:
        """The simulated seconds at the first evaluation that is as good as `target`; None if never."""
        self.column("time")  # names it if it is missing
        return first_as_good(self.column(name), name, target, self.evaluations["time"])

    def total(self, name: str) -> int:
        """The sum of a count over all rounds (bytes_up, dropped, ...); 0 if it was not recorded."""
        return int(self._sums(name)[-1])

    def megabytes(self) -> np.ndarray:
        """Data sent by then, both ways and all clients, in MB of 10^6 bytes, shape (evaluations,)."""
        sent = self._sums("bytes_up") + self._sums("bytes_down")
        rounds = (self.totals or self.rounds)["round"]
        return sent[np.searchsorted(rounds, self.evaluations["round"], side="right")] / 1e6

    def _sums(self, name: str) -> np.ndarray:
        # a count summed up to each row of the totals, after a 0; up to each round where there are no totals
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
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return dumps(values if rounds else values | {"rounds": len(self.rounds["round"])}, indent)

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
    # raise `ValueError` where a record's words are none, which whoever shows them relies on
    for name in ("label", "task"):
        if not isinstance(data[name], str):
            raise ValueError(f"its {name} is {shown(data[name])}, no text")
    if not all(isinstance(note, str) for note in data["notes"]):
        raise ValueError(f"its notes are {shown(data['notes'])}, not texts")
    for name in ("seconds", "compile_seconds"):
        if isinstance(data[name], bool) or not isinstance(number(data[name]), int | float):
            raise ValueError(f"its {name} are {shown(data[name])}, no number")


# Runs of one method that differ in the seed alone, as one: the mean by round, and how far the seeds lie apart.
#
# Tables say mean ± the sample standard deviation (n - 1); plots draw the mean with a band (`Bands`).


Bands = Literal["range", "std", "ci"]
"""What a band over seeds is: the range, the mean ± the sample standard deviation, or the mean's interval."""
_CONFIDENCE = 0.95
BAND_WORDS = {
    "range": "range over seeds",
    "std": "± sample standard deviation over seeds",
    "ci": f"{100 * _CONFIDENCE:.0f} % interval of the mean over seeds (Student's t)",
}


@dataclass(frozen=True, eq=False)
class SeedGroup:
    """The runs of one method on one task."""

    runs: tuple[History, ...]  # one for each seed
    # their means by round, NaN once one of them has diverged; the run itself where there is one
    history: History
    # low, high: the smallest and the largest value of each evaluation; empty where there is one run
    low: Columns = field(default_factory=dict)
    high: Columns = field(default_factory=dict)

    @property
    def several(self) -> bool:
        return len(self.runs) > 1

    def values(self, name: str) -> np.ndarray | None:
        """A column of the evaluations, or else of the rounds, shape (seeds, rows); None where there is none."""
        for tables in ([h.evaluations for h in self.runs], [h.rounds for h in self.runs]):
            if all(name in table for table in tables):
                return same_columns(tables)[name]
        return None


METHOD = ("algorithm", "sampling", "batch_size", "epochs", "local_steps", "dtype")
"""Settings that runs of one method share, whatever their seeds."""


def method_of(history: History) -> tuple[object, ...]:
    """What runs must share to be those of one method: label, task and the settings of `METHOD`."""
    return (history.label, history.task, *(str(history.settings.get(name)) for name in METHOD))


def group_by_seed(histories: Sequence[History]) -> list[SeedGroup]:
    """The runs by method, in order: those that share `method_of`, if they have different seeds."""
    by_method: dict[tuple[object, ...], list[History]] = {}
    for history in histories:
        by_method.setdefault(method_of(history), []).append(history)
    methods = []
    for runs in by_method.values():
        seeds = [h.settings.get("seed") for h in runs]
        if len(runs) > 1 and len(set(seeds)) == len(runs) and None not in seeds:
            methods.append(_mean_over_seeds(tuple(runs)))
        else:
            methods += [SeedGroup((run,), run) for run in runs]
    return methods


def _mean_over_seeds(runs: tuple[History, ...]) -> SeedGroup:
    stacks = same_columns([h.evaluations | {"megabytes": h.megabytes()} for h in runs])
    rounds = stacks.pop("round")[0].astype(np.int64)
    mean = {name: values.mean(axis=0) for name, values in stacks.items() if name != "megabytes"}
    logs = {name: values.mean(axis=0) for name, values in same_columns([h.rounds for h in runs]).items()}
    seeds = [h.settings["seed"] for h in runs]
    return SeedGroup(
        runs,
        replace(
            runs[0],
            settings=runs[0].settings | {"seed": ", ".join(map(str, seeds))},
            evaluations={"round": rounds, **mean},
            rounds=logs | {"round": logs["round"].astype(np.int64)},
            seconds=float(np.mean([h.seconds for h in runs])),
            compile_seconds=max(h.compile_seconds for h in runs),  # of the program that they share
            notes=tuple(dict.fromkeys(note for h in runs for note in h.notes)),
        ),
        {name: values.min(axis=0) for name, values in stacks.items()},
        {name: values.max(axis=0) for name, values in stacks.items()},
    )


def same_columns(tables: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """The columns that all have, each of shape (seeds, rounds of any of them); NaN where a run has no such round."""
    rounds = np.unique(np.concatenate([table["round"] for table in tables]))
    columns = {"round": np.tile(rounds, (len(tables), 1))}
    for name in tables[0]:
        if name == "round" or not all(name in table for table in tables):
            continue
        values = np.full((len(tables), len(rounds)), np.nan)
        for row, table in zip(values, tables, strict=True):
            row[np.searchsorted(rounds, table["round"])] = table[name]
        columns[name] = values
    return columns


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float]:
    """The mean and the standard deviation of a sample, NaN and NaN if one is no number; of one value NaN.

    >>> mean_and_deviation([1.0, 3.0])
    (2.0, 1.4142135623730951)
    """
    array = np.asarray(values, float)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # infinite values
        return float(array.mean()), float(array.std(ddof=1)) if len(array) > 1 else float("nan")


def band(values: np.ndarray, bands: Bands) -> tuple[np.ndarray, np.ndarray]:
    """The lower and the upper end of a band over seeds, both of shape (points,)."""
    check_known("bands", bands, get_args(Bands))
    if bands == "range":
        return values.min(axis=0), values.max(axis=0)
    seeds = len(values)
    half = values.std(axis=0, ddof=1)
    if bands == "ci":
        from scipy.special import stdtrit  # of JAX's dependencies; not needed where nothing is drawn

        half = half * (stdtrit(seeds - 1, 0.5 + _CONFIDENCE / 2) / np.sqrt(seeds))
    return values.mean(axis=0) - half, values.mean(axis=0) + half
