"""FEMNIST from the JSON files that LEAF's own script makes: characters by writer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from fedsolve.core.errors import InvalidInput
from fedsolve.tasks.datasets.originals import refuse, unzipped, write_npz
from fedsolve.tasks.images.handwriting import FEMNIST

_MOST = 1 << 30


def convert(folder: Path, to: Path) -> list[Path]:
    """`train/*.json` and `test/*.json` of LEAF, each with users and their x (784 pixels) and y, as one npz file."""
    parts: dict[str, list[Any]] = {"x": [], "y": [], "name": [], "is_test": []}
    for split in ("train", "test"):
        paths = sorted((folder / split).glob("*.json"))
        if not paths:
            raise InvalidInput(
                f"{folder} lacks {split}/*.json: give the folder data/femnist/data of LEAF, after its preprocess.sh"
            )
        for path in paths:
            for name, x, y in _users(path):
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


def _users(path: Path) -> list[tuple[str, np.ndarray, np.ndarray]]:
    """Name, images (uint8, ink 255) and labels of each user of a file."""
    try:
        table = json.loads(unzipped(path, _MOST))
        found = [(str(n), np.array(d["x"], float), np.array(d["y"])) for n, d in table["user_data"].items()]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidInput(f"{path} is not LEAF's JSON ({type(error).__name__}): make it again") from None
    users = []
    for name, x, y in found:
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
