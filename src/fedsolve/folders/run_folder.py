"""The folder of a run, a sweep or a deployment: held for one process, and gone on with only by what began it.

All three keep a checkpoint, a file that `store` writes, and in its manifest the identity of what wrote it: a table of
all that decides a number, as JSON gives it back. `versions` is among its entries where results are the same to the bit
only under one version of fedsolve. A folder that is held is in use for any other process; one that has a checkpoint is
not begun anew; one with another identity is not gone on with, and the first entry that differs is named.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedsolve.core.errors import InvalidInput, trim_common_prefix
from fedsolve.folders.files import INTACT, FolderLock, errors_of_writing, locked
from fedsolve.folders.sealed import mapped_arrays, read_header, write_arrays

# Checkpoints: a pytree and a small manifest in one safetensors file, replaced atomically and with checksums.
#
# The old file stays until the new one is on the disk, so a run killed at any moment leaves a whole checkpoint.
# `OlderCheckpoints` keeps that of the save before, for the day on which the newest cannot be read, and two older ones,
# for the day on which a model turns out to be spoiled. An older one has the rounds done in its name, and is a second
# name of the same file: it costs no writing.

_KIND = "checkpoint"


def save_tree(path: Path, tree: Any, manifest: dict[str, Any], *, private: bool = False) -> None:
    """Write a pytree of arrays and a JSON manifest as one file, `private` for its owner's eyes alone."""
    # arrays of NumPy stay what they are: JAX would cut 64-bit types where it has them switched off
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    arrays = {
        _name(p): np.asarray(x if isinstance(x, np.ndarray | np.generic) else jnp.asarray(x), order="C")
        for p, x in leaves
    }
    write_arrays(path, arrays, manifest, private=private)


def read_manifest(path: Path) -> dict[str, Any]:
    return read_header(path, _KIND).manifest


def load_tree(path: Path, like: Any) -> Any:
    """The pytree in a checkpoint, with the structure, shapes and types of `like`, arrays or shapes of such."""
    # The file is mapped, not read: each array is in memory once.
    _, arrays = mapped_arrays(path, _KIND)
    # names first: a missing or an unknown array says more than a shape that differs
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
    # a copy by JAX alone, which would cut types of 64 bits where it has them switched off
    return jax.device_put(array, may_alias=False)


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path) or "value"


_NAME = "checkpoint-round-"


