"""Results read from their folders: of a run, of seeds, of a comparison, of a sweep and of a deployment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedsolve.core.errors import InvalidInput, check_path, shown
from fedsolve.engine.results import Result, Results, Seeds
from fedsolve.engine.stored_task import (
    StoredTask,
    as_trained,
    inference_from_module,
    is_personal,
    restore_for_task,
)
from fedsolve.engine.sweep_result import Sweep
from fedsolve.folders.sealed import LARGEST
from fedsolve.folders.untrusted import read_user_toml
from fedsolve.results import sweep as sweep_files
from fedsolve.results.record_files import (
    CONFIG,
    HISTORY,
    method_folders,
    no_record,
    read_failure,
    read_history,
    read_result,
    seed_folder,
)
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
