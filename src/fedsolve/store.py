"""Checkpoints: a pytree and a small manifest in one safetensors file, replaced atomically.

The old file stays until the new one is on the disk, so a run killed at any moment leaves a whole checkpoint.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError
from safetensors.flax import save_file
from safetensors.numpy import load_file

from fedsolve.errors import InvalidInput
from fedsolve.files import replace_atomically

_MANIFEST = "fedsolve"


def save_tree(path: Path, tree: Any, manifest: dict[str, Any]) -> None:
    """Write a pytree of arrays and a JSON manifest as one file."""
    # arrays of NumPy stay what they are: JAX would cut 64-bit types where it has them switched off
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    arrays: dict[str, Any] = {
        _name(p): np.asarray(x, order="C") if isinstance(x, np.ndarray | np.generic) else jnp.asarray(x)
        for p, x in leaves
    }
    metadata = {_MANIFEST: json.dumps(manifest)}
    try:
        replace_atomically(path, lambda new: save_file(arrays, new, metadata))
    except SafetensorError as error:  # its words for a full disk, among others
        raise InvalidInput(f"cannot write {path}: {error}; what was saved before is intact") from None


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of a checkpoint.

    Raises:
        InvalidInput: the file is missing, cut short or not a checkpoint of fedsolve.
    """
    try:
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > 2**30:
                raise ValueError("header too long")
            header = json.loads(file.read(length))
        return json.loads(header["__metadata__"][_MANIFEST])
    except FileNotFoundError:
        raise InvalidInput(f"no checkpoint at {path}: start the run without resuming") from None
    except OSError as error:
        raise InvalidInput(f"cannot read the checkpoint {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise InvalidInput(
            f"{path} is not a checkpoint of fedsolve, or is corrupt: start a new run"
        ) from None


def load_tree(path: Path, like: Any) -> Any:
    """The pytree in a checkpoint, with the structure, shapes and types of `like`.

    Raises:
        InvalidInput: the file is corrupt, or holds other parameters than `like` (the first is named).
    """
    try:
        arrays = load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        raise InvalidInput(f"the checkpoint {path} is corrupt ({error}): start a new run") from None
    wanted = {_name(p): x for p, x in jax.tree_util.tree_leaves_with_path(like)}
    for name in sorted(set(wanted) ^ set(arrays)):
        holder = "has no" if name in wanted else "has an unknown"
        raise InvalidInput(f"the checkpoint {path} {holder} {name}: it belongs to another method or model")
    for name, x in wanted.items():
        if arrays[name].shape != x.shape or arrays[name].dtype != np.dtype(x.dtype):
            raise InvalidInput(
                f"{name} has shape {arrays[name].shape} {arrays[name].dtype} in the checkpoint {path}, "
                f"here {x.shape} {x.dtype}: the model has changed"
            )
    leaves = [
        arrays[n] if isinstance(x, np.ndarray | np.generic) else jnp.asarray(arrays[n])
        for n, x in wanted.items()
    ]
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder for one run; the lock ends with the process, however it ends.

    Raises:
        InvalidInput: the folder cannot be written, or another process holds it.
    """
    import fcntl

    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = open(folder / ".lock", "a")  # noqa: SIM115 - closed below, after the lock's work
    except OSError as error:
        raise InvalidInput(f"cannot write to {folder}: {error.strerror}; choose another folder") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InvalidInput(
                f"{folder} is in use by another run: wait for it or choose another folder"
            ) from None
        yield


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path) or "value"
