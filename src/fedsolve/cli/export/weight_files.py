"""A trained model as the content of a safetensors file, or of a PyTorch file with a state_dict."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedsolve.config.references import failed, named_object
from fedsolve.core.errors import FedsolveError, InvalidInput, of_type, require
from fedsolve.engine.results import Result
from fedsolve.engine.stored_task import StoredTask
from fedsolve.results.record_files import leaves_by_path

if TYPE_CHECKING:
    from torch import nn

_KINDS = "--to torch and onnx support PyTorch modules, --to safetensors supports every model"


@dataclass(frozen=True)
class Exported:
    """A model's file before it is written.

    Attributes:
        content: of the file.
        kind: its format, in words.
        library: the card's `library_name`.
        parameters, buffers: how many numbers each are.
        use: a program of a few lines that reads the file, where `{file}` is its name.
        check: what was compared, by name; empty if nothing was.
    """

    content: bytes
    kind: str
    library: str
    parameters: int
    buffers: int
    use: str
    check: Mapping[str, float | int] = field(default_factory=dict)


def as_safetensors(result: Result) -> Exported:
    """Parameters and buffers by their names, such as `0.weight`; buffers as `buffers.NAME` if a name is in both."""
    from safetensors.numpy import save

    params, buffers = _arrays(result.params), _arrays(result.buffers)
    prefix = "buffers." if params.keys() & buffers.keys() else ""
    named = params | {prefix + name: array for name, array in buffers.items()}
    return Exported(
        save({name: np.ascontiguousarray(array) for name, array in named.items()}),
        "safetensors, arrays by name",
        "safetensors",
        _size(params),
        _size(buffers),
        'from safetensors.numpy import load_file\n\narrays = load_file("{file}")',
    )


def as_state_dict(result: Result, folder: Path) -> Exported:
    """What the module's `load_state_dict` accepts, read again and compared with the stored model.

    Raises:
        InvalidInput: no module is known, or what is read again is not the stored model.
    """
    import torch

    module = trained_module(result, folder)
    content = io.BytesIO()
    torch.save({name: _as_saved(value) for name, value in module.state_dict().items()}, content)
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
    """The PyTorch module with the trained weights.

    Raises:
        InvalidInput: the model is of no PyTorch module, or its code is not known.
    """
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
    """The PyTorch module that the user names: an object, a class, or a function that returns it.

    Raises:
        InvalidInput: PyTorch is not installed, there is no such name, or it gives no module.
    """
    require("torch", "--module needs", "torch", "PyTorch")
    from torch import nn

    module = named_object("module", reference)
    if callable(module) and not isinstance(module, nn.Module):
        try:
            module = module()
        except FedsolveError:
            raise
        except (Exception, SystemExit) as error:
            raise failed(f"module {reference}", error) from None
    if not isinstance(module, nn.Module):
        raise InvalidInput(f"module '{reference}' is {of_type(module)}: name a torch.nn.Module")
    return module


def _arrays(tree: Any) -> dict[str, np.ndarray]:
    return {} if tree is None else {n: np.asarray(leaf) for n, leaf in leaves_by_path(tree).items()}


def _size(arrays: Mapping[str, np.ndarray]) -> int:
    return sum(array.size for array in arrays.values())


def _as_saved(value: Any) -> Any:
    """A tensor of its own storage on the CPU; what a module keeps besides, as it is."""
    return value.detach().cpu().clone() if hasattr(value, "detach") else value


def _check_state_dict(content: io.BytesIO, module: nn.Module, stored: Mapping[str, np.ndarray]) -> None:
    """Raise `InvalidInput` unless the file gives a module of the same layers the stored numbers, in its types."""
    import torch

    from fedsolve.pytorch.translation.arrays import as_tensor, copied

    content.seek(0)
    try:
        read = copied(module)
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
