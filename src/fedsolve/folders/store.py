"""Checkpoints: a pytree and a small manifest in one safetensors file, replaced atomically and with checksums.

The old file stays until the new one is on the disk, so a run killed at any moment leaves a whole checkpoint.
`OlderCheckpoints` keeps that of the save before, for the day on which the newest cannot be read, and two older ones,
for the day on which a model turns out to be spoiled. An older one has the rounds done in its name, and is a second name
of the same file: it costs no writing.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedsolve.core.errors import InvalidInput
from fedsolve.folders.files import errors_of_writing
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


def check_names(wanted: Collection[str], present: Collection[str], where: str, why: str) -> None:
    """Raise `InvalidInput` if a file lacks an array or has an unknown one: the first is named, `where` and `why`."""
    for name in sorted(set(wanted) ^ set(present)):
        holder = "has no" if name in wanted else "has an unknown"
        raise InvalidInput(f"{where} {holder} {name}: {why}")


def _on_device(array: np.ndarray) -> jax.Array:
    """A copy by JAX alone, which would cut types of 64 bits where it has them switched off."""
    return jax.device_put(array, may_alias=False)


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path) or "value"


INTACT = "the checkpoint is intact: free space and resume"
"""What errors say of a file that cannot be written, beside the checkpoint."""
_NAME = "checkpoint-round-"


class OlderCheckpoints:
    """Those of one folder.

    Attributes:
        source: the checkpoint that is gone on from: the newest, unless an older one had to be taken.
        notice: one line if an older one was taken, else "".
    """

    def __init__(self, newest: Path, previous: str) -> None:
        self._newest, self._previous = newest, newest.with_name(previous)
        self._left = [self._previous, *self.by_round().values()]
        self.source, self.notice = newest, ""

    @property
    def any_exists(self) -> bool:
        """Whether there is one that can be gone on from."""
        return any(path.exists() for path in self._left)

    def by_round(self) -> dict[int, Path]:
        """The two older ones by their rounds done, the newest first."""
        by_name = {
            path.stem.removeprefix(_NAME): path for path in self._newest.parent.glob(f"{_NAME}*.safetensors")
        }
        return {
            int(n): by_name[n] for n in sorted((n for n in by_name if n.isdecimal()), key=int, reverse=True)
        }

    def fall_back(self, error: InvalidInput, read: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
        """The manifest of the next older one that `read` takes; `error` if there is none."""
        while self._left:
            path = self._left.pop(0)
            with contextlib.suppress(InvalidInput):
                manifest = read(path)
                which = "the checkpoint before it" if path == self._previous else path.name
                self.notice = f"{error}; {which} is taken, of round {manifest['round']}"
                self.source = path
                return manifest
        raise error

    def add(self, done: int | None) -> None:
        """The newest, about to be replaced, becomes the one before, and stays by its rounds done, unless None.

        Raises:
            InvalidInput: the folder cannot be written.
        """
        # else the newest is the one that could not be read
        if self.source == self._newest and self._newest.exists():
            _link(self._newest, self._previous)
            if done is not None:
                _link(self._newest, self._newest.with_name(f"{_NAME}{done}.safetensors"))
                for path in list(self.by_round().values())[2:]:
                    path.unlink(missing_ok=True)

    def replaced(self, done: int) -> None:
        """The newest was written, of so many rounds; those that have more are of before the run went back, and go."""
        for rounds, path in self.by_round().items():
            if rounds > done:
                path.unlink(missing_ok=True)
        self.source = self._newest

    def how_to_go_back(self, round: int) -> str:
        """How a run is gone on with from before an update that was used in a round, counted from 1."""
        older = self.by_round()
        good = next((path for done, path in older.items() if done < round), None)
        if good is None:
            return "no checkpoint is older: start again without that client"
        newer = [self._newest, self._previous, *(path for done, path in older.items() if done >= round)]
        names = ", ".join(path.name for path in newer)
        return f"to go on from {good.name}, which is older, remove {names} and resume without that client"


def _link(source: Path, target: Path) -> None:
    """Give a file a second name; a file that has this name goes."""
    with errors_of_writing(target, INTACT):
        target.unlink(missing_ok=True)
        try:
            os.link(source, target)
        except OSError:  # a file system without links
            shutil.copyfile(source, target)
