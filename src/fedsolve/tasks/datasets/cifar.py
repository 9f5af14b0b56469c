"""CIFAR-10 and CIFAR-100 from their binary versions: balanced subsets in the form that the tasks read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from fedsolve.core.errors import InvalidInput
from fedsolve.tasks.datasets.originals import find, members, refuse, unzipped, write_npz
from fedsolve.tasks.images.cifar import FILE, FILE_100, SHA256, SHA256_100

ARCHIVE = "cifar-10-binary.tar.gz"
ARCHIVE_100 = "cifar-100-binary.tar.gz"
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
PARTS = {"train": [f"data_batch_{i}.bin" for i in range(1, 6)], "test": ["test_batch.bin"]}
PARTS_100 = {"train": ["train.bin"], "test": ["test.bin"]}
_MOST = 200_000_000


def convert(folder: Path, to: Path, each: tuple[int, int] = (2_000, 400), whole: int = 10_000) -> list[Path]:
    """Draw (with a fixed seed) `each[0]` training and `each[1]` test images of each class, from `whole` a file.

    Raises:
        InvalidInput: files that are missing or not the originals; the Python version, which is pickles.
    """
    contents = _contents(
        folder, ARCHIVE, PARTS, ("cifar-10-python.tar.gz", "data_batch_1", "cifar-10-batches-py")
    )
    sizes = dict.fromkeys(contents, whole)
    arrays, _ = _drawn(folder, contents, PARTS, sizes, each, 1, 10)
    return [write_npz(to / FILE, {"classes": np.array(CLASSES), **arrays}, SHA256)]


def convert_100(
    folder: Path, to: Path, each: tuple[int, int] = (200, 40), whole: tuple[int, int] = (50_000, 10_000)
) -> list[Path]:
    """The same of CIFAR-100, whose records have a superclass before the class; files of `whole` images.

    Raises:
        InvalidInput: files that are missing or not the originals; the Python version, which is pickles.
    """
    contents = _contents(folder, ARCHIVE_100, PARTS_100, ("cifar-100-python.tar.gz", "cifar-100-python"))
    sizes = {"train.bin": whole[0], "test.bin": whole[1]}
    arrays, records = _drawn(folder, contents, PARTS_100, sizes, each, 2, 100)
    coarse_of = np.zeros(100, np.uint8)
    coarse_of[records[:, 1]] = records[:, 0]
    wrong = bool((coarse_of[records[:, 1]] != records[:, 0]).any() or (coarse_of > 19).any())
    refuse(wrong, folder / "train.bin", "a class has two superclasses, or one above 19")
    return [write_npz(to / FILE_100, {"coarse_of": coarse_of, **arrays}, SHA256_100)]


def _drawn(
    folder: Path, contents: Mapping[str, bytes], parts: Mapping[str, Sequence[str]], sizes: Mapping[str, int],
    each: tuple[int, int], labels: int, classes: int,
) -> tuple[dict[str, np.ndarray], np.ndarray]:  # fmt: skip
    """The arrays of the images drawn, and all training records: `labels` bytes, the class last, then the pixels."""
    record, rng = labels + 3072, np.random.default_rng(0)
    arrays, all_ = {}, {}
    for (split, names), count in zip(parts.items(), each, strict=True):
        for name in names:
            size = len(contents[name])
            refuse(
                size != sizes[name] * record,
                folder / name,
                f"it has {size} bytes, not {sizes[name]} x {record}",
            )
        records = np.concatenate(
            [np.frombuffer(contents[name], np.uint8).reshape(-1, record) for name in names]
        )
        y, x = records[:, labels - 1], records[:, labels:].reshape(-1, 3, 32, 32)
        counts = np.bincount(y, minlength=classes)
        refuse(
            len(counts) > classes or len(set(counts)) > 1,
            folder / names[0],
            f"its labels are {counts.tolist()}",
        )
        rows = np.concatenate(
            [rng.permutation(np.flatnonzero(y == label))[:count] for label in range(classes)]
        )
        rows = rng.permutation(rows)
        arrays |= {f"y_{split}": y[rows], f"d_{split}": encode(x[rows])}
        all_[split] = records
    return arrays, all_["train"]


def encode(x: np.ndarray) -> np.ndarray:
    """Pixels, uint8 of shape (n, 3, 32, 32), as the differences that `tasks.cifar.decode` undoes."""
    d = x.copy()
    d[:, 0] -= x[:, 1]
    d[:, 2] -= x[:, 1]
    d[:, :, :, 1:] = d[:, :, :, 1:] - d[:, :, :, :-1]
    d[:, :, 1:] = d[:, :, 1:] - d[:, :, :-1]
    return d


def _contents(
    folder: Path, archive: str, parts: Mapping[str, Sequence[str]], pickles: Sequence[str]
) -> dict[str, bytes]:
    """The files, from the archive or unpacked."""
    names = [name for files in parts.values() for name in files]
    if (folder / archive).is_file():
        contents = {Path(name).name: content for name, content in members(folder / archive, _MOST).items()}
        missing = [name for name in names if name not in contents]
        refuse(bool(missing), folder / archive, f"it lacks {', '.join(missing)}")
        return {name: contents[name] for name in names}
    if any((folder / name).exists() for name in pickles):
        raise InvalidInput(
            f"{folder} holds CIFAR's Python version, pickles that can run code: give the binary version, {archive}"
        )
    return {name: unzipped(find(folder, [name]), _MOST) for name in names}
