"""Items of a data set put together to a batch, and why they cannot be."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Number
from typing import Any

import numpy as np
import torch.utils._pytree as pytree
from torch import Tensor
from torch.utils.data import default_collate

from fedsolve.core.errors import InvalidInput, of_type


def collated(who: str, items: Sequence[Any]) -> Any:
    """The items of a data set, which errors call `who`, as one batch.

    Raises:
        InvalidInput: items of different shapes, or of something else; the first is named.
    """
    try:
        return default_collate(list(items))
    except Exception as error:  # whatever a user's class raises too
        raise InvalidInput(
            f"{who}: {_first_odd(items) or f'its items make no batch ({type(error).__name__})'}"
        ) from error


def no_batch(error: Exception) -> InvalidInput | None:
    """Why a loader's own collating failed; None if something else did."""
    text = str(error)
    if "stack expects each tensor to be equal size" not in text and "default_collate: " not in text:
        return None
    last = text.strip().splitlines()[-1]
    return InvalidInput(
        f"the loader cannot put the items of a batch together ({last}): give all one shape and type in the dataset's "
        "transform, or give the DataLoader a collate_fn that pads them"
    )


def _first_odd(items: Sequence[Any]) -> str:
    first = pytree.tree_leaves(items[0])
    for i, item in enumerate(items):
        parts = pytree.tree_leaves(item)
        for part in parts:
            if not isinstance(part, Tensor | np.ndarray | np.generic | Number | str | bytes):
                return f"item {i} holds {of_type(part)}: make tensors in the dataset's transform, such as ToTensor()"
        for shape, wanted in zip(map(np.shape, parts), map(np.shape, first), strict=False):
            if shape != wanted:
                return (
                    f"item {i} has a part of shape {tuple(shape)}, item 0 {tuple(wanted)}: pad or crop them to one "
                    "shape in the dataset's transform"
                )
    return ""
