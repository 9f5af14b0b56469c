"""Reading original files from a folder, bounded in size, zipped or not, and writing what tasks read."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from fedsolve.core.errors import InvalidInput
from fedsolve.data.sources import CONVERTED, read_bytes
from fedsolve.folders.files import write_atomically
from fedsolve.folders.untrusted import open_regular


def find(folder: Path, names: Sequence[str]) -> Path:
    """The first of some names that the folder has, at its top or in a folder below.

    Raises:
        InvalidInput: it has none of them.
    """
    for name in names:
        for path in (folder / name, *sorted(folder.glob(f"*/{name}"))):
            if path.is_file():
                return path
    raise InvalidInput(f"{folder} lacks {' or '.join(names)}: put it there, or let `fedsolve data` fetch it")


def unzipped(path: Path, most: int) -> bytes:
    """The bytes of a file, gzipped or not, of which there may be at most so many.

    Raises:
        InvalidInput: it cannot be read, is damaged or larger.
    """
    if path.is_file() and path.stat().st_size > most:
        raise InvalidInput(f"{path} is larger than the {most} bytes it may have: it is not the file")
    content = read_bytes(path)
    if content[:2] == b"\x1f\x8b":
        try:
            with gzip.open(io.BytesIO(content)) as file:
                content = file.read(most + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise InvalidInput(f"{path} is damaged gzip ({error}): fetch the file again") from None
    if len(content) > most:
        raise InvalidInput(f"{path} holds more than {most} bytes: it is not the file")
    return content


def members(path: Path, most: int) -> dict[str, bytes]:
    """The files of a tar archive by name, without writing any; links and devices are passed over.

    Raises:
        InvalidInput: it is damaged, or its files together are larger than `most` bytes.
    """
    contents: dict[str, bytes] = {}
    try:
        with open_regular(path) as file, tarfile.open(fileobj=file) as archive:
            for member in archive:
                if not member.isfile():
                    continue
                most -= member.size
                if most < 0:
                    raise InvalidInput(f"{path} unpacks to more than it may: it is not the file")
                content = archive.extractfile(member)
                contents[member.name] = b"" if content is None else content.read()
    except (OSError, EOFError, zlib.error, tarfile.TarError) as error:
        raise InvalidInput(f"{path} is a damaged archive ({error}): fetch the file again") from None
    return contents


def write_npz(path: Path, arrays: Mapping[str, np.ndarray], known: str) -> Path:
    """Write arrays as the npz file that a task reads; one that is not the known file gets its check sum beside it."""
    content = io.BytesIO()
    np.savez_compressed(content, **arrays)  # type: ignore[arg-type]
    return write_noted(path, content.getvalue(), known)


def write_noted(path: Path, content: bytes, known: str) -> Path:
    """Write what a task reads; where it is not the known file, with its check sum beside it."""
    write_atomically(path, content)
    actual = hashlib.sha256(content).hexdigest()
    beside = path.with_name(path.name + CONVERTED)
    if actual == known:
        beside.unlink(missing_ok=True)
    else:
        write_atomically(beside, f"{actual}  {path.name}\n")
    return path


def refuse(condition: bool, where: Path, what: str) -> None:
    """Raise `InvalidInput` if `condition`: what is wrong with an original."""
    if condition:
        raise InvalidInput(f"{where}: {what}: it is not the original file, or damaged; fetch it again")
