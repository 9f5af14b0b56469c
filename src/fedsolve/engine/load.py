"""Results read from their folders, of all kinds; and a run that begins with the model of one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedsolve.core.building import made
from fedsolve.core.errors import InvalidInput, check_path, shown, trim_common_prefix
from fedsolve.core.types import Params
from fedsolve.data.columns import Columns
from fedsolve.engine.compute.casting import start_key
from fedsolve.engine.compute.sharding import is_first
from fedsolve.engine.options import RunOptions
from fedsolve.engine.results import Result, Results, Seeds, Several
from fedsolve.engine.stored_task import (
    StoredTask,
    as_trained,
    inference_from_module,
    is_personal,
    restore_for_task,
    stored_columns,
)
from fedsolve.engine.sweep_result import Sweep
from fedsolve.folders.run_folder import RUN, SWEEP, occupied_error
from fedsolve.folders.sealed import LARGEST
from fedsolve.folders.untrusted import read_user_toml
from fedsolve.results import sweep as sweep_files
from fedsolve.results.record_files import (
    CONFIG,
    HISTORY,
    MODEL,
    arrays_by_path,
    leaves_by_path,
    like,
    method_folders,
    model_facts,
    no_record,
    read_failure,
    read_history,
    read_model,
    read_result,
    seed_folder,
    write_model,
)
from fedsolve.tasks.inference import Inference, input_columns
from fedsolve.tasks.leaf_types import unrounded
from fedsolve.tasks.task import Task


def load(
    folder: str | Path, task: Task | None = None, *, module: Any = None
) -> Result | Seeds | Results | Sweep:
    """Load the result of a run, several seeds, a comparison, a sweep or a deployment from its folder.

    Args:
        folder: what `save` wrote, the folder of `out=`, or that of a command such as `fedsolve run`.
        task: that of the run, for the model's structure, `Result.predict` and `Result.module`. Without it the model is
            a dict from the paths of its leaves, such as `0.weight`, to NumPy arrays, and `predict` builds the task
            again if it is a ready one. A sweep has no model and needs none.
        module: a PyTorch module of the same layers as the one that was trained, for `predict` and `module` without the
            task.

    Returns:
        A `Result`; `Seeds` of a folder with `seed-S` in it; `Results` of one with a folder for each method, where
        those that are not finished are left out with a note; a `Sweep`. Files without checksums, as they were once
        written, are read with a note in the record.

    Raises:
        InvalidInput: a file is missing, a symbolic link, or not as it was written (it is named), or the model is not
            the task's (the first difference is named).
    """
    path = check_path("folder", folder)
    if task is not None and not isinstance(task, Task):
        raise InvalidInput(f"task = {shown(task)} must be a fedsolve.Task or None")
    if task is not None and module is not None:
        raise InvalidInput("give task or module, not both: a task from PyTorch has its module")
    if not path.is_dir():
        raise no_record(path, "")
    if (path / sweep_files.SUMMARY).is_file():
        return sweep_files.load(path, Sweep)
    if (path / HISTORY).is_file():
        return _run(path, task, module)
    if _seed_folders(path):
        return _seeds(path, task, module)
    return _methods(path, task, module)


def _run(folder: Path, task: Task | None, module: Any) -> Result:
    # one run; one that diverged has no model, and says why
    failure, history = read_failure(folder), None
    if failure is not None and (history := read_history(folder)) is not None:
        return Result(None, history, failure=failure)
    history, params, buffers = read_result(folder)
    personal = is_personal(folder) or None
    if module is not None:
        inference = inference_from_module(folder, module, params, buffers, history.task)
        return Result(params, history, buffers, inference, client_models=personal)
    if task is None:
        return Result(params, history, buffers, StoredTask(folder), client_models=personal)
    model, own = restore_for_task(folder, task, params, buffers)
    return Result(model, history, own, as_trained(folder, task.inference), client_models=personal)


def _seeds(folder: Path, task: Task | None, module: Any) -> Seeds:
    return Seeds(tuple(_run(inside, task, module) for inside in _seed_folders(folder)))


def _methods(folder: Path, task: Task | None, module: Any) -> Results:
    # what the folders of a comparison's methods hold, in the order of its configuration, else of the alphabet
    found: list[Result | Seeds] = []
    missing: list[str] = []
    for inside in _method_folders(folder):
        if (inside / HISTORY).is_file():
            found.append(_run(inside, task, module))
        elif seeds := _seed_folders(inside):
            found.append(Seeds(tuple(_run(seed, task, module) for seed in seeds)))
        else:
            missing.append(inside.name)
    if not found:
        raise no_record(folder, f"holds no {HISTORY}: give the folder of a finished run, or of several")
    notes = [f"not finished, and left out: {', '.join(missing)}"] if missing else []
    try:
        return Results(found, notes)
    except InvalidInput as error:  # the folder of folders that have nothing to do with one another
        raise InvalidInput(
            f"{folder} holds several runs, not of one comparison: give the folder of one ({error})"
        ) from None


def _seed_folders(folder: Path) -> list[Path]:
    # the folders of finished seeds within a method's folder, by their seed
    prefix = seed_folder(folder, "").name
    inside = [path for path in folder.glob(f"{prefix}*") if (path / HISTORY).is_file()]
    return sorted(inside, key=lambda path: (len(path.name), path.name))


def _method_folders(folder: Path) -> list[Path]:
    # the folders within one that may be those of methods, in order
    begun = {path.name: path for path in sorted(folder.glob("*")) if path.is_dir()}
    try:
        table = read_user_toml(folder / CONFIG, LARGEST, follow=False)
        labels = [method.get("label") or method["name"] for method in table["method"]]
    except InvalidInput:
        raise
    except (FileNotFoundError, KeyError, TypeError, AttributeError):  # kept by `save`, which writes none
        return [path for path in begun.values() if any(path.rglob(HISTORY))]
    except OSError as error:
        raise InvalidInput(f"cannot read {folder / CONFIG}: {error.strerror}") from None
    return [path for path in method_folders(folder, labels) if path.name in begun]


# A run that begins with a saved model, which is held against the task, and copied into the run's folder for resuming.


START = "start.safetensors"
"""The model that a run began with, in its folder."""
ORIGIN, BEGAN = "origin", "began with the model of "
_PERSONAL = "; the clients' own models are not stored: they begin with this one"


@dataclass(frozen=True, eq=False)
class SavedModel:
    """A saved model as the `init` of the task that begins with it, whose buffers are the task's."""

    trained: Params  # the leaves that train, as the task's own `init` gives them
    whole: Params
    origin: str  # in words

    def __call__(self, key: Any) -> Params:
        return self.trained


