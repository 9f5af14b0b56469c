"""IDX_SHA256, Fashion-IDX_SHA256 and LIBSVM's sets: their files are checked, and zipped as tasks read them."""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path

import numpy as np

from fedsolve.data.sources import read_bytes, read_idx
from fedsolve.folders.files import write_atomically
from fedsolve.tasks.convex.libsvm import SHA256 as LIBSVM
from fedsolve.tasks.datasets.originals import find, refuse, unzipped, write_noted, write_npz
from fedsolve.tasks.images.fashion import CONTENT as FASHION
from fedsolve.tasks.images.fashion import FOLDER
from fedsolve.tasks.images.mnist import SHA256

IDX_SHA256 = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
"""SHA-256 of IDX_SHA256's idx files, unzipped."""
COUNTS = {"train": 60_000, "test": 10_000}
"""Digits of each split; QMNIST has 60,000 test digits, whose first 10,000 are IDX_SHA256's."""
_MOST = 60_000_000


def mnist(folder: Path, to: Path) -> list[Path]:
    """The idx files, gzipped or not, into `mnist/`, and `mnist_writers.npz` from QMNIST's label files."""
    written = []
    for name, sha256 in IDX_SHA256.items():
        path = find(folder, [f"{name}.gz", name, name.replace("-idx", ".idx")])
        content = unzipped(path, _MOST)
        refuse(_sum(content) != sha256, path, "its content has another check sum")
        raw = read_bytes(path)
        zipped = raw if raw[:2] == b"\x1f\x8b" else gzip.compress(content, mtime=0)
        written.append(write_noted(to / "mnist" / f"{name}.gz", zipped, SHA256[f"{name}.gz"]))
    arrays = {}
    for split, count in COUNTS.items():
        path = find(folder, [f"qmnist-{split}-labels-idx2-int.gz", f"qmnist-{split}-labels-idx2-int"])
        unzipped(path, _MOST)
        table = read_idx(path)
        refuse(
            table.ndim != 2 or table.shape[1] != 8 or len(table) < count, path, f"its shape is {table.shape}"
        )
        labels = read_idx(to / "mnist" / f"{split.replace('test', 't10k')}-labels-idx1-ubyte.gz")
        table = table[:count]
        refuse(bool((table[:, 0] != labels).any()), path, "its digits are not IDX_SHA256's")
        arrays[f"{split}_writer"], arrays[f"{split}_hsf"] = (
            table[:, 2].astype("<i2"),
            table[:, 1].astype(np.uint8),
        )
    order = ("train_writer", "test_writer", "train_hsf", "test_hsf")
    file = to / "mnist" / "mnist_writers.npz"
    return [*written, write_npz(file, {name: arrays[name] for name in order}, SHA256[file.name])]


def fashion_mnist(folder: Path, to: Path) -> list[Path]:
    """The idx files, gzipped or not, into `fashion-mnist/`, after their check sums."""
    contents = {}
    for name, sha256 in FASHION.items():
        path = find(folder, [name, name.removesuffix(".gz")])
        contents[name] = unzipped(path, _MOST)
        refuse(_sum(read_idx(path).tobytes()) != sha256, path, "its content has another check sum")
    return [
        write_atomically(to / FOLDER / name, gzip.compress(content, mtime=0))
        for name, content in contents.items()
    ]


def libsvm(folder: Path, to: Path) -> list[Path]:
    """`a9a`, `a9a.t`, `w8a` and `mushrooms`, gzipped or not, into `libsvm/`, after their check sums."""
    texts = {}
    for name, sha256 in LIBSVM.items():
        path = find(folder, [name, f"{name}.gz"])
        texts[name] = unzipped(path, 20_000_000)
        refuse(_sum(texts[name]) != sha256, path, "its text has another check sum")
    return [write_atomically(to / "libsvm" / name, text) for name, text in texts.items()]


def _sum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
