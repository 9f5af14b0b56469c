"""A trained PyTorch module as an ONNX graph, which onnxruntime must compute as PyTorch does before it is written."""

from __future__ import annotations

import importlib
import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from fedsolve.cli.export.weight_files import Exported, trained_module
from fedsolve.core.errors import InvalidInput, require
from fedsolve.engine.results import Result
from fedsolve.tasks.inputs import as_inputs

if TYPE_CHECKING:
    from torch import nn

TOLERANCE = 1e-5
"""How far the outputs of the graph may be from the module's, of 1 or of the largest output if that is more."""
_ROWS = 2048  # of the check: enough for every branch, and a large module is done in seconds
_TRACED = (
    7  # rows that the graph is traced with: not 1, which PyTorch takes for a constant, and no usual size
)


def as_onnx(result: Result, folder: Path, rows: Any) -> Exported:
    """The graph of the module in evaluation mode: its inputs to its outputs, for any number of rows.

    Args:
        result: a finished run with its module.
        folder: where it is.
        rows: inputs of the check, a pytree of arrays of shape (n, ...).

    Raises:
        InvalidInput: a package is missing, the module is not known or has no ONNX graph, or the graph computes
            something else.
    """
    _check_packages()
    module = trained_module(result, folder).cpu().eval()
    inputs = _tensors(module, result, rows)
    content = _graph(module, inputs)
    difference, largest, count = _difference(module, content, inputs)
    if not difference <= TOLERANCE * max(1.0, largest):
        raise InvalidInput(
            f"the ONNX graph of {type(module).__name__} differs from the module by {difference:.2g} in {count} rows, "
            f"where {TOLERANCE * max(1.0, largest):.2g} is allowed: give --to torch"
        )
    return Exported(
        content,
        "ONNX, a graph: any number of rows to the model's outputs (of a classification: scores)",
        "onnx",
        sum(p.numel() for p in module.parameters()),
        sum(b.numel() for b in module.buffers()),
        'import onnxruntime\n\nsession = onnxruntime.InferenceSession("{file}")\n'
        "outputs = session.run(None, {{session.get_inputs()[0].name: x}})",
        {"largest difference from PyTorch": difference, "rows of this check": count},
    )


def _check_packages() -> None:
    for package in ("torch", "onnx", "onnxscript", "onnxruntime"):
        require(package, "--to onnx needs", "onnx,torch")


def _tensors(module: nn.Module, result: Result, rows: Any) -> Any:
    """The inputs of the check as the module takes them."""
    from fedsolve.pytorch.translation.arrays import of_data

    shapes = getattr(result.inference, "rows", None)
    arrays, _ = as_inputs(rows, shapes, result.history.task)
    dtype = next(p.dtype for p in module.parameters() if p.is_floating_point())
    return jax.tree.map(lambda a: of_data(a[:_ROWS], dtype), arrays)


def _graph(module: nn.Module, inputs: Any) -> bytes:
    """The ONNX file that PyTorch's exporter makes, without the places of the code that it was made from."""
    import torch
    from torch.utils import _pytree as pytree

    def repeated(x: torch.Tensor) -> torch.Tensor:
        return x[torch.arange(_TRACED) % len(x)]

    sample = pytree.tree_map(repeated, inputs)
    shapes = (pytree.tree_map(lambda _: {0: torch.export.Dim("rows", min=1)}, sample),)
    try:
        with _silenced():
            program = torch.onnx.export(module, (sample,), dynamo=True, dynamic_shapes=shapes, verbose=False)
        assert program is not None
        proto = program.model_proto
    except Exception as error:  # of the exporter, and of the module itself: any
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = next((line for line in reversed(lines) if "Error" in line), lines[0] if lines else "")
        raise InvalidInput(
            f"{type(module).__name__} has no ONNX graph: {type(error).__name__}: {reason[:200]}; give --to torch"
        ) from None
    _clear_places(proto)
    try:
        return proto.SerializeToString()
    except ValueError:
        raise InvalidInput(
            f"{type(module).__name__} is larger than the 2 GB of an ONNX file: give --to torch"
        ) from None


def _clear_places(message: Any) -> None:
    """Clear descriptions and metadata in a graph and all within: they name files of this machine."""
    for field, value in message.ListFields():
        if field.name in ("doc_string", "metadata_props"):
            message.ClearField(field.name)
        elif field.message_type is not None:
            for inside in (value,) if hasattr(value, "ListFields") else value:
                _clear_places(inside)


def _difference(module: nn.Module, content: bytes, inputs: Any) -> tuple[float, float, int]:
    """The largest difference between onnxruntime's outputs and the module's, the largest output, and the rows."""
    import torch
    from torch.utils import _pytree as pytree

    session = importlib.import_module("onnxruntime").InferenceSession(
        content, providers=["CPUExecutionProvider"]
    )
    leaves = pytree.tree_leaves(inputs)
    given = {taken.name: x.numpy() for taken, x in zip(session.get_inputs(), leaves, strict=True)}
    with torch.no_grad():
        wanted = [x.numpy() for x in pytree.tree_leaves(module(inputs)) if isinstance(x, torch.Tensor)]
    computed: list[Any] = [*session.run(None, given)]
    if [x.shape for x in computed] != [x.shape for x in wanted]:
        return float("inf"), 0.0, len(leaves[0])
    apart = [np.max(np.abs(x.astype(float) - y), initial=0.0) for x, y in zip(computed, wanted, strict=True)]
    largest = max(float(np.max(np.abs(x), initial=0.0)) for x in wanted)
    return float(max(apart)), largest, len(leaves[0])


@contextmanager
def _silenced() -> Iterator[None]:
    """What the exporter prints, logs and warns of its own steps."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
