"""Data files: their folder, their check sums, and readers of idx and npz with precise error messages."""

from __future__ import annotations

import gzip
import hashlib
import os
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedsolve.core.errors import InvalidInput, check_path
from fedsolve.folders import untrusted

VARIABLE = "FEDSOLVE_DATA"
"""Environment variable that names the data folder."""

CONVERTED = ".sha256"
"""What follows the name of a file in the name of the one that `fedsolve data` writes beside it, with its sum."""

_REMEDY = "fetch the file again"
_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def data_dir(explicit: str | Path | None = None) -> Path:
    """The data folder: the argument, else the environment variable FEDSOLVE_DATA.

    Args:
        explicit: the folder; None for that of the environment variable.

    Returns:
        The folder, which exists, with `~` expanded.

    Raises:
        InvalidInput: neither is given, or the folder does not exist.
    """
    given = explicit if explicit is not None else os.environ.get(VARIABLE) or None
    if given is None:
        raise InvalidInput(
            "no data folder: give data_dir (on the command line --data-dir) or set the environment variable "
            f"{VARIABLE} (`fedsolve data` says where the files come from)"
        )
    folder = check_path("data_dir", given).expanduser()
    if not folder.is_dir():
        origin = "data_dir" if explicit is not None else VARIABLE
        raise InvalidInput(f"{origin} = {given} is not a folder: give the folder that holds the data files")
    return folder


def read_bytes(path: str | Path) -> bytes:
    path = check_path("path", path)
    try:
        return untrusted.read_bytes(path, None)
    except FileNotFoundError:
        raise InvalidInput(
            f"{path} does not exist: put it there (`fedsolve data` says how) or give another folder"
        ) from None
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read ({error.strerror}): check the file") from None


def checksum(path: str | Path, sha256: str) -> None:
    """Check a file against its SHA-256 (64 hexadecimal digits), or against the sum stored when it was converted.

    Args:
        path: the file.
        sha256: the sum expected, 64 hexadecimal digits.

    Raises:
        InvalidInput: missing or unreadable, or another sum (the first 12 digits of both are shown).
    """
    actual = hashlib.sha256(read_bytes(path)).hexdigest()
    beside = Path(f"{path}{CONVERTED}")
    if actual != sha256.lower() and not (beside.is_file() and read_bytes(beside).startswith(actual.encode())):
        raise InvalidInput(
            f"{path} has SHA-256 {actual[:12]}, expected {sha256[:12].lower()}: "
            f"the file is damaged or another version, {_REMEDY}"
        )


def read_idx(path: str | Path) -> np.ndarray:
    """Read the array of an idx file, gzipped or not (LeCun et al. 1998), in the machine's byte order.

    Args:
        path: the file.

    Returns:
        The shape and type that its header tells, such as uint8 (n, 28, 28) of images; writable.

    Raises:
        InvalidInput: missing, damaged gzip, wrong magic number, or a length that is not the one its
            dimensions call for.
    """
    content = read_bytes(path)
    content = unzipped(path, content) if content[:2] == b"\x1f\x8b" else content
    kind = _TYPES.get(content[2]) if len(content) >= 4 and content[:2] == b"\0\0" else None
    ndim = content[3] if len(content) >= 4 else 0
    if kind is None or ndim == 0:
        raise InvalidInput(
            f"{path} is not an idx file (its magic number is {content[:4].hex() or 'missing'}): "
            "give an idx file, gzipped or not"
        )
    start = 4 + 4 * ndim
    if len(content) < start:
        raise InvalidInput(f"{path} ends inside its header of {ndim} dimensions: {_REMEDY}")
    shape = tuple(int(n) for n in np.frombuffer(content, ">u4", ndim, 4))
    dtype = np.dtype(kind)
    expected = dtype.itemsize
    for n in shape:
        expected *= n
    if len(content) - start != expected:
        raise InvalidInput(
            f"{path} holds {len(content) - start} bytes of data, "
            f"its shape {shape} calls for {expected}: {_REMEDY}"
        )
    return np.frombuffer(content, dtype, offset=start).reshape(shape).astype(dtype.newbyteorder("="))


def unzipped(path: str | Path, content: bytes) -> bytes:
    try:
        return gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise InvalidInput(f"{path} is damaged gzip ({error}): {_REMEDY}") from None


def read_npz(path: str | Path, fields: Sequence[str]) -> dict[str, np.ndarray]:
    """Read the named arrays of an npz file; pickled objects are refused.

    Args:
        path: the file.
        fields: names of the arrays wanted.

    Returns:
        The arrays by name, those of `fields` alone, in their order.

    Raises:
        InvalidInput: missing, damaged, with Python objects, or without one of the fields.
    """
    if not (path := check_path("path", path)).is_file():
        read_bytes(path)
    try:
        with untrusted.open_regular(path) as file:
            return untrusted.npz_arrays(file, fields)
    except KeyError as error:
        missing, known = error.args
        raise InvalidInput(f"{path} has no field '{missing}' (it holds {known}): {_REMEDY}") from None
    except (OSError, ValueError) as error:
        if "Object arrays" in str(error):
            raise InvalidInput(
                f"{path} is not a readable npz file of numbers, it has Python objects: if you trust it, read them by "
                "np.load(path, allow_pickle=True)[name].item(), and give the arrays inside"
            ) from None
        raise InvalidInput(f"{path} is not a readable npz file ({error}): {_REMEDY}") from None


def read_checked(
    folder: str | Path | None, name: str, sha256: str, fields: Sequence[str]
) -> dict[str, np.ndarray]:
    # a file of the data folder, after its check sum has been verified
    path = data_dir(folder) / name
    checksum(path, sha256)
    return read_npz(path, fields)
