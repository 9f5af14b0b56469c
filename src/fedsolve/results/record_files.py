"""What a finished run leaves behind in files: its evaluations, its final model and its record; and reading them."""

from __future__ import annotations

import dataclasses
import io
import zipfile
import zlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedsolve.core.errors import InvalidInput
from fedsolve.core.types import Params
from fedsolve.folders.files import slug, write_atomically
from fedsolve.folders.sealed_json import LARGEST, check_file, damaged, sealed, unsealed, without_checksum
from fedsolve.folders.untrusted import read_bytes
from fedsolve.results.columns import Columns, jsonl, write_jsonl
from fedsolve.results.history import History
from fedsolve.results.model_file import MODEL, is_sealed, read_model, write_model

CONFIG = "config.toml"
HISTORY = "history.json"
METRICS = "metrics.jsonl"
ROUNDS = "rounds.npz"
FAILURE = "diverged.txt"
_IN_TEXT = 10_000  # rounds: of more the log is a file of its own, a few bytes a round in place of hundreds


def write_record(folder: Path, history: History, params: Params, buffers: Any = None) -> None:
    """The evaluations, the final model and, last, the whole record: once it is there the run is finished.

    Where the model keeps something beside its parameters, the file has both, as `model` and `buffers`.
    """
    write_jsonl(folder / METRICS, history.evaluations)
    facts = {"task": history.task, "method": history.label}
    if buffers is None:
        write_model(folder / MODEL, params, facts)
    else:
        write_model(
            folder / MODEL, {"model": params, "buffers": buffers}, {**facts, "holds": "model, buffers"}
        )
    _write_history(folder, history)


def write_failure(folder: Path, history: History, message: str) -> None:
    """The record of a run that diverged, and why."""
    write_jsonl(folder / METRICS, history.evaluations)
    write_atomically(folder / FAILURE, f"{message}\n")
    _write_history(folder, history)


def _write_history(folder: Path, history: History) -> None:
    """The record, and before it the log of its rounds where these are many: columns as NumPy's `load` gives them."""
    many = len(history.rounds["round"]) > _IN_TEXT
    files = {METRICS: jsonl(history.evaluations).encode()}
    if many:
        content = io.BytesIO()
        np.savez_compressed(content, allow_pickle=False, **history.rounds)
        files[ROUNDS] = content.getvalue()
        (folder / HISTORY).unlink(missing_ok=True)  # of a run that went on: it would not fit the new log
        write_atomically(folder / ROUNDS, files[ROUNDS])
    write_atomically(folder / HISTORY, sealed(history.to_json(indent=1, rounds=not many), files))
    if not many:
        (folder / ROUNDS).unlink(missing_ok=True)  # of a record that this one replaces


def method_folders(folder: Path, labels: Sequence[str]) -> list[Path]:
    """The sub-folder of each method of a comparison; names that would coincide are numbered."""
    names: list[str] = []
    for label in labels:
        name, number = slug(label), 2
        while name.lower() in (n.lower() for n in names):
            name, number = f"{slug(label)}-{number}", number + 1
        names.append(name)
    return [folder / name for name in names]


def seed_folder(folder: Path, seed: Any) -> Path:
    """The sub-folder of one seed of several."""
    return folder / f"seed-{seed}"


def read_history(folder: Path) -> History | None:
    """The record of a finished run; None where there is none.

    Raises:
        InvalidInput: the file is damaged.
    """
    found = _read_history(folder / HISTORY)
    return None if found is None else found[0]


def _read_history(path: Path) -> tuple[History, dict[str, str] | None] | None:
    """The record, and the checksums of the files beside it; None for a record without any."""
    try:
        content = read_bytes(path, LARGEST)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InvalidInput(f"cannot read {path}: {error.strerror}") from None
    text, files = unsealed(path, content)
    try:
        return History.from_json(text, partial(_read_rounds, path.with_name(ROUNDS), files)), files
    except InvalidInput as error:
        raise InvalidInput(f"{path}: {error}") from None


def read_result(folder: Path) -> tuple[History, dict[str, np.ndarray], dict[str, np.ndarray] | None]:
    """The record of a run, its model and what the model keeps beside its parameters, as `write_record` kept them.

    What was written without a checksum is read all the same, which a note of the record says.

    Raises:
        InvalidInput: a file is missing, or it or the evaluations beside it are damaged (it is named).
    """
    found = _read_history(folder / HISTORY)
    if found is None:
        raise InvalidInput(f"{folder} holds no {HISTORY}: give the folder of a finished run")
    history, files = found
    if (folder / METRICS).exists():
        _check_metrics(folder / METRICS, files)
    model, buffers = read_model(folder / MODEL)
    before = [HISTORY] * (files is None) + [MODEL] * (not is_sealed(folder / MODEL))
    if before:
        history = dataclasses.replace(history, notes=(*history.notes, without_checksum(before)))
    return history, model, buffers


def _check_metrics(path: Path, files: dict[str, str] | None) -> None:
    """Raise `InvalidInput` if the lines of the evaluations, which other programs read, are not those of the record."""
    try:
        check_file(path, files)
    except (OSError, ValueError) as error:
        raise damaged(path, str(error)) from None


def _read_rounds(path: Path, files: dict[str, str] | None) -> Columns:
    """The log of the rounds that `_write_history` wrote.

    Raises:
        InvalidInput: the file is missing or damaged.
    """
    try:
        with np.load(io.BytesIO(check_file(path, files)), allow_pickle=False) as arrays:
            return dict(arrays)
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise InvalidInput(
            f"the log of its rounds, {path}, is missing or damaged ({error}): bring back a copy"
        ) from None
