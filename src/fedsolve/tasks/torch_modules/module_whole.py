"""Metrics of a PyTorch module that are no means over examples: computed by PyTorch, on the outputs of whole sets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from fedsolve.tasks.losses.sums import Whole

if TYPE_CHECKING:
    from fedsolve.pytorch.callback.torch_callback import Outputs
    from fedsolve.pytorch.translation.model import Model


@dataclass(frozen=True)
class Gathered:
    """A module's outputs and the targets, in evaluation mode, each with a row for each example.

    Attributes:
        module: the module, translated, or behind the compiled program.
    """

    module: Model | Outputs
    asks = ("buffers",)

    def __call__(self, params: Any, batch: Any, buffers: Any = None) -> tuple[tuple[Any, ...], Any]:
        """The outputs, flat, then the targets; and the buffers as they are."""
        if hasattr(self.module, "apply"):
            outputs = self.module.apply(params, buffers or self.module.buffers, batch[0], None)[0]  # pyright: ignore
        else:
            outputs = self.module(params, batch, buffers)  # pyright: ignore[reportArgumentType]
        flat = outputs if isinstance(outputs, tuple) else (outputs,)
        return (*flat, *jax.tree.leaves(batch[1])), buffers


@dataclass(frozen=True)
class Score:
    """A metric of PyTorch on NumPy arrays.

    Attributes:
        function: (outputs, targets) -> scalar tensor.
        outputs, targets: how flat arrays are put together to what it takes.
        number: of outputs.
    """

    function: Callable[[Any, Any], Any]
    outputs: Any
    targets: Any
    number: int

    def __call__(self, *arrays: np.ndarray) -> float:
        """The value of a set."""
        import torch

        from fedsolve.pytorch.translation.dtypes import of_data

        tensors = [of_data(a) for a in arrays]
        with torch.no_grad():
            given = self.outputs(tensors[: self.number]), self.targets(tensors[self.number :])
            return float(self.function(*given).double().mean())


def on_whole_sets(
    module: Model | Outputs,
    function: Callable[[Any, Any], Any],
    outputs: Any,
    targets: Any,
    wrap: Callable[[Any], Any],
) -> Whole:
    """A metric of whole sets.

    Args:
        module: the module.
        function: (outputs, targets) -> scalar tensor.
        outputs, targets: of an example batch, as tensors.
        wrap: puts a function of the whole model in place of one of the leaves that train.
    """
    from torch.utils import _pytree as pytree

    leaves, form = pytree.tree_flatten(outputs)
    score = Score(
        function, lambda t: pytree.tree_unflatten(t, form), jax.tree.structure(targets).unflatten, len(leaves)
    )
    return Whole(wrap(Gathered(module)), score)
