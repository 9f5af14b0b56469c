"""Original files of data sets, bounded in size, zipped or not, and LEAF's JSON files."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedsolve.core.errors import InvalidInput
from fedsolve.data.sources import CONVERTED, read_bytes
from fedsolve.folders.files import write_atomically
from fedsolve.folders.untrusted import MALFORMED, loads, open_regular
from fedsolve.tasks.ready.characters import FEMNIST
from fedsolve.tasks.ready.texts import LEAF


def find(folder: Path, names: Sequence[str]) -> Path:
    # the first of some names that the folder has, at its top or one folder below
    for name in names:
        for path in (folder / name, *sorted(folder.glob(f"*/{name}"))):
            if path.is_file():
                return path
    raise InvalidInput(f"{folder} lacks {' or '.join(names)}: put it there, or let `fedsolve data` fetch it")


def unzipped(path: Path, most: int) -> bytes:
    # gzipped or not; at most so many bytes, before and after
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
    # nothing is written; links and devices are passed over
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
    # a file that is not the known one gets its check sum beside it
    content = io.BytesIO()
    np.savez_compressed(content, **arrays)  # type: ignore[arg-type]
    return write_noted(path, content.getvalue(), known)


def write_noted(path: Path, content: bytes, known: str) -> Path:
    # a file that is not the known one gets its check sum beside it
    write_atomically(path, content)
    actual = hashlib.sha256(content).hexdigest()
    beside = path.with_name(path.name + CONVERTED)
    if actual == known:
        beside.unlink(missing_ok=True)
    else:
        write_atomically(beside, f"{actual}  {path.name}\n")
    return path


def refuse(condition: bool, where: Path, what: str) -> None:
    if condition:
        raise InvalidInput(f"{where}: {what}: it is not the original file, or damaged; fetch it again")


# FEMNIST and Shakespeare from the JSON files that LEAF's own scripts make: by writer, and by role.

_WINDOW = 80


def femnist(folder: Path, to: Path) -> list[Path]:
    # LEAF's `train/*.json` and `test/*.json`: users with x (784 pixels) and y
    parts: dict[str, list[Any]] = {"x": [], "y": [], "name": [], "is_test": []}
    for split in ("train", "test"):
        for path in _files(folder, split, "femnist"):
            for name, x, y in _writers(path):
                parts["x"].append(x)
                parts["y"].append(y)
                parts["name"] += [name] * len(y)
                parts["is_test"] += [split == "test"] * len(y)
    names, writer = np.unique(parts["name"], return_inverse=True)
    if len(names) > np.iinfo(np.int16).max:
        raise InvalidInput(
            f"{folder} has {len(names)} writers: at most {np.iinfo(np.int16).max} can be numbered"
        )
    order = np.argsort(writer, kind="stable")
    arrays = {
        "x": np.concatenate(parts["x"])[order],
        "y": np.concatenate(parts["y"])[order],
        "writer": writer[order].astype(np.int16),
        "is_test": np.array(parts["is_test"])[order],
        "writers": names,
    }
    return [write_npz(to / FEMNIST, arrays, "")]


def shakespeare(folder: Path, to: Path) -> list[Path]:
    # LEAF's `all_data/*.json`: users with x (80 characters) and y (the next one). There is a sample for each
    # character of a line, behind 80 blanks: the ys between two such windows are a line
    roles = sorted(role for path in _files(folder, "all_data", "shakespeare") for role in _roles(path))
    lines = [json.dumps({"play": "LEAF", "role": name, "speeches": said}) for name, said in roles]
    return [write_noted(to / LEAF, gzip.compress("\n".join(lines).encode(), mtime=0), "")]


def _files(folder: Path, below: str, name: str) -> list[Path]:
    paths = sorted((folder / below).glob("*.json"))
    if not paths:
        raise InvalidInput(
            f"{folder} lacks {below}/*.json: give the folder data/{name}/data of LEAF, after its preprocess.sh"
        )
    return paths


def _users(path: Path, most: int, of: Callable[[Any], Any]) -> list[tuple[str, Any, Any]]:
    # name, x and y of each user; `of` converts x and y
    try:
        table = loads(unzipped(path, most))
        return [(str(name), *of(data)) for name, data in table["user_data"].items()]
    except MALFORMED as error:
        raise InvalidInput(f"{path} is not LEAF's JSON ({type(error).__name__}): make it again") from None


def _writers(path: Path) -> list[tuple[str, np.ndarray, np.ndarray]]:
    # images as uint8, ink 255
    users = []
    for name, x, y in _users(path, 1 << 30, lambda d: (np.array(d["x"], float), np.array(d["y"]))):
        at = f"its user {name}"
        refuse(
            x.ndim != 2 or x.shape[1] != 784 or y.shape != (len(x),),
            path,
            f"{at} has shapes {x.shape}, {y.shape}",
        )
        refuse(
            y.dtype.kind != "i" or bool(((y < 0) | (y > 61)).any()), path, f"{at} has labels outside 0 to 61"
        )
        refuse(not bool(((x >= 0) & (x <= 1)).all()), path, f"{at} has pixels outside 0 to 1")
        pixels = np.rint(255 * x).astype(np.uint8).reshape(-1, 28, 28)
        paper = pixels.size and np.median(pixels) > 127  # most of an image is paper, which LEAF has white
        users.append((name, 255 - pixels if paper else pixels, y.astype(np.uint8)))
    return users


def _roles(path: Path) -> list[tuple[str, list[str]]]:
    # name and lines of each user
    roles = []
    for name, x, y in _users(path, 1 << 31, lambda d: (list(d["x"]), list(d["y"]))):
        at = f"its user {name}"
        refuse(len(x) != len(y) or not x, path, f"{at} has {len(x)} windows and {len(y)} next characters")
        strings = all(isinstance(a, str) and isinstance(b, str) for a, b in zip(x, y, strict=True))
        whole = strings and all(len(a) == _WINDOW and len(b) == 1 for a, b in zip(x, y, strict=True))
        refuse(not whole, path, f"{at} has samples that are not {_WINDOW} characters and one")
        lines: list[str] = []
        for i, (window, character) in enumerate(zip(x, y, strict=True)):
            if not i or window != x[i - 1][1:] + y[i - 1]:
                refuse(bool(window.strip(" ")), path, f"{at} has windows that do not follow one another")
                lines.append("")
            lines[-1] += character
        roles.append((name, [line.rstrip("\n") for line in lines if line.strip()]))
    return roles
