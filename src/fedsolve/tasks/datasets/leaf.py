"""FEMNIST and Shakespeare from the JSON files that LEAF's own scripts make: by writer, and by role."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fedsolve.core.errors import InvalidInput
from fedsolve.folders.untrusted import MALFORMED, loads
from fedsolve.tasks.datasets.originals import refuse, unzipped, write_noted, write_npz
from fedsolve.tasks.images.handwriting import FEMNIST
from fedsolve.tasks.text.shakespeare import LEAF

_WINDOW = 80


def femnist(folder: Path, to: Path) -> list[Path]:
    """`train/*.json` and `test/*.json` of LEAF, each with users and their x (784 pixels) and y, as one npz file."""
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
    """`all_data/*.json` of LEAF, each with users and their x (80 characters) and y (the next one), as a line a role.

    LEAF has a sample for each character of a line, behind 80 blanks: the ys between two such windows are a line.
    """
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
    """Name, x and y of each user of a file of at most so many bytes; `of` makes something of x and of y."""
    try:
        table = loads(unzipped(path, most))
        return [(str(name), *of(data)) for name, data in table["user_data"].items()]
    except MALFORMED as error:
        raise InvalidInput(f"{path} is not LEAF's JSON ({type(error).__name__}): make it again") from None


def _writers(path: Path) -> list[tuple[str, np.ndarray, np.ndarray]]:
    """Name, images (uint8, ink 255) and labels of each user of a file."""
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
    """Name and lines of each user of a file."""
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
