"""A trained model for other programs: safetensors, a PyTorch state_dict or an ONNX graph, with its model card."""

from __future__ import annotations

import importlib
import io
import json
import logging
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from fedsolve.config.references import load_object, user_code_error
from fedsolve.core import __version__
from fedsolve.core.errors import FedsolveError, InvalidInput, of_type, require
from fedsolve.core.loss_checks import first_line
from fedsolve.engine.results import Result
from fedsolve.engine.stored_task import StoredTask
from fedsolve.results.history import History
from fedsolve.results.metrics import describe
from fedsolve.results.record_files import FEDERATION, leaves_by_path
from fedsolve.tasks.inference import as_inputs

if TYPE_CHECKING:
    from torch import nn


_KINDS = "--to torch and onnx support PyTorch modules, --to safetensors supports every model"


@dataclass(frozen=True)
class Exported:
    """A model's file before it is written."""

    content: bytes  # of the file
    kind: str  # its format, in words
    library: str  # the card's `library_name`
    # parameters, buffers: how many numbers each are
    parameters: int
    buffers: int
    use: str  # a program of a few lines that reads the file, where `{file}` is its name
    # what was compared, by name; empty if nothing was
    check: Mapping[str, float | int] = field(default_factory=dict)


def as_safetensors(result: Result) -> Exported:
    # names such as `0.weight`; buffers are `buffers.NAME` if a name is in both
    from safetensors.numpy import save

    params, buffers = _arrays(result.params), _arrays(result.buffers)
    prefix = "buffers." if params.keys() & buffers.keys() else ""
    named = params | {prefix + name: array for name, array in buffers.items()}
    # safetensors' reader for NumPy knows no bfloat16
    reader = "flax" if any(array.dtype.name == "bfloat16" for array in named.values()) else "numpy"
    return Exported(
        save({name: np.ascontiguousarray(array) for name, array in named.items()}),
        "safetensors, arrays by name",
        "safetensors",
        sum(array.size for array in params.values()),
        sum(array.size for array in buffers.values()),
        f'from safetensors.{reader} import load_file\n\narrays = load_file("{{file}}")',
    )


def as_state_dict(result: Result, folder: Path) -> Exported:
    import torch

    module = trained_module(result, folder)
    content = io.BytesIO()
    # a tensor of its own storage on the CPU; what a module keeps besides (`get_extra_state`) as it is
    states = module.state_dict().items()
    saved = {n: x.detach().cpu().clone() if isinstance(x, torch.Tensor) else x for n, x in states}
    torch.save(saved, content)
    _check_state_dict(content, module, _arrays(result.params) | _arrays(result.buffers))
    return Exported(
        content.getvalue(),
        "PyTorch, a state_dict",
        "pytorch",
        sum(p.numel() for p in module.parameters()),
        sum(b.numel() for b in module.buffers()),
        'import torch\n\nmodule.load_state_dict(torch.load("{file}", weights_only=True))  '
        f"# module: {type(module).__name__}",
    )


def trained_module(result: Result, folder: Path) -> nn.Module:
    model = result.inference
    if model.is_ready if isinstance(model, StoredTask) else model is None or model.to_module is None:
        raise InvalidInput(f"the task {result.history.task} is not from PyTorch: {_KINDS}")
    if isinstance(model, StoredTask):
        raise InvalidInput(
            f"{folder} has the weights of a model and not its code: give --module MODULE:NAME, a PyTorch module of the "
            "same layers, or --to safetensors"
        )
    return result.module()


def named_module(reference: str) -> nn.Module:
    """The PyTorch module that the user names: an object, a class, or a function that returns it."""
    require("torch", "--module needs", "torch", "PyTorch")
    from torch import nn

    module = load_object("module", reference)
    if callable(module) and not isinstance(module, nn.Module):
        try:
            module = module()
        except FedsolveError:
            raise
        except (Exception, SystemExit) as error:
            raise user_code_error(f"module {reference}", error) from None
    if not isinstance(module, nn.Module):
        raise InvalidInput(f"module '{reference}' is {of_type(module)}: name a torch.nn.Module")
    return module


def _arrays(tree: Any) -> dict[str, np.ndarray]:
    return {} if tree is None else {n: np.asarray(leaf) for n, leaf in leaves_by_path(tree).items()}


def _check_state_dict(content: io.BytesIO, module: nn.Module, stored: Mapping[str, np.ndarray]) -> None:
    import torch

    from fedsolve.pytorch.translation.arrays import as_tensor, copy_module

    content.seek(0)
    try:
        read = copy_module(module)
        read.load_state_dict(torch.load(content, weights_only=True), strict=True)
    except Exception as error:  # of a module's own hooks: any
        line = (str(error).splitlines() or [""])[0]
        raise InvalidInput(
            f"{type(module).__name__} cannot read its own state_dict (weights_only=True): {line}; give --to safetensors"
        ) from None
    tensors = read.state_dict(keep_vars=True) | dict(read.named_parameters()) | dict(read.named_buffers())
    for name, array in stored.items():
        if not torch.equal(tensors[name].detach(), as_tensor(array, tensors[name].detach())):
            raise InvalidInput(
                f"{name} of {type(module).__name__} is not as it was stored: give --to safetensors"
            )