def with_start(
    task: Task, options: RunOptions, out: str | Path | None, resume: bool
) -> tuple[Task, RunOptions]:
    """The task with the model of `options.start`, and the options with its place in words; as they are without one."""
    start = options.start
    if start is None:
        return task, options
    is_path = isinstance(start, str | Path)
    is_gone = resume and is_path and not Path(start).exists()
    begun = begin_from(task, (kept_start(out) if is_gone else None) or start, options.dtype)
    if out is not None:
        if not resume and any(next(Path(out).rglob(kind.file), None) for kind in (RUN, SWEEP)):
            raise occupied_error(Path(out), "run")
        if not resume or kept_start(out) is None:
            keep_start(out, begun)
    # what a configuration can name: a folder, or the copy of a model that was in memory
    where = start if is_path else begun.notes[-1] if out is None else Path(out) / START
    return begun, replace(options, start=str(where))


def kept_start(out: str | Path | None) -> Path | None:
    path = None if out is None else Path(out) / START
    return path if path is not None and path.is_file() else None


def keep_start(out: str | Path, task: Task) -> None:
    model = task.init
    if isinstance(model, SavedModel) and is_first():
        write_model(Path(out) / START, model.whole, {ORIGIN: model.origin}, task.buffers)


def begin_from(task: Task, start: Any, dtype: str) -> Task:
    params, beside, where, origin = _read(start, task)
    # which leaf of the whole model trains is seen by where `assemble` puts it
    flat, structure = jax.tree.flatten(task.init(start_key(0)))
    places = [np.broadcast_to(np.zeros((), dtype), np.shape(x)) for x in flat]
    whole = unrounded(task.assemble)(structure.unflatten(places))
    found = fitted(arrays_by_path(params), whole, where)
    values = dict(zip(map(id, jax.tree.leaves(whole)), jax.tree.leaves(found), strict=True))
    trained = [values.pop(id(place), None) for place in places]
    if any(x is None for x in trained):
        raise InvalidInput(f"the task {task.name} computes its model: start cannot tell what of it trains")
    for name, leaf in leaves_by_path(whole).items():
        if id(leaf) in values and not np.array_equal(leaf, values[id(leaf)]):
            why = f"does not train in the task {task.name} and differs in {where}: build the task with that model"
            raise InvalidInput(f"{name} {why}")
    buffers = task.buffers if beside is None else fitted(arrays_by_path(beside), task.buffers, where)
    notes = (*task.notes, BEGAN + origin)
    model = SavedModel(structure.unflatten(trained), found, origin)
    begun = replace(task, init=model, buffers=buffers, notes=notes)
    return begun if task.made_by is None else made(begun, task.made_by)


