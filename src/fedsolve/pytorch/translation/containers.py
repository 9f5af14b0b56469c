"""Containers of a user's own in which a module gives its tensors: dataclasses, and dictionaries of another type."""

from __future__ import annotations

from dataclasses import is_dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree


def known(outputs: Any) -> Any:
    """Outputs as they are; PyTorch knows from then on how to look into their container."""
    kind = type(outputs)
    if kind in pytree.SUPPORTED_NODES:
        return outputs
    if is_dataclass(kind):
        torch.export.register_dataclass(kind)
    elif isinstance(outputs, dict):
        pytree.register_pytree_node(
            kind,
            lambda d: (list(d.values()), tuple(d)),
            lambda values, keys: kind(dict(zip(keys, values, strict=True))),
            flatten_with_keys_fn=_with_keys,
        )
    return outputs


def _with_keys(own: Any) -> tuple[list[tuple[Any, Any]], Any]:
    return [(pytree.MappingKey(key), value) for key, value in own.items()], tuple(own)
