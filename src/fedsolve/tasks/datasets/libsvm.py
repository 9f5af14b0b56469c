"""The LIBSVM files, which tasks read as they are."""

from __future__ import annotations

import hashlib
from pathlib import Path

from fedsolve.folders.files import write_atomically
from fedsolve.tasks.convex.libsvm import SHA256
from fedsolve.tasks.datasets.originals import find, refuse, unzipped

_MOST = 20_000_000


def convert(folder: Path, to: Path) -> list[Path]:
    """`a9a`, `a9a.t`, `w8a` and `mushrooms`, gzipped or not, into `libsvm/`, after their check sums."""
    texts = {}
    for name, sha256 in SHA256.items():
        path = find(folder, [name, f"{name}.gz"])
        texts[name] = unzipped(path, _MOST)
        refuse(hashlib.sha256(texts[name]).hexdigest() != sha256, path, "its text has another check sum")
    return [write_atomically(to / "libsvm" / name, text) for name, text in texts.items()]
