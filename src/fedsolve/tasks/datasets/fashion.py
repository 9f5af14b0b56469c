"""Fashion-MNIST's four idx files, which the task reads as they are."""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path

from fedsolve.data.sources import read_idx
from fedsolve.folders.files import write_atomically
from fedsolve.tasks.datasets.originals import find, refuse, unzipped
from fedsolve.tasks.images.fashion import CONTENT, FOLDER

_MOST = 60_000_000


def convert(folder: Path, to: Path) -> list[Path]:
    """The idx files, gzipped or not, into `fashion-mnist/`, after their check sums."""
    contents = {}
    for name, sha256 in CONTENT.items():
        path = find(folder, [name, name.removesuffix(".gz")])
        contents[name] = unzipped(path, _MOST)
        actual = hashlib.sha256(read_idx(path).tobytes()).hexdigest()
        refuse(actual != sha256, path, "its content has another check sum")
    return [
        write_atomically(to / FOLDER / name, gzip.compress(content, mtime=0))
        for name, content in contents.items()
    ]
