"""Checkpoints: a pytree and a small manifest in one safetensors file, replaced atomically and with checksums.

The old file stays until the new one is on the disk, so a run killed at any moment leaves a whole checkpoint.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedsolve.core.errors import InvalidInput
from fedsolve.folders.sealed_arrays import mapped_arrays, read_header, write_arrays

_KIND = "checkpoint"


def save_tree(path: Path, tree: Any, manifest: dict[str, Any], *, private: bool = False) -> None:
    """Write a pytree of arrays and a JSON manifest as one file, `private` for its owner's eyes alone.

    Raises:
        InvalidInput: the disk is full, or the folder cannot be written; what was saved before is intact.
    """
    # arrays of NumPy stay what they are: JAX would cut 64-bit types where it has them switched off
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    arrays = {
        _name(p): np.asarray(x if isinstance(x, np.ndarray | np.generic) else jnp.asarray(x), order="C")
        for p, x in leaves
    }
    write_arrays(path, arrays, manifest, private=private)


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of a checkpoint.

    Raises:
        InvalidInput: the file is missing, cut short, too long, damaged in its header or not a checkpoint of fedsolve.
    """
    return read_header(path, _KIND).manifest


def load_tree(path: Path, like: Any) -> Any:
    """The pytree in a checkpoint, with the structure, shapes and types of `like`, arrays or shapes of such.

    The file is mapped, not read: each array is in memory once.

    Raises:
        InvalidInput: the file is corrupt, or holds other parameters than `like` (the first is named).
    """
    _, arrays = mapped_arrays(path, _KIND)
    wanted = {_name(p): x for p, x in jax.tree_util.tree_leaves_with_path(like)}
    check_names(wanted, arrays, f"the checkpoint {path}", "it belongs to another method or model")
    for name, x in wanted.items():
        if arrays[name].shape != x.shape or arrays[name].dtype != np.dtype(x.dtype):
            raise InvalidInput(
                f"{name} has shape {arrays[name].shape} {arrays[name].dtype} in the checkpoint {path}, "
                f"here {x.shape} {x.dtype}: the model has changed"
            )
    leaves = [
        np.array(arrays[n]) if isinstance(x, np.ndarray | np.generic) else _on_device(arrays[n])
        for n, x in wanted.items()
    ]
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def check_names(wanted: Collection[str], found: Collection[str], where: str, why: str) -> None:
    """Raise `InvalidInput` if a file lacks an array or has an unknown one: the first is named, `where` and `why`."""
    for name in sorted(set(wanted) ^ set(found)):
        holder = "has no" if name in wanted else "has an unknown"
        raise InvalidInput(f"{where} {holder} {name}: {why}")


def _on_device(array: np.ndarray) -> jax.Array:
    """A copy by JAX alone, which would cut types of 64 bits where it has them switched off."""
    return jax.device_put(array, may_alias=False)


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path) or "value"