# A model card in Markdown with the YAML front matter of Hugging Face: how a model was trained, its metrics.


_DATA = {
    "clients": "Clients",
    "population": "Clients",
    "examples": "Training examples of all clients",
    "test_examples": "Held-out examples",
}
# in the title, or of the clients and this run
_HIDDEN = ("task", "sites", "experiment", "model", "label", "start")
_NO_METRICS = ("round", "seconds", "time")
_LONGEST = 400  # characters of a setting, such as a method with its options


def card_text(history: History, exported: Exported, file: str) -> str:
    """The model card in Markdown: nothing of the data but counts, and no setting that may name a path."""
    label, task = _words(history.label), _words(history.task)
    last = {name: column[-1] for name, column in history.evaluations.items()}
    metrics = {name: value for name, value in last.items() if name not in _NO_METRICS}
    # noise follows from the seed
    hidden = (*_HIDDEN, *_DATA) if _epsilon(history) is None else (*_HIDDEN, "seed", *_DATA)
    given = {k: v for k, v in history.settings.items() if k not in hidden and v is not None}
    settings = {k: v for k, v in given.items() if not (isinstance(v, str) and ("/" in v or "\\" in v))}
    size = {"File": f"`{file}`", "Format": exported.kind, "Parameters": f"{exported.parameters:,}"}
    size |= {"Buffers": f"{exported.buffers:,}"} if exported.buffers else {}
    size |= {name[0].upper() + name[1:]: value for name, value in exported.check.items()}
    data = {_DATA[k]: f"{v:,}" for k, v in history.settings.items() if k in _DATA and isinstance(v, int)}
    shown = {describe(name).label: value * describe(name).scale for name, value in metrics.items()}
    return "\n".join(
        [
            *_front_matter(label, exported, metrics),
            f"# {label} on {task}",
            f"\nTrained by federated learning: {last['round']:,} rounds of {label}.",
            f"Exported by [fedsolve](https://github.com/fedsolve/fedsolve) {__version__}.",
            "\n## Model\n",
            *_table(("", ""), size),
            f"\n```python\n{exported.use.format(file=file)}\n```",
            "\n## Method and settings\n",
            *_table(("setting", "value"), {"method": label, "rounds": last["round"], **settings}),
            "\n## Data\n",
            *_table(("", "number"), data),
            f"\n## Metrics after round {last['round']:,}\n",
            *_table(("metric", "value"), shown),
            "\n## Privacy\n",
            _privacy(history),
            "\n## Licence\n",
            "To be chosen by the owner of the model, here and as `license` in the first lines.\n",
        ]
    )


def _front_matter(label: str, exported: Exported, metrics: Iterable[str]) -> list[str]:
    # texts are quoted as in JSON, which YAML reads
    tags = ["federated-learning", re.sub(r"[^a-z0-9]+", "-", label.lower()).strip("-")]
    kinds = dict.fromkeys(name.rpartition("_")[2] for name in metrics if name.startswith(("test_", "train_")))
    return [
        "---",
        "license:  # to be chosen by the owner of the model",
        f"library_name: {json.dumps(exported.library)}",
        "tags:",
        *(f"- {json.dumps(tag)}" for tag in tags if tag),
        "metrics:",
        *(f"- {json.dumps(kind)}" for kind in kinds if kind in ("accuracy", "loss")),
        "---\n",
    ]


def _epsilon(history: History) -> float | None:
    spent = np.asarray(history.rounds.get("epsilon", ()), float)
    return None if not len(spent) or np.isnan(spent).all() else float(np.nanmax(spent))


def _privacy(history: History) -> str:
    spent = _epsilon(history)
    if spent is None:
        return "No epsilon was recorded: the training promised no differential privacy."
    text = (
        f"epsilon = {spent:.4g} after all rounds, at the method's delta. It does not cover the metrics above."
    )
    if history.task == FEDERATION:
        return text
    return f"{text} In a simulation the noise follows from the seed: epsilon is that of the same run on a federation."


def _table(head: tuple[str, str], rows: Mapping[str, Any]) -> list[str]:
    if not rows:
        return ["Not recorded."]
    lines = [f"| {_cell(name)} | {_cell(value)} |" for name, value in rows.items()]
    return [f"| {head[0]} | {head[1]} |", "|---|---|", *lines]


def _cell(value: Any) -> str:
    if isinstance(value, float | np.floating):
        return f"{value:.6g}"
    return _words(str(value)).replace("|", "\\|")


