"""The record of a sweep: all settings and seeds by round, the criterion that chooses, and what it chose."""

from __future__ import annotations

import io
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any, Self, TypeVar

import numpy as np

from fedsolve.core.errors import Diverged, InvalidInput, check_integer, check_known, require
from fedsolve.core.metric_direction import check_recorded
from fedsolve.folders.files import write_atomically
from fedsolve.folders.sealed import LARGEST, check_file, damaged, no_checksum_note, sealed, unsealed_values
from fedsolve.folders.untrusted import MALFORMED, read_bytes
from fedsolve.results.columns import dumps, number
from fedsolve.results.metrics import describe
from fedsolve.results.record_files import SUMMARY


@dataclass(frozen=True)
class Selection:
    """The mean of a metric over the last rounds; the least is best, of accuracies and the like the most.

    Attributes:
        metric: a column of the evaluations.
        last: evaluations of so many last rounds count; 1 is the last evaluation alone.

    >>> Selection("train_loss", 100)
    least train_loss, mean of the last 100 rounds
    """

    metric: str
    last: int

    def __post_init__(self) -> None:
        check_integer("last", self.last, 1)

    def __repr__(self) -> str:
        what = "most" if self.most else "least"
        return f"{what} {self.metric}, mean of the last {self.last} rounds"

    @classmethod
    def standard(cls, rounds: int) -> Selection:
        """What chooses where nothing is asked for: the training loss, its mean over the last tenth of the rounds."""
        return cls("train_loss", max(1, rounds // 10))

    def notes(self, rounds: int) -> tuple[str, ...]:
        """A remark where more than half of a run of so many rounds counts."""
        if self.last == 1 or 2 * self.last <= rounds:
            return ()
        return (
            f"the score averages {min(self.last, rounds)} of {rounds} rounds, more than half of the run: it prefers a "
            f"fast start to a good end; {self.metric}:{max(1, rounds // 10)} averages the last tenth",
        )

    def counted(self, rounds: np.ndarray) -> np.ndarray:
        """Which evaluations count, shape (evaluations,) of truths; `rounds` has that shape."""
        counted = rounds > rounds[-1] - self.last
        counted[0] &= len(rounds) == 1  # the initial model is no result
        return counted

    @property
    def most(self) -> bool:
        return describe(self.metric).higher_is_better

    @property
    def worst(self) -> float:
        return -np.inf if self.most else np.inf

    def score(self, rounds: np.ndarray, values: np.ndarray) -> np.ndarray:
        """The score of each trial, the worst where a value is not finite."""
        # `rounds` has shape (evaluations,), `values` (..., evaluations), the result (...).
        mean = values[..., self.counted(rounds)].mean(axis=-1)
        return np.where(np.isfinite(mean), mean, self.worst)

    def so_far(self, rounds: np.ndarray, values: np.ndarray, of: int) -> np.ndarray:
        """The mean score over seeds after the first of so many rounds, by the mean over the same share of them."""
        # `rounds` and `values` are as in `score`, with seeds before the last axis; the least is best here.
        last = max(1, self.last * int(rounds[-1]) // of)
        score = replace(self, last=last).score(rounds, values).mean(axis=-1)
        return -score if self.most else score

    @classmethod
    def parse(cls, text: str) -> Selection:
        """One of `SELECTIONS` by name, or `metric` or `metric:last`."""
        if text in SELECTIONS:
            return SELECTIONS[text]
        metric, colon, last = text.partition(":")
        if colon and not last.isdecimal():
            raise InvalidInput(
                f"selection '{text}': '{last}' must be a number of last rounds, as in {metric}:100"
            )
        return cls(metric, int(last) if colon else 1)

    def check(self, metrics: Mapping[str, np.ndarray]) -> None:
        check_recorded("the selection", self.metric, metrics)


SELECTIONS = {
    "training-loss": Selection("train_loss", 100),
    "validation-accuracy": Selection("validation_accuracy", 5),
    "recovery-error": Selection("recovery_error", 100),
    "f1": Selection("f1", 100),
}
"""The rules of the papers: Reddi et al. 2021 (training loss of the last 100 rounds), Takakura et al. 2025
(validation accuracy of the last 5), Yuan et al. 2021 (recovery error or F1 score of the last 100)."""


S = TypeVar("S", bound="SweepRecord")
RANDOM = "random"
SENT = "bytes_up"
"""The setting that tells the bytes which a client sends in a round; None where messages differ in length."""


def points_of(grid: Mapping[str, Sequence[Any]], kind: str) -> list[dict[str, Any]]:
    """The settings: the product of the axes, the last one fastest, or of a random search a value of each at a time."""
    combined = zip(*grid.values(), strict=True) if kind == RANDOM else itertools.product(*grid.values())
    return [dict(zip(grid, values, strict=True)) for values in combined]


def axes_text(grid: Mapping[str, Sequence[Any]], drawn: int, times: str = " x ") -> str:
    """The axes and how many settings they have; `drawn` at random, or 0 of a grid."""
    if drawn:
        return f"{drawn} at random: {times.join(grid)}"
    return times.join(f"{len(values)} {axis}" for axis, values in grid.items()) or "one setting"


@dataclass(frozen=True, eq=False, repr=False)
class SweepRecord:
    """A finished sweep of one method.

    `fs.sweep` returns it as `Sweep`, which documents the attributes and adds tables and plots.
    """

    label: str
    task: str
    grid: Mapping[str, tuple[Any, ...]]
    seeds: tuple[int, ...]
    rounds: np.ndarray
    metrics: Mapping[str, np.ndarray]
    diverged: np.ndarray
    selection: Selection
    settings: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    notes: tuple[str, ...] = ()
    search: Mapping[str, Any] = field(default_factory=dict)
    stopped: np.ndarray | None = None

    @property
    def drawn(self) -> int:
        """How many settings were drawn at random, each with its own value of every axis; 0 of a grid."""
        return len(self.points) if self.search.get("kind") == RANDOM else 0

    @property
    def shape(self) -> tuple[int, ...]:
        sizes = tuple(len(values) for values in self.grid.values())
        return sizes[:1] if self.drawn else sizes

    @property
    def stops(self) -> np.ndarray:
        """The round after which each setting was stopped, -1 if it was not, shape (settings,)."""
        return np.full(len(self.points), -1) if self.stopped is None else self.stopped

    def __repr__(self) -> str:
        about = f"{axes_text(self.grid, self.drawn)}, {len(self.seeds)} seeds, {int(self.rounds[-1])} rounds"
        return f"Sweep({self.label} on {self.task}: {about})"

    @cached_property
    def points(self) -> list[dict[str, Any]]:
        return points_of(self.grid, self.search.get("kind", ""))

    @cached_property
    def scores(self) -> np.ndarray:
        """The selection's score of each trial, shape (settings, seeds); the worst (infinite) where it diverged."""
        scores = self.selection.score(self.rounds, self.metrics[self.selection.metric])
        return np.where(self.diverged < 0, scores, self.selection.worst)

    @cached_property
    def score(self) -> np.ndarray:
        """The mean score of each setting over the seeds, shape (settings,); the worst if one seed diverged."""
        return self.scores.mean(axis=1)

    @property
    def best(self) -> int:
        """The number of the best setting; of several as good the first.

        Raises:
            Diverged: all settings diverged.
        """
        score = -self.score if self.selection.most else self.score
        if not np.isfinite(score).any():
            raise Diverged(self._all_diverged())
        return int(np.argmin(score))

    @property
    def best_settings(self) -> dict[str, Any]:
        return self.points[self.best]

    def share_within(self, share: float = 0.05) -> float:
        """The share of settings whose score is within `share` (5 %) of the best's; those stopped early are not."""
        best = self.score[self.best]
        room = share * abs(best)
        good = self.score >= best - room if self.selection.most else self.score <= best + room
        return float(np.mean(good))

    def matrix(self, x: str, y: str) -> np.ndarray:
        """Scores over two axes, the best over all others, shape (values of y, values of x)."""
        scores, names = self._best_at(x, y), list(self.grid)
        if self.drawn:
            raise InvalidInput("a random search has no scores by row and column: take a sweep of a grid")
        return scores if names.index(y) < names.index(x) else scores.T

    def best_over_grid(self, axis: str) -> np.ndarray:
        """The best score over all other axes at each value of one, shape (values,)."""
        return self._best_at(axis)

    def curve(self, setting: int, metric: str) -> np.ndarray:
        """A metric of one setting by seed and evaluation, shape (seeds, evaluations)."""
        check_known("metric of the sweep", metric, self.metrics)
        return self.metrics[metric][setting]

    def at_settings(self, settings: Sequence[int], grid: Mapping[str, tuple[Any, ...]]) -> Self:
        """The sweep of some settings alone, whose product is a smaller grid."""
        chosen = list(settings)
        metrics = {name: values[chosen] for name, values in self.metrics.items()}
        diverged, stopped = self.diverged[chosen], self.stops[chosen]
        return replace(self, grid=dict(grid), metrics=metrics, diverged=diverged, stopped=stopped)

    def _best_at(self, *kept: str) -> np.ndarray:
        # over all axes but those that are kept
        for name in kept:
            check_known("axis of the sweep", name, list(self.grid))
        others = () if self.drawn else tuple(i for i, name in enumerate(self.grid) if name not in kept)
        scores = self.score.reshape(self.shape)
        return (scores.max if self.selection.most else scores.min)(axis=others)

    def _all_diverged(self) -> str:
        def smallest(values: tuple[Any, ...]) -> str:
            numbers = [v for v in values if isinstance(v, int | float)]
            return f"{min(numbers):g}" if numbers else str(values[0])

        left, those = int((self.stops < 0).sum()), " that were not stopped" * bool((self.stops >= 0).any())
        what = f"all {left} settings of {self.label}{those} diverged"
        start = self.metrics["train_loss"][..., 0] if "train_loss" in self.metrics else np.zeros(1)
        if not np.isfinite(start).any():
            return (
                f"{what}: the training loss of the initial model is {start.flat[0]} already: look at the data, the "
                "loss and the initial model"
            )
        rates = {
            n: v for n, v in self.grid.items() if n.rpartition(".")[2].endswith(("lr", "eta", "eta_max"))
        }
        if not rates:
            return f"{what}; no axis ({', '.join(self.grid)}) is a rate: look at the data, the loss and the rates"
        tried = ", ".join(f"{name} = {smallest(values)}" for name, values in rates.items())
        return f"{what}; the smallest tried were {tried}: try smaller ones"


# A sweep as files: every trial and every curve as Parquet, what was chosen as JSON.
#
# `sweep.parquet` has a row a trial (a setting with a seed), `curves.parquet` a row an evaluation of a trial, and
# `sweep.json` the rest. The three together give back the same `SweepRecord`; the first two are for any other program.


TRIALS = "sweep.parquet"
CURVES = "curves.parquet"
_COLUMNS = ("setting", "seed", "score", "diverged", "stopped")


def require_parquet() -> None:
    """Raise `InvalidInput` unless Parquet files can be written: to be called before a sweep runs."""
    _arrow()


def save(sweep: SweepRecord, folder: str | Path) -> Path:
    """Write `sweep.parquet`, `curves.parquet` and, last, `sweep.json`; returns the folder."""
    folder = Path(folder)
    tables = {TRIALS: _parquet(trial_columns(sweep)), CURVES: _parquet(curve_columns(sweep))}
    for name, content in tables.items():
        write_atomically(folder / name, content)
    write_atomically(folder / SUMMARY, sealed(dumps(summary(sweep), indent=1) + "\n", tables))
    return folder


def load(folder: str | Path, kind: type[S] = SweepRecord) -> S:
    """The sweep that `save` wrote, with the same arrays, as a `kind`; one written without checksums has a note."""
    folder = Path(folder)
    data, files = _summary(folder)
    tables = [_checked(folder / name, files) for name in (TRIALS, CURVES)]
    trials, curves = (_read(folder / name, x) for name, x in zip((TRIALS, CURVES), tables, strict=True))
    before = no_checksum_note([SUMMARY, TRIALS, CURVES]) if files is None else ""
    try:
        grid = {name: tuple(_value(v) for v in values) for name, values in data["grid"].items()}
        seeds = tuple(data["seeds"])
        search, sizes = data.get("search", {}), [len(v) for v in grid.values()]
        (settings,) = set(sizes) if search.get("kind") == RANDOM else {int(np.prod(sizes))}
        shape = (settings, len(seeds), -1)
        return kind(
            label=data["label"],
            task=data["task"],
            grid=grid,
            seeds=seeds,
            rounds=curves.pop("round").reshape(shape)[0, 0],
            metrics={k: v.reshape(shape) for k, v in curves.items() if k not in ("setting", "seed")},
            diverged=trials["diverged"].reshape(shape[:2]),
            selection=Selection(data["selection"]["metric"], data["selection"]["last"]),
            settings={name: number(v) for name, v in data["settings"].items()},
            seconds=data["seconds"],
            notes=(*data["notes"], *([before] if before else [])),
            search=search,
            stopped=trials["stopped"].reshape(shape[:2])[:, 0] if "stopped" in trials else None,
        )
    except MALFORMED as error:
        raise InvalidInput(f"the files in {folder} are not of one sweep: {error!r}") from None


def _summary(folder: Path) -> tuple[Any, dict[str, str] | None]:
    # what `sweep.json` says, and the checksums of the files beside it, if it has some
    path = folder / SUMMARY
    try:
        return unsealed_values(path, read_bytes(path, LARGEST, follow=False))
    except OSError as error:
        raise InvalidInput(f"{folder} holds no finished sweep: {SUMMARY}: {error.strerror}") from None
    except InvalidInput:
        raise
    except ValueError as error:
        raise InvalidInput(f"{path} is not the JSON of a sweep: {error}") from None


def summary(sweep: SweepRecord) -> dict[str, Any]:
    """What `sweep.json` holds: everything but the numbers of the trials, and what was chosen."""
    finite = bool(np.isfinite(sweep.score).any())
    return {
        "label": sweep.label,
        "task": sweep.task,
        "grid": {name: [_as_json(v) for v in values] for name, values in sweep.grid.items()},
        "search": {name: _as_json(v) for name, v in sweep.search.items()},
        "seeds": list(sweep.seeds),
        "selection": {
            "metric": sweep.selection.metric,
            "last": sweep.selection.last,
            "rule": repr(sweep.selection),
        },
        "best": {
            "setting": sweep.best,
            "values": {name: _as_json(v) for name, v in sweep.best_settings.items()},
            "score": float(sweep.score[sweep.best]),
            "scores": sweep.scores[sweep.best].tolist(),
        }
        if finite
        else None,
        "share_within_5_percent": sweep.share_within(0.05) if finite else 0.0,
        "lanes": int(sweep.diverged.size),
        "lanes_diverged": int((sweep.diverged >= 0).sum()),
        "settings": {name: _as_json(v) for name, v in sweep.settings.items()},
        "seconds": float(sweep.seconds),
        "notes": list(sweep.notes),
    }


def trial_columns(sweep: SweepRecord) -> dict[str, Any]:
    """One row a trial: setting, the axes, seed, score, diverged and stopped (-1 if not), `final_<metric>`."""
    # An axis that has a column's name is called `axis_<name>`.
    settings, seeds = sweep.diverged.shape
    columns: dict[str, Any] = {"setting": np.repeat(np.arange(settings), seeds)}
    for name in sweep.grid:
        values = [point[name] for point in sweep.points for _ in range(seeds)]
        columns[_axis_column(name)] = _axis(values)
    columns["seed"] = np.tile(np.array(sweep.seeds, dtype=np.int64), settings)
    columns["score"] = sweep.scores.ravel()
    columns["diverged"] = sweep.diverged.ravel()
    if "halving" in sweep.search:
        columns["stopped"] = np.repeat(sweep.stops, seeds)
    finals = {f"final_{name}": values[..., -1].ravel() for name, values in sweep.metrics.items()}
    return columns | finals


def curve_columns(sweep: SweepRecord, with_axes: bool = False) -> dict[str, Any]:
    """One row an evaluation of a trial: setting, the axes if `with_axes`, seed, round and the metrics."""
    settings, seeds = sweep.diverged.shape
    evaluations = len(sweep.rounds)
    axes = {
        _axis_column(name): np.repeat(np.array([p[name] for p in sweep.points]), seeds * evaluations)
        for name in (sweep.grid if with_axes else ())
    }
    return {
        "setting": np.repeat(np.arange(settings), seeds * evaluations),
        **axes,
        "seed": np.tile(np.repeat(np.array(sweep.seeds, dtype=np.int64), evaluations), settings),
        "round": np.tile(sweep.rounds, settings * seeds),
        **{name: values.ravel() for name, values in sweep.metrics.items()},
    }


def _axis_column(name: str) -> str:
    return f"axis_{name}" if name in _COLUMNS else name


def _axis(values: list[Any]) -> list[Any]:
    # an axis as one column: numbers as they are (None is null), anything else as text
    if all(isinstance(v, int | float | None) and not isinstance(v, bool) for v in values):
        whole = all(isinstance(v, int | None) for v in values)
        return values if whole else [v if v is None else float(v) for v in values]
    if all(isinstance(v, bool | None) for v in values):
        return values
    return [None if v is None else v if isinstance(v, str) else dumps(_as_json(v)) for v in values]


def _as_json(value: Any) -> Any:
    # a value as JSON has it; an object that JSON does not know as the text of it
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(k): _as_json(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_as_json(v) for v in value]
    return value if isinstance(value, str | int | float | None) else str(value)


def _value(value: Any) -> Any:
    return tuple(_value(v) for v in value) if isinstance(value, list) else number(value)


def _parquet(columns: Mapping[str, Any]) -> bytes:
    pyarrow = _arrow()
    arrays = {
        name: pyarrow.array(values, from_pandas=False) if isinstance(values, np.ndarray) else values
        for name, values in columns.items()
    }
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(arrays), buffer, compression="zstd")
    return buffer.getvalue()


def _checked(path: Path, files: Mapping[str, str] | None) -> bytes:
    # the content of a file, as `sweep.json` says it was written
    try:
        return check_file(path, files)
    except OSError as error:
        raise InvalidInput(f"cannot read {path}: {error.strerror or error}") from None
    except ValueError as error:
        raise damaged(path, str(error)) from None


def _read(path: Path, content: bytes) -> dict[str, np.ndarray]:
    pyarrow = _arrow()
    try:
        # not `read_table`: a thread of it may still hold `content` at the end of the process, which then aborts
        table = pyarrow.parquet.ParquetFile(pyarrow.BufferReader(content)).read(use_threads=False)
    except (OSError, pyarrow.ArrowException) as error:
        raise InvalidInput(f"{path} is not a Parquet file, or is cut short: {error}") from None
    return {name: table.column(name).to_numpy() for name in table.column_names}


def _arrow() -> ModuleType:
    require("pyarrow", "the results of a sweep are Parquet files, which need", "sweep")
    import pyarrow
    import pyarrow.parquet

    return pyarrow
