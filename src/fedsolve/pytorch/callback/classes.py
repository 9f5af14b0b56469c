"""Whether a PyTorch module tells classes apart: then accuracy is measured though nobody asks for it."""

from __future__ import annotations

from typing import Any

import torch


def are_classes(outputs: Any, y: Any) -> bool:
    """Whether targets are classes, one for each row of outputs of shape (n, classes, ...)."""
    return (
        isinstance(outputs, torch.Tensor)
        and isinstance(y, torch.Tensor)
        and y.dtype == torch.long
        and outputs.ndim >= 2
        and y.shape == (outputs.shape[0], *outputs.shape[2:])
    )