def _words(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}..."


# A trained PyTorch module as an ONNX graph, which onnxruntime must compute as PyTorch does before it is written.


TOLERANCE = 1e-5
"""How far the outputs of the graph may be from the module's, of 1 or of the largest output if that is more."""
_CHECKED_ROWS = 2048  # of the check: enough for every branch, and a large module is done in seconds
_TRACED_ROWS = (
    7  # rows that the graph is traced with: not 1, which PyTorch takes for a constant, and no usual size
)


def as_onnx(result: Result, folder: Path, rows: Any) -> Exported:
    for package in ("torch", "onnx", "onnxscript", "onnxruntime"):
        require(package, "--to onnx needs", "onnx,torch")
    module = trained_module(result, folder).cpu().eval()
    if halves := [p for p in module.state_dict().values() if p.is_floating_point() and p.element_size() == 2]:
        module = module.float()  # onnxruntime computes little in 16 bits, and nothing is rounded so
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
        "ONNX, a graph: any number of rows to the model's outputs (of a classification: scores)"
        + ", in float32" * bool(halves),
        "onnx",
        sum(p.numel() for p in module.parameters()),
        sum(b.numel() for b in module.buffers()),
        'import onnxruntime\n\nsession = onnxruntime.InferenceSession("{file}")\n'
        "outputs = session.run(None, {{session.get_inputs()[0].name: x}})",
        {"largest difference from PyTorch": difference, "rows of this check": count},
    )


def _tensors(module: nn.Module, result: Result, rows: Any) -> Any:
    from fedsolve.pytorch.translation.arrays import to_tensor

    shapes = getattr(result.inference, "rows", None)
    arrays, _ = as_inputs(rows, shapes, result.history.task)
    dtype = next(p.dtype for p in module.parameters() if p.is_floating_point())
    return jax.tree.map(lambda a: to_tensor(a[:_CHECKED_ROWS], dtype), arrays)


def _graph(module: nn.Module, inputs: Any) -> bytes:
    # without the places of the code that it was made from
    import torch
    from torch.utils import _pytree as pytree

    def repeated(x: torch.Tensor) -> torch.Tensor:
        return x[torch.arange(_TRACED_ROWS) % len(x)]

    sample = pytree.tree_map(repeated, inputs)
    shapes = (pytree.tree_map(lambda _: {0: torch.export.Dim("rows", min=1)}, sample),)
    try:
        with _quiet():
            program = torch.onnx.export(module, (sample,), dynamo=True, dynamic_shapes=shapes, verbose=False)
        assert program is not None
        proto = program.model_proto
    except Exception as error:  # of the exporter, and of the module itself: any
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = next((line for line in reversed(lines) if "Error" in line), lines[0] if lines else "")
        raise InvalidInput(
            f"{type(module).__name__} has no ONNX graph: {type(error).__name__}: {reason[:200]}; give --to torch"
        ) from None
    _clear_paths(proto)
    try:
        return proto.SerializeToString()
    except ValueError:
        raise InvalidInput(
            f"{type(module).__name__} is larger than the 2 GB of an ONNX file: give --to torch"
        ) from None


def _clear_paths(message: Any) -> None:
    # they name files of this machine
    for entry, value in message.ListFields():
        if entry.name in ("doc_string", "metadata_props"):
            message.ClearField(entry.name)
        elif entry.message_type is not None:
            for inside in (value,) if hasattr(value, "ListFields") else value:
                _clear_paths(inside)


def _difference(module: nn.Module, content: bytes, inputs: Any) -> tuple[float, float, int]:
    import torch
    from torch.utils import _pytree as pytree

    leaves = pytree.tree_leaves(inputs)
    with torch.no_grad():
        wanted = [x.numpy() for x in pytree.tree_leaves(module(inputs)) if isinstance(x, torch.Tensor)]
    try:
        session = importlib.import_module("onnxruntime").InferenceSession(
            content, providers=["CPUExecutionProvider"]
        )
        given = {taken.name: x.numpy() for taken, x in zip(session.get_inputs(), leaves, strict=True)}
        computed: list[Any] = [*session.run(None, given)]
    except Exception as error:  # of onnxruntime: any
        raise InvalidInput(
            f"onnxruntime cannot run the ONNX graph of {type(module).__name__}: {first_line(error)}; give --to torch"
        ) from None
    if [x.shape for x in computed] != [x.shape for x in wanted]:
        return float("inf"), 0.0, len(leaves[0])
    apart = [np.max(np.abs(x.astype(float) - y), initial=0.0) for x, y in zip(computed, wanted, strict=True)]
    largest = max(float(np.max(np.abs(x), initial=0.0)) for x in wanted)
    return float(max(apart)), largest, len(leaves[0])


@contextmanager
def _quiet() -> Iterator[None]:
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
