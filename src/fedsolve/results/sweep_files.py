"""A sweep as files: every trial and every curve as Parquet, what was chosen as JSON.

`sweep.parquet` has a row a trial (a setting with a seed), `curves.parquet` a row an evaluation of a trial, and
`sweep.json` the rest. The three together give back the same `SweepRecord`; the first two are for any other program.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from fedsolve.core.errors import InvalidInput, require
from fedsolve.folders.files import write_atomically
from fedsolve.folders.sealed import (
    LARGEST,
    check_file,
    damaged,
    sealed,
    unsealed_values,
    without_checksum,
)
from fedsolve.folders.untrusted import MALFORMED, read_bytes
from fedsolve.results.columns import dumps, number
from fedsolve.results.sweep import Selection, SweepRecord

TRIALS = "sweep.parquet"
CURVES = "curves.parquet"
SUMMARY = "sweep.json"
_COLUMNS = ("setting", "seed", "score", "diverged")


def require_parquet() -> None:
    """Raise `InvalidInput` unless Parquet files can be written: to be called before a sweep runs."""
    _arrow()


def save(sweep: SweepRecord, folder: str | Path) -> Path:
    """Write `sweep.parquet`, `curves.parquet` and, last, `sweep.json`; returns the folder.

    Raises:
        InvalidInput: pyarrow is not installed, or the folder cannot be written.
    """
    folder = Path(folder)
    tables = {TRIALS: _parquet(trial_columns(sweep)), CURVES: _parquet(curve_columns(sweep))}
    for name, content in tables.items():
        write_atomically(folder / name, content)
    write_atomically(folder / SUMMARY, sealed(dumps(summary(sweep), indent=1) + "\n", tables))
    return folder


def load(folder: str | Path) -> SweepRecord:
    """The sweep that `save` wrote, with the same arrays; one written without checksums has a note.

    Raises:
        InvalidInput: pyarrow is not installed, or a file is missing or damaged.
    """
    folder = Path(folder)
    data, files = _summary(folder)
    tables = [_checked(folder / name, files) for name in (TRIALS, CURVES)]
    trials, curves = (_read(folder / name, x) for name, x in zip((TRIALS, CURVES), tables, strict=True))
    before = without_checksum([SUMMARY, TRIALS, CURVES]) if files is None else ""
    try:
        grid = {name: tuple(_value(v) for v in values) for name, values in data["grid"].items()}
        seeds = tuple(data["seeds"])
        shape = (int(np.prod([len(v) for v in grid.values()])), len(seeds), -1)
        return SweepRecord(
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
        )
    except MALFORMED as error:
        raise InvalidInput(f"the files in {folder} are not of one sweep: {error!r}") from None


def _summary(folder: Path) -> tuple[Any, dict[str, str] | None]:
    """What `sweep.json` says, and the checksums of the files beside it, if it has some."""
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
    """One row a trial: setting, the axes, seed, score, diverged (-1 if not) and `final_<metric>` of each metric.

    An axis that has a column's name is called `axis_<name>`.
    """
    settings, seeds = sweep.diverged.shape
    columns: dict[str, Any] = {"setting": np.repeat(np.arange(settings), seeds)}
    for name in sweep.grid:
        values = [point[name] for point in sweep.points for _ in range(seeds)]
        columns[_axis_column(name)] = _axis(values)
    columns["seed"] = np.tile(np.array(sweep.seeds, dtype=np.int64), settings)
    columns["score"] = sweep.scores.ravel()
    columns["diverged"] = sweep.diverged.ravel()
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
    """The column of an axis."""
    return f"axis_{name}" if name in _COLUMNS else name


def _axis(values: list[Any]) -> list[Any]:
    """An axis as one column: numbers as they are (None is null), anything else as text."""
    if all(isinstance(v, int | float | None) and not isinstance(v, bool) for v in values):
        whole = all(isinstance(v, int | None) for v in values)
        return values if whole else [v if v is None else float(v) for v in values]
    if all(isinstance(v, bool | None) for v in values):
        return values
    return [None if v is None else v if isinstance(v, str) else dumps(_as_json(v)) for v in values]


def _as_json(value: Any) -> Any:
    """A value as JSON has it; an object that JSON does not know as the text of it."""
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
    """Columns as a file."""
    pyarrow = _arrow()
    arrays = {
        name: pyarrow.array(values, from_pandas=False) if isinstance(values, np.ndarray) else values
        for name, values in columns.items()
    }
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(arrays), buffer, compression="zstd")
    return buffer.getvalue()


def _checked(path: Path, files: Mapping[str, str] | None) -> bytes:
    """The content of a file, as `sweep.json` says it was written."""
    try:
        return check_file(path, files)
    except OSError as error:
        raise InvalidInput(f"cannot read {path}: {error.strerror or error}") from None
    except ValueError as error:
        raise damaged(path, str(error)) from None


def _read(path: Path, content: bytes) -> dict[str, np.ndarray]:
    pyarrow = _arrow()
    try:
        table = pyarrow.parquet.read_table(io.BytesIO(content))
    except (OSError, pyarrow.ArrowException) as error:
        raise InvalidInput(f"{path} is not a Parquet file, or is cut short: {error}") from None
    return {name: table.column(name).to_numpy() for name in table.column_names}


def _arrow() -> ModuleType:
    require("pyarrow", "the results of a sweep are Parquet files, which need", "sweep")
    import pyarrow
    import pyarrow.parquet

    return pyarrow
