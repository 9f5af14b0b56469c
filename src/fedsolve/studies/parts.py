"""The parts of an experiment as files: one each while it runs, one for all of them where a folder is kept for good."""

from __future__ import annotations

import io
import zipfile
from functools import lru_cache
from pathlib import Path

import numpy as np

from fedsolve.core.errors import InvalidInput
from fedsolve.folders.files import write_atomically

PARTS, ARCHIVE = "parts", "parts.zip"
_ALIKE = (1980, 1, 1, 0, 0, 0)  # equal parts make equal archives


def keeps_any(folder: Path) -> bool:
    """Whether a folder has parts."""
    return (folder / PARTS).is_dir() or (folder / ARCHIVE).exists()


def read_part(folder: Path, name: str) -> dict[str, np.ndarray] | None:
    """The arrays of a part by the name of its file, None where there is none.

    Raises:
        InvalidInput: its file, or the archive, is damaged.
    """
    path = folder / PARTS / name
    found = path if path.exists() else folder / ARCHIVE
    try:
        if found == path:
            return _arrays(path.read_bytes())
        data = _archive(found, found.stat().st_mtime_ns).get(name) if found.exists() else None
        return None if data is None else _arrays(data)
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile) as error:
        raise InvalidInput(f"{found} is damaged: remove it to compute it anew ({error})") from None


def write_part(folder: Path, name: str, arrays: dict[str, np.ndarray]) -> None:
    """Keep a part."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    write_atomically(folder / PARTS / name, buffer.getvalue())


def pack(folder: Path) -> Path:
    """Put all parts of a folder into its archive; their files go.

    Raises:
        InvalidInput: there are none, or the folder cannot be written.
    """
    files = sorted((folder / PARTS).glob("*.npz"))
    if not files:
        raise InvalidInput(f"{folder / PARTS} holds no parts: run the experiment into {folder} first")
    archive = folder / ARCHIVE
    kept = dict(_archive(archive, archive.stat().st_mtime_ns)) if archive.exists() else {}
    kept |= {file.name: file.read_bytes() for file in files}
    buffer = io.BytesIO()
    # parts are archives themselves: stored as they are, the last of them would be found in an archive cut short
    with zipfile.ZipFile(buffer, "w") as new:
        for name, data in sorted(kept.items()):
            new.writestr(zipfile.ZipInfo(name, _ALIKE), data, zipfile.ZIP_DEFLATED)
    write_atomically(archive, buffer.getvalue())
    for file in files:
        file.unlink()
    (folder / PARTS).rmdir()
    return archive


def _arrays(data: bytes) -> dict[str, np.ndarray]:
    with np.load(io.BytesIO(data)) as file:
        return {key: file[key] for key in file.files}


@lru_cache(maxsize=2)
def _archive(path: Path, changed: int) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as file:
        return {name: file.read(name) for name in file.namelist()}
