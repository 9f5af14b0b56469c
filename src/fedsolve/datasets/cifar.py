"""CIFAR-10 from its binary version: a balanced subset in the form that the task reads."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedsolve.datasets.originals import find, members, refuse, unzipped, write_npz
from fedsolve.errors import InvalidInput
from fedsolve.tasks.cifar import FILE, SHA256

ARCHIVE = "cifar-10-binary.tar.gz"
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
PARTS = {"train": [f"data_batch_{i}.bin" for i in range(1, 6)], "test": ["test_batch.bin"]}
_RECORD = 3073  # a label, then 1,024 red, green and blue pixels each
_MOST = 200_000_000


def convert(folder: Path, to: Path, each: tuple[int, int] = (2_000, 400), whole: int = 10_000) -> list[Path]:
    """Draw (with a fixed seed) `each[0]` training and `each[1]` test images of each class, from `whole` a file.

    Raises:
        InvalidInput: files that are missing or not the originals; the Python version, which is pickles.
    """
    contents = _contents(folder)
    arrays: dict[str, np.ndarray] = {"classes": np.array(CLASSES)}
    rng = np.random.default_rng(0)
    for (split, names), count in zip(PARTS.items(), each, strict=True):
        for name in names:
            size = len(contents[name])
            refuse(size != whole * _RECORD, folder / name, f"it has {size} bytes, not {whole} x {_RECORD}")
        records = np.concatenate(
            [np.frombuffer(contents[name], np.uint8).reshape(-1, _RECORD) for name in names]
        )
        y, x = records[:, 0], records[:, 1:].reshape(-1, 3, 32, 32)
        counts = np.bincount(y, minlength=10)
        refuse(
            len(counts) > 10 or len(set(counts)) > 1, folder / names[0], f"its labels are {counts.tolist()}"
        )
        rows = np.concatenate([rng.permutation(np.flatnonzero(y == label))[:count] for label in range(10)])
        rows = rng.permutation(rows)
        arrays |= {f"y_{split}": y[rows], f"d_{split}": encode(x[rows])}
    order = ("classes", "y_train", "d_train", "y_test", "d_test")
    return [write_npz(to / FILE, {name: arrays[name] for name in order}, SHA256)]


def encode(x: np.ndarray) -> np.ndarray:
    """Pixels, uint8 of shape (n, 3, 32, 32), as the differences that `tasks.cifar.decode` undoes."""
    d = x.copy()
    d[:, 0] -= x[:, 1]
    d[:, 2] -= x[:, 1]
    d[:, :, :, 1:] = d[:, :, :, 1:] - d[:, :, :, :-1]
    d[:, :, 1:] = d[:, :, 1:] - d[:, :, :-1]
    return d


def _contents(folder: Path) -> dict[str, bytes]:
    """The six files, from the archive or unpacked."""
    names = [*PARTS["train"], *PARTS["test"]]
    if (folder / ARCHIVE).is_file():
        found = {Path(name).name: content for name, content in members(folder / ARCHIVE, _MOST).items()}
        missing = [name for name in names if name not in found]
        refuse(bool(missing), folder / ARCHIVE, f"it lacks {', '.join(missing)}")
        return found
    if any(
        (folder / name).exists() for name in ("cifar-10-python.tar.gz", "data_batch_1", "cifar-10-batches-py")
    ):
        raise InvalidInput(
            f"{folder} holds CIFAR-10's Python version, pickles that can run code: give the binary version, {ARCHIVE}"
        )
    return {name: unzipped(find(folder, [name]), _MOST) for name in names}