def saved_model(path: Path, params: Params, buffers: Any) -> tuple[Params, Any, dict[str, Any]]:
    """The model in a run's folder or in a file, in the form of an app's, its buffers, and what its file says."""
    file = path / MODEL if path.is_dir() else path
    arrays, beside = read_model(file)
    found = fitted(arrays, params, str(file)), fitted(dict(beside or {}), dict(buffers), str(file))
    return *found, model_facts(file)


def fitted(arrays: dict[str, np.ndarray], tree: Any, where: str) -> Any:
    """Arrays by name in the structure and the types of a tree, to the last digit; `where` is what an error says."""
    types = {name: np.asarray(leaf).dtype for name, leaf in leaves_by_path(tree).items()}
    cast = {name: _cast(f"{name} of {where}", x, types.get(name, x.dtype)) for name, x in arrays.items()}
    return like(cast, tree, where)


def _cast(name: str, given: np.ndarray, dtype: Any) -> np.ndarray:
    if given.dtype.kind in "fV" and not np.isfinite(given).all():
        raise InvalidInput(f"{name} has a number that is not finite: take a model of finite ones")
    with np.errstate(over="ignore"):
        cast = given.astype(dtype)
    if not np.array_equal(cast.astype(given.dtype), given):
        raise InvalidInput(
            f"{name} is {given.dtype}, and {dtype} cannot hold it: round it, or train in {given.dtype}"
        )
    return cast


def _read(start: Any, task: Task) -> tuple[Params, Any, str, str]:
    # a model, its buffers, what errors call it, and where it comes from
    where, result = "start", start
    if isinstance(start, str | Path):
        path, where = Path(start), str(start)
        if not path.exists():
            raise InvalidInput(f"start = {where!r}: there is no such folder")
        if path.is_file():
            return *read_model(path), where, str(model_facts(path).get(ORIGIN, path.name))
        result = load(path)
    if isinstance(result, Several | Sweep):
        raise InvalidInput(f"{where} has several runs or a sweep: give one run, such as seed-0 in its folder")
    if not isinstance(result, Result):
        return result, None, where, "parameters given in Python"
    if result.failure:
        raise InvalidInput(f"{where}: {result.label} diverged and has no model: {result.failure}")
    knows, wanted = result.inference, input_columns(task.data)
    columns: Columns = knows.columns if isinstance(knows, Inference) else ()
    columns = stored_columns(knows.folder / MODEL) if isinstance(knows, StoredTask) else columns
    if any(columns) and any(wanted) and columns != wanted:
        then, now = trim_common_prefix(*(", ".join(map(str, own)) for own in (columns, wanted)))
        raise InvalidInput(
            f"{where} was trained on the columns {then}, and the task has {now}: give those, in their order"
        )
    told = f"{result.label} on {result.history.task}, {result.metrics['round'][-1]} rounds"
    told = f"{Path(where).name} ({told})" if result is not start else told
    return result.params, result.buffers, where, told + _PERSONAL * (result.client_models is not None)
