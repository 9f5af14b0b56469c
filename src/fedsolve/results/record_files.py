"""What a finished run leaves behind in files: its evaluations, its final model and its record; and reading them.

A model is a safetensors file, each array under its path in the tree.
"""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from safetensors import SafetensorError

from fedsolve.core.errors import InvalidInput
from fedsolve.core.types import Params
from fedsolve.folders.files import slug, write_atomically
from fedsolve.folders.run_folder import RUN, SWEEP, check_names
from fedsolve.folders.sealed import (
    LARGEST,
    MANIFEST,
    arrays_of,
    check_file,
    damaged,
    mapped_arrays,
    metadata_of,
    no_checksum_note,
    read_header,
    sealed,
    unsealed,
    write_arrays,
)
from fedsolve.folders.untrusted import MALFORMED, loads, npz_arrays, read_bytes, read_if_there, read_text
from fedsolve.results.columns import Columns, jsonl, write_jsonl
from fedsolve.results.history import History

MODEL = "model.safetensors"
PAGE = "page.html"
"""Of a run, a comparison, a sweep or a study."""
FEDERATION = "federation"
"""The task in the record of a deployment, whose model's file has the model and its buffers, if only none."""
_PARTS = ("model", "buffers")
ALONE = "params"
"""The name of a model that is one array."""


def write_model(path: Path, params: Params, facts: Mapping[str, Any], buffers: Any = None) -> None:
    # parameters as a safetensors file, each leaf under its path in the tree, such as `0.weight`; where the
    # model keeps something beside them, the file has both, as `model` and `buffers`
    tree = params if buffers is None else {"model": params, "buffers": buffers}
    write_arrays(
        path, arrays_by_path(tree), facts if buffers is None else {**facts, "holds": ", ".join(_PARTS)}
    )


def read_model(path: Path) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray] | None]:
    # the parameters that `write_record` kept, by name, and what the model keeps beside them, None if nothing
    try:
        if is_sealed(path):
            header, mapped = mapped_arrays(path, "model")
            facts, arrays = header.manifest, {name: np.array(x) for name, x in mapped.items()}
        else:
            facts = loads(metadata_of(path).get(MANIFEST, "{}"))  # another program's file has none
            arrays = arrays_of(read_bytes(path, LARGEST, follow=False))
        is_deployed = facts.get("task") == FEDERATION
        both = facts.get("holds") == ", ".join(_PARTS)
        # earlier versions did not write there what the file of a deployment holds
        both |= is_deployed and {name.partition(".")[0] for name in arrays} <= set(_PARTS)
    except InvalidInput:
        raise
    except FileNotFoundError:
        raise InvalidInput(f"{path} does not exist: give the folder of a finished run") from None
    except (SafetensorError, OSError, *MALFORMED) as error:
        raise InvalidInput(f"{path} is not a model that fedsolve wrote, or is damaged: {error}") from None
    if not both:
        return arrays, None
    parts: dict[str, dict[str, np.ndarray]] = {part: {} for part in _PARTS}
    for name, array in arrays.items():
        part, _, inside = name.partition(".")
        if part not in parts:
            raise InvalidInput(f"{path} is damaged: it holds {name}, neither of the model nor of its buffers")
        parts[part][inside or ALONE] = array
    return parts["model"], parts["buffers"] or (None if is_deployed else {})


def model_facts(path: Path) -> dict[str, Any]:
    # what a model's file says beside its arrays; nothing of a file without checksums
    return dict(read_header(path, "model").manifest) if is_sealed(path) else {}


def is_sealed(path: Path) -> bool:
    # whether a model's file has more in its metadata than a manifest, as files with checksums have
    return set(metadata_of(path)) - {MANIFEST, "format"} != set()  # another program's file may say "format"


def leaves_by_path(tree: Any) -> dict[str, Any]:
    # the leaves of a pytree, each under its path, such as `0.weight`; `params` where there is one without a path
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(at, simple=True, separator=".") or ALONE: leaf for at, leaf in leaves}


def arrays_by_path(tree: Any) -> dict[str, np.ndarray]:
    # what is no array, such as a model's activation function, is not among them
    leaves = leaves_by_path(tree)
    return {name: np.asarray(leaf, order="C") for name, leaf in leaves.items() if _is_array(leaf)}


def like(arrays: dict[str, np.ndarray], tree: Any, where: str) -> Any:
    # arrays by name in the structure of a tree, whose leaves that are no arrays stay as they are
    leaves = leaves_by_path(tree)
    wanted = {name: leaf for name, leaf in leaves.items() if _is_array(leaf)}
    check_names(wanted, arrays, where, "it is of another task or model")
    for name, leaf in wanted.items():
        if arrays[name].shape != np.shape(leaf):
            raise InvalidInput(
                f"{name} has shape {arrays[name].shape} in {where}, in the task {np.shape(leaf)}"
            )
    return jax.tree.unflatten(jax.tree.structure(tree), [arrays.get(n, leaf) for n, leaf in leaves.items()])


def stacked_leaves(trees: Sequence[Any]) -> Any:
    # pytrees of one structure as one, arrays stacked along a new first axis; what is no array is the first's
    return jax.tree.map(lambda *leaves: np.stack(leaves) if _is_array(leaves[0]) else leaves[0], *trees)


