"""The task of a stored model: a ready task is built again from what the model's file says of it."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from fedsolve.core.errors import InvalidInput, check_same, require, shown
from fedsolve.core.types import Params
from fedsolve.data.columns import Columns, check_same_columns
from fedsolve.engine.compute.casting import start_params
from fedsolve.engine.identity import task_table
from fedsolve.results.record_files import MODEL, like, model_facts
from fedsolve.tasks.catalogue import TASKS, build
from fedsolve.tasks.inference import Inference
from fedsolve.tasks.task import Task

_CLASSES = "classes"
_TASK, _PREDICTS, _PERSONAL, _COLUMNS = "made_by", "predicts", "personal", "columns"


def model_metadata(inference: Any, personal: bool) -> dict[str, Any]:
    # what a model's file says of how the model predicts, beside its arrays
    facts: dict[str, Any] = {_PERSONAL: True} if personal else {}
    if not isinstance(inference, Inference):
        return facts
    if inference.to_module is not None and inference.labels is not None:
        facts[_PREDICTS] = _CLASSES
    if inference.columns:
        facts[_COLUMNS] = inference.columns
    made, unnamed = inference.made_by, dict[str, str]()
    if made is None or made.name not in TASKS:
        return facts
    # with options that are not given: a file says the same whether they were typed or not
    options = inspect.signature(TASKS[made.name].builder).parameters.values()
    defaults = {o.name: o.default for o in options if o.default is not o.empty}
    table = task_table(replace(made, options=defaults | dict(made.options)), unnamed)
    return facts if unnamed else {**facts, _TASK: table}


@dataclass(frozen=True, eq=False)
class StoredTask:
    """How the model in a run's folder predicts: by the ready task that its file names, built when first needed."""

    folder: Path

    @cached_property
    def task(self) -> Task:
        # the ready task
        table = model_facts(self.folder / MODEL).get(_TASK)
        if not isinstance(table, dict) or table.get("task") not in TASKS:
            raise InvalidInput(
                f"{self.folder} names no ready task: give fs.load(folder, task=...), the task that was trained, or "
                "fs.load(folder, module=...), a PyTorch module; of a federation's run take `fitted` of the app"
            )
        task = build(table["task"], **table.get("task_options", {}))
        return task if "validation" not in table else task.hold_out(table["validation"])

    @property
    def is_ready(self) -> bool:
        return _TASK in model_facts(self.folder / MODEL)

    def predict(self, params: Params, x: Any, *, buffers: Any = None, scores: bool = False) -> Any:
        model, own = restore_for_task(self.folder, self.task, params, buffers)
        return self.task.predict(model, x, buffers=own, scores=scores)

    def module(self, params: Params, buffers: Any = None) -> Any:
        if self.is_ready:
            return self.task.inference.module(params)
        raise InvalidInput(
            f"{self.folder} has the weights of a model and not its code: give fs.load(folder, module=...), a PyTorch "
            "module of the same layers"
        )


def restore_for_task(folder: Path, task: Task, params: Any, buffers: Any) -> tuple[Params, Any]:
    # a stored model and its buffers in the structure that a task gives them
    if (buffers is None) != (task.buffers is None):
        has = "has no" if buffers is None else "has"
        raise InvalidInput(
            f"{folder / MODEL} {has} buffers, unlike the task {task.name}: it is of another task or model"
        )
    restored = None if buffers is None else like(buffers, task.buffers, str(folder / MODEL))
    given = task.assemble(start_params(task, 0, np.float32))
    return like(params, given, str(folder / MODEL)), restored


def inference_from_module(folder: Path, module: Any, params: Any, buffers: Any, task: str) -> Inference:
    # how a stored model predicts through a PyTorch module of the same layers
    require("torch", "module= needs", "torch", "PyTorch")
    from torch import nn

    from fedsolve.pytorch.translation.arrays import copy_module, trained_copy
    from fedsolve.tasks.torch_modules.losses import likeliest

    if not isinstance(module, nn.Module):
        raise InvalidInput(f"module = {shown(module)} must be a torch.nn.Module, an instance, not a class")
    shapes = {name: np.shape(x) for name, x in params.items()}
    own = module.named_parameters()
    layers = {name: tuple(p.shape) for name, p in own if p.requires_grad or name in shapes}
    # a module that ran in PyTorch has no frozen ones stored
    check_same("parameter of the module", shapes, layers)
    classes = model_facts(folder / MODEL).get(_PREDICTS) == _CLASSES
    return Inference(
        task,
        None,
        likeliest if classes else None,
        None,
        partial(trained_copy, copy_module(module)),
        buffers,
        columns=stored_columns(folder / MODEL),
    )


def as_trained(folder: Path, inference: Inference) -> Inference:
    # how a task's model predicts, with the columns in the order of the stored model's training
    stored = stored_columns(folder / MODEL)
    if not stored or stored == inference.columns:
        return inference
    check_same_columns(f"the task {inference.task}", inference.columns, stored, f"the model in {folder}")
    return replace(inference, columns=stored)


def stored_columns(path: Path) -> Columns:
    # the names of the inputs' columns that a model's file has; () if it has none
    given = model_facts(path).get(_COLUMNS, ())
    try:
        return tuple(None if own is None else tuple(map(str, own)) for own in given)
    except TypeError:
        raise InvalidInput(f"{path} is damaged (columns): restore a copy") from None


def is_personal(folder: Path) -> bool:
    return bool(model_facts(folder / MODEL).get(_PERSONAL))
