"""A loss on a batch in which nothing counts, such as one whose targets are all ignored: 0 / 0 in PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor

_ANY = 0.5  # outputs at which losses have values: logits, probabilities, numbers


def value_or_zero(function: Callable[[Any, Any], Tensor], outputs: Any, targets: Any) -> Tensor:
    """The value of a loss; 0, with a gradient of 0, where nothing in the batch counts.

    That is so where the value is NaN whatever the outputs: for these, which are finite, and for others.

    Args:
        function: (outputs, targets) -> scalar.
        outputs: of the module, a pytree of tensors.
        targets: of the batch.
    """
    value = function(outputs, targets)
    tensors = [t for t in pytree.tree_leaves(outputs) if isinstance(t, Tensor) and t.is_floating_point()]
    if (
        not isinstance(value, Tensor)
        or value.ndim
        or not torch.isnan(value)
        or not all(torch.isfinite(t).all() for t in tensors)
    ):
        return value
    with torch.no_grad():
        others = pytree.tree_map_only(
            Tensor, lambda t: torch.full_like(t, _ANY) if t.is_floating_point() else t, outputs
        )
        if not torch.isnan(function(others, targets)):
            return value
    return torch.stack([t.sum() for t in tensors]).sum() * 0
