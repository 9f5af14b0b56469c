"""The folder of a run, a sweep or a deployment: held for one process, and gone on with only by what began it.

All three keep a checkpoint, a file that `store` writes, and in its manifest the identity of what wrote it: a table of
all that decides a number, as JSON gives it back. `versions` is among its entries where results are the same to the bit
only under one version of fedsolve. A folder that is held is in use for any other process; one that has a checkpoint is
not begun anew; one with another identity is not gone on with, and the first entry that differs is named.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedsolve.core.errors import InvalidInput, from_where_they_differ
from fedsolve.folders.lock import Hold, locked
from fedsolve.folders.store import read_manifest, save_tree

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

    Args:
        path: the checkpoint.
        there: its identity.
        here: that of the run which would go on from it.
        free: entries that may differ.
    """
    then, now = _version(there), _version(here)
    if then is not None and then != now:
        raise InvalidInput(
            f"the checkpoint {path} was written by fedsolve {then}, and this is fedsolve {now}, whose results may "
            f"differ: resume it with fedsolve {then}, or start again in another folder"
        )
    name = first_difference(there, here, free)
    if name is not None:
        before, now = from_where_they_differ(str(there.get(name)), str(here[name]))
        raise InvalidInput(
            f"the checkpoint {path} has {name} = {before}, this run {now}: "
            "resume as it was, or start again in another folder"
        )


def _version(identity: Mapping[str, Any]) -> str | None:
    """The version of fedsolve in an identity, None where its results are those of any."""
    match = _FEDSOLVE.search(str(identity.get(VERSIONS, "")))
    return None if match is None else match[1]


_SECONDS_BETWEEN = 2.0
_DEVICES = ("devices", "mesh")
_TIMES_BETWEEN = 20  # as long as a saving takes: at most a twentieth of the time goes to it


@dataclass(frozen=True)
class Kind:
    """What a folder holds.

    Attributes:
        name: what errors call it.
        file: its checkpoint.
        previous: the checkpoint before it; '' where none is kept.
        option: by which it is resumed, where there is but one way.
    """

    name: str
    file: str
    previous: str = ""
    option: str = ""


RUN = Kind("run", "checkpoint.safetensors")
SWEEP = Kind("sweep", "lanes.safetensors")  # as earlier versions called it, whose folders are resumed
DEPLOYMENT = Kind("run", RUN.file, "checkpoint-previous.safetensors", "resume=true")


@dataclass
class RunFolder:
    """A folder that is held for one run, sweep or deployment.

    Attributes:
        hold: the folder.
        kind: what it holds.
        identity: all that decides its numbers, as JSON gives it back.
        resume: whether what it holds is gone on with.
    """

    hold: Hold
    kind: Kind
    identity: Mapping[str, Any]
    resume: bool
    _last: float = field(default_factory=time.monotonic)
    _took: float = 0.0

    @classmethod
    @contextlib.contextmanager
    def at(cls, folder: Path, kind: Kind, identity: Mapping[str, Any], resume: bool) -> Iterator[RunFolder]:
        """Hold a folder, which is made if there is none.

        Raises:
            InvalidInput: it holds a checkpoint and is not to be resumed, is in use or cannot be written.
        """
        with locked(folder) as hold:
            checkpoints = [folder / name for name in (kind.file, kind.previous) if name]
            if not resume and any(path.exists() for path in checkpoints):
                raise occupied(folder, kind.name, f" ({kind.option})" if kind.option else "")
            yield cls(hold, kind, identity, resume)

    @classmethod
    @contextlib.contextmanager
    def if_given(
        cls, out: str | Path | None, kind: Kind, identity: Mapping[str, Any], resume: bool
    ) -> Iterator[RunFolder | None]:
        """Likewise; None where no folder is given, and nothing is kept.

        Raises:
            InvalidInput: `resume` without a folder, and what `at` refuses.
        """
        if out is not None:
            with cls.at(Path(out), kind, identity, resume) as folder:
                yield folder
        elif resume:
            raise InvalidInput(f"resume needs the folder of the {kind.name}: give out")
        else:
            yield None

    @classmethod
    def seen(cls, folder: Path, kind: Kind, identity: Mapping[str, Any]) -> RunFolder:
        """One to resume from that another process holds: it is read alone."""
        return cls(Hold(folder, None), kind, identity, resume=True)

    @property
    def path(self) -> Path:
        """The checkpoint."""
        return self.hold.folder / self.kind.file

    @property
    def due(self) -> bool:
        """Whether enough time has passed since the last saving."""
        return time.monotonic() - self._last > max(_SECONDS_BETWEEN, _TIMES_BETWEEN * self._took)

    def manifest(self) -> dict[str, Any] | None:
        """What the checkpoint that is gone on with says of itself; None if none is.

        Raises:
            InvalidInput: there is none, it is corrupt, or of something that differs.
        """
        if not self.resume:
            return None
        manifest = read_manifest(self.path)
        self.check_same(self.path, manifest["identity"])
        return manifest

    def check_same(self, path: Path, there: Mapping[str, Any]) -> None:
        """Raise `InvalidInput` if a checkpoint's identity is another; the first part that differs is named.

        The devices may be others, and with them the chunk.
        """
        check_identity(path, there, self.identity, (*_DEVICES, "chunk") if self.has_moved(there) else ())

    def has_moved(self, there: Mapping[str, Any]) -> bool:
        """Whether a checkpoint was computed on other devices, which give the same results to rounding."""
        return any(there.get(name) != self.identity.get(name) for name in _DEVICES)

    def save(self, tree: Any, manifest: Mapping[str, Any]) -> None:
        """Replace the checkpoint, atomically.

        Raises:
            InvalidInput: the folder cannot be written, or was removed since it is held.
        """
        self.hold.check()
        begun = time.monotonic()
        save_tree(self.path, tree, {"identity": dict(self.identity), **manifest})
        self._last = time.monotonic()
        self._took = self._last - begun


def how_to_resume(folder: object, stopped: str) -> str:
    """What an interrupted user is told: where it stopped, and where it is saved; None for nowhere."""
    if folder is None:
        return f"{stopped}; nothing was saved: give out=FOLDER to resume"
    return f"{stopped}; saved in {folder}: go on from there with resume=True"


def occupied(folder: Path, kind: str, how: str = "") -> InvalidInput:
    """The error for a folder that is taken; `how` says how what is in it is resumed."""
    return InvalidInput(f"{folder} holds a {kind} already: resume it{how} or choose another folder")


def check_rounds(what: str, done: int, rounds: int) -> None:
    """Raise `InvalidInput` if what is gone on with has done more rounds than are asked for."""
    if done > rounds:
        raise InvalidInput(
            f"{what} has done {done} rounds, rounds = {rounds} are asked for: ask for at least {done}, or start again "
            "in another folder"
        )
