"""The outputs of a PyTorch module in evaluation mode, as NumPy arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from fedsolve.core.errors import InvalidInput
from fedsolve.tasks.inputs import check_width

if TYPE_CHECKING:
    from torch import nn


def in_batches(
    module: nn.Module, inputs: Any, count: int, labels: Callable[[Any], Any] | None, size: int
) -> Any:
    # module: put into evaluation mode; inputs: a pytree of arrays (count, ...), given as one argument;
    # labels: outputs -> labels, None for the outputs in the structure in which the module gives them. Of an
    # output that is one number for a batch, the mean over the rows
    import torch
    from torch.utils import _pytree as pytree

    from fedsolve.pytorch.batch_losses import seed_all
    from fedsolve.pytorch.translation.arrays import to_tensor

    module.eval()
    first = next(module.parameters())
    check_width(inputs, first.dtype == torch.float64, "f")
    parts = []
    with torch.no_grad(), seed_all(0):  # of a module that draws in evaluation too
        for start in range(0, count, size):
            batch = jax.tree.map(
                lambda a, s=start: to_tensor(a[s : s + size], first.dtype).to(first.device), inputs
            )
            try:
                given = module(batch)
            except Exception as error:
                shapes = ", ".join(str(tuple(a.shape[1:])) for a in jax.tree.leaves(inputs))
                line = (str(error).splitlines() or [""])[0]
                raise InvalidInput(
                    f"{type(module).__name__} cannot take inputs of shape {shapes}: {type(error).__name__}: {line}"
                ) from error
            outputs = pytree.tree_map(lambda t: t.cpu().numpy(), given)
            parts.append(outputs if labels is None else labels(outputs))
    flat = [pytree.tree_leaves(part) for part in parts]
    sizes = [min(size, count - start) for start in range(0, count, size)]
    joined = [
        np.concatenate(leaves)
        if leaves[0].ndim
        else np.average(leaves, weights=sizes).astype(leaves[0].dtype)
        for leaves in zip(*flat, strict=True)
    ]
    return pytree.tree_unflatten(joined, pytree.tree_structure(parts[0]))


def likeliest(outputs: Any) -> np.ndarray:
    # (n, classes, ...) -> (n, ...), the first of equal ones
    return np.argmax(outputs, axis=1).astype(np.int32)