def _is_array(leaf: Any) -> bool:
    return np.asarray(leaf).dtype != object


CONFIG = "config.toml"
STATISTICS_FILE, ANALYSIS_FILE = "statistics.json", "analysis.json"
"""What a federation was asked without training, in the folder of the job."""
HISTORY = "history.json"
SUMMARY = "sweep.json"
METRICS = "metrics.jsonl"
ROUNDS = "rounds.npz"
FAILURE = "diverged.txt"
_IN_TEXT = 10_000  # rounds: of more the log is a file of its own, a few bytes a round in place of hundreds


def write_record(
    folder: Path,
    history: History,
    params: Params,
    buffers: Any = None,
    about: Mapping[str, Any] | None = None,
) -> None:
    """The evaluations, the final model and, last, the whole record: once it is there the run is finished."""
    # `about` is what the model's file says of the model besides.
    write_jsonl(folder / METRICS, history.evaluations)
    facts = {"task": history.task, "method": history.label, **(about or {})}
    write_model(folder / MODEL, params, facts, buffers)
    _write_history(folder, history)


def write_failure(folder: Path, history: History, message: str) -> None:
    write_jsonl(folder / METRICS, history.evaluations)
    write_atomically(folder / FAILURE, f"{message}\n")
    _write_history(folder, history)


def read_failure(folder: Path) -> str | None:
    # why a run diverged; None if it has not
    try:
        return read_text(folder / FAILURE, LARGEST, follow=False).strip()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"cannot read {folder / FAILURE}: {error}") from None


def _write_history(folder: Path, history: History) -> None:
    # the record, and before it the log of its rounds where these are many: columns as NumPy's `load` gives them
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
    # the sub-folder of each method of a comparison; names that would coincide are numbered
    names: list[str] = []
    for label in labels:
        name, number = slug(label), 2
        while name.lower() in (n.lower() for n in names):
            name, number = f"{slug(label)}-{number}", number + 1
        names.append(name)
    return [folder / name for name in names]


def seed_folder(folder: Path, seed: Any) -> Path:
    return folder / f"seed-{seed}"


def read_history(folder: Path) -> History | None:
    # the record of a finished run; None where there is none
    record = _read_history(folder / HISTORY)
    return None if record is None else record[0]


def _read_history(path: Path) -> tuple[History, dict[str, str] | None] | None:
    # the record, and the checksums of the files beside it; None for a record without any
    content = read_if_there(path, LARGEST, follow=False)
    if content is None:
        return None
    text, files = unsealed(path, content)
    try:
        return History.from_json(text, partial(_read_rounds, path.with_name(ROUNDS), files)), files
    except InvalidInput as error:
        raise InvalidInput(f"{path}: {error}") from None


def no_record(folder: Path, otherwise: str) -> InvalidInput:
    """The error of a folder without the record of a finished run: what it holds, if that is known, or `otherwise`."""
    if not folder.is_dir():
        return InvalidInput(f"there is no folder {folder}: give the folder of a run")
    kinds = {STATISTICS_FILE: "statistics of columns", ANALYSIS_FILE: "the result of an analysis"}
    for file, what in kinds.items():
        if (folder / file).exists():
            return InvalidInput(f"{folder} holds {what}, and no run: `fedsolve show {folder}` prints it")
    for file, what in ((RUN.file, "run"), (SWEEP.file, "sweep")):
        if (folder / file).exists():
            return InvalidInput(
                f"{folder} holds an unfinished {what} that a Python program began: run the program again, with "
                "resume=True"
            )
    page = f"; open {folder / PAGE}, which shows what it holds" if (folder / PAGE).exists() else ""
    return InvalidInput(f"{folder} {otherwise}{page}")


def read_result(folder: Path) -> tuple[History, dict[str, np.ndarray], dict[str, np.ndarray] | None]:
    # the record of a run, its model and what the model keeps beside its parameters, as `write_record` kept them.
    #
    # What was written without a checksum is read all the same, which a note of the record says.
    record = _read_history(folder / HISTORY)
    if record is None:
        raise no_record(folder, f"holds no {HISTORY}: give the folder of a finished run")
    history, files = record
    if (folder / METRICS).exists():
        # its lines, which other programs read, must be those of the record
        try:
            check_file(folder / METRICS, files)
        except (OSError, ValueError) as error:
            raise damaged(folder / METRICS, str(error)) from None
    model, buffers = read_model(folder / MODEL)
    before = [HISTORY] * (files is None) + [MODEL] * (not is_sealed(folder / MODEL))
    if before:
        history = dataclasses.replace(history, notes=(*history.notes, no_checksum_note(before)))
    return history, model, buffers


def _read_rounds(path: Path, files: dict[str, str] | None) -> Columns:
    # the log of the rounds that `_write_history` wrote
    try:
        return npz_arrays(io.BytesIO(check_file(path, files)))
    except (OSError, ValueError) as error:
        raise InvalidInput(
            f"the log of its rounds, {path}, is missing or damaged ({error}): restore a copy"
        ) from None