class OlderCheckpoints:
    """Those of one folder; `source` is gone on from: the newest, unless an older one had to be taken."""

    # `notice` is one line if it was, else "".

    def __init__(self, newest: Path, previous: str) -> None:
        self._newest, self._previous = newest, newest.with_name(previous)
        self._left = [self._previous, *self.by_round().values()]
        self.source, self.notice = newest, ""

    @property
    def any_exists(self) -> bool:
        return any(path.exists() for path in self._left)

    def by_round(self) -> dict[int, Path]:
        by_name = {
            path.stem.removeprefix(_NAME): path for path in self._newest.parent.glob(f"{_NAME}*.safetensors")
        }
        return {
            int(n): by_name[n] for n in sorted((n for n in by_name if n.isdecimal()), key=int, reverse=True)
        }

    def fall_back(self, error: InvalidInput, read: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
        """The manifest of the next older checkpoint that `read` takes; raises `error` if there is none."""
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
        # unless the newest is the one that could not be read
        if self.source == self._newest and self._newest.exists():
            _link(self._newest, self._previous)
            if done is not None:
                _link(self._newest, self._newest.with_name(f"{_NAME}{done}.safetensors"))
                for path in list(self.by_round().values())[2:]:
                    path.unlink(missing_ok=True)

    def replaced(self, done: int) -> None:
        # those that have more rounds are of before the run went back, and go
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
    with errors_of_writing(target, INTACT):
        target.unlink(missing_ok=True)
        try:
            os.link(source, target)
        except OSError:  # a file system without links
            shutil.copyfile(source, target)


VERSIONS = "versions"
_FEDSOLVE = re.compile(r"\bfedsolve ([^\s,]+)")


def first_difference(
    there: Mapping[str, Any], here: Mapping[str, Any], free: Collection[str] = ()
) -> str | None:
    """The first entry of `here` that is another in `there`, or missing; None if there is none but those of `free`.

    >>> first_difference({"seed": 0, "rounds": 9}, {"seed": 1, "rounds": 8})
    'seed'
    """
    return next((name for name, value in here.items() if there.get(name) != value and name not in free), None)


def check_identity(
    path: Path, there: Mapping[str, Any], here: Mapping[str, Any], free: Collection[str] = ()
) -> None:
    """Raise `InvalidInput` if a checkpoint's identity is another; another version of fedsolve comes before all else.

    `there` is that of the checkpoint, `here` that of the run which would go on from it; entries in `free` may differ.
    """
    # any other entry may differ just because the version does
    then, now = _version(there), _version(here)
    if then is not None and then != now:
        raise InvalidInput(
            f"the checkpoint {path} was written by fedsolve {then}, and this is fedsolve {now}, whose results may "
            f"differ: resume it with fedsolve {then}, or start again in another folder"
        )
    name = first_difference(there, here, free)
    if name is not None:
        before, now = trim_common_prefix(str(there.get(name)), str(here[name]))
        raise InvalidInput(
            f"the checkpoint {path} has {name} = {before}, this run {now}: "
            "resume as it was, or start again in another folder"
        )


def _version(identity: Mapping[str, Any]) -> str | None:
    # None where its results are those of any
    match = _FEDSOLVE.search(str(identity.get(VERSIONS, "")))
    return None if match is None else match[1]


_SECONDS_BETWEEN = 2.0
_DEVICES = ("devices", "mesh")
_TIMES_BETWEEN = 20  # as long as a saving takes: at most a twentieth of the time goes to it


@dataclass(frozen=True)
class FolderKind:
    """What a folder holds: what errors call it, its checkpoint's file, and that of the one before, '' if none is kept.

    It is resumed by an option, where there is but one way.
    """

    name: str
    file: str
    previous: str = ""
    option: str = ""


RUN = FolderKind("run", "checkpoint.safetensors")
SWEEP = FolderKind("sweep", "lanes.safetensors")  # as earlier versions called it, whose folders are resumed
DEPLOYMENT = FolderKind("run", RUN.file, "checkpoint-previous.safetensors", "resume=true")


@dataclass
class RunFolder:
    """A folder that is held for one run, sweep or deployment; with `resume` what it holds is gone on with."""

    # The identity is all that decides its numbers, as JSON gives it back.

    hold: FolderLock
    kind: FolderKind
    identity: Mapping[str, Any]
    resume: bool
    _last: float = field(default_factory=time.monotonic)
    _took: float = 0.0

    @classmethod
    @contextlib.contextmanager
    def at(
        cls, folder: Path, kind: FolderKind, identity: Mapping[str, Any], resume: bool
    ) -> Iterator[RunFolder]:
        """Hold a folder, which is made if there is none."""
        with locked(folder) as hold:
            # also of the one before: a kill may have left that alone
            checkpoints = [folder / name for name in (kind.file, kind.previous) if name]
            if not resume and any(path.exists() for path in checkpoints):
                raise occupied_error(folder, kind.name, f" ({kind.option})" if kind.option else "")
            yield cls(hold, kind, identity, resume)

    @classmethod
    @contextlib.contextmanager
    def if_given(
        cls, out: str | Path | None, kind: FolderKind, identity: Mapping[str, Any], resume: bool
    ) -> Iterator[RunFolder | None]:
        # None where no folder is given, and nothing is kept
        if out is not None:
            with cls.at(Path(out), kind, identity, resume) as folder:
                yield folder
        elif resume:
            raise InvalidInput(f"resume needs the folder of the {kind.name}: give out")
        else:
            yield None

    @classmethod
    def seen(cls, folder: Path, kind: FolderKind, identity: Mapping[str, Any]) -> RunFolder:
        """One to resume from that another process holds: it is read alone."""
        return cls(FolderLock(folder, None), kind, identity, resume=True)

    @property
    def path(self) -> Path:
        return self.hold.folder / self.kind.file

    @property
    def due(self) -> bool:
        # the time since the last saving is to be 20 times what it took
        return time.monotonic() - self._last > max(_SECONDS_BETWEEN, _TIMES_BETWEEN * self._took)

    def manifest(self) -> dict[str, Any] | None:
        # None where nothing is gone on with
        if not self.resume:
            return None
        manifest = read_manifest(self.path)
        self.check_same(self.path, manifest["identity"])
        return manifest

    def check_same(self, path: Path, there: Mapping[str, Any], free: Collection[str] = ()) -> None:
        # the devices may be others, and with them the chunk
        free = (*free, *_DEVICES, "chunk") if self.has_moved(there) else free
        check_identity(path, there, self.identity, free)

    def has_moved(self, there: Mapping[str, Any]) -> bool:
        """Whether a checkpoint was computed on other devices, which give the same results to rounding."""
        return any(there.get(name) != self.identity.get(name) for name in _DEVICES)

    def save(self, tree: Any, manifest: Mapping[str, Any]) -> None:
        self.hold.check()
        begun = time.monotonic()
        save_tree(self.path, tree, {"identity": dict(self.identity), **manifest})
        self._last = time.monotonic()
        self._took = self._last - begun


def how_to_resume(folder: object, stopped: str) -> str:
    if folder is None:
        return f"{stopped}; nothing was saved: give out=FOLDER to resume"
    return f"{stopped}; saved in {folder}: go on from there with resume=True"


def occupied_error(folder: Path, kind: str, how: str = "") -> InvalidInput:
    return InvalidInput(f"{folder} holds a {kind} already: resume it{how} or choose another folder")


def check_rounds(what: str, done: int, rounds: int) -> None:
    if done > rounds:
        raise InvalidInput(
            f"{what} has done {done} rounds, rounds = {rounds} are asked for: ask for at least {done}, or start again "
            "in another folder"
        )
