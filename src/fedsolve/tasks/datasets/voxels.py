"""One subject of Haxby et al. 2001 from PyMVPA's NIfTI files: the voxels of the mask, volume by volume."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedsolve.tasks.datasets.originals import find, refuse, unzipped, write_npz
from fedsolve.tasks.images.voxels import FILE, SHA256

CLASSES = ("rest", "face", "house", "shoe", "cat", "scissors", "scrambledpix", "bottle", "chair")
_TYPES = {2: "u1", 4: "i2", 8: "i4", 16: "f4", 64: "f8", 512: "u2"}
_MOST = 50_000_000


def convert(folder: Path, to: Path) -> list[Path]:
    """`bold.nii.gz`, `mask.nii.gz` and `attributes_literal.txt` as one table of volumes and masked voxels."""
    bold_path, mask_path = (find(folder, [f"{name}.nii.gz", f"{name}.nii"]) for name in ("bold", "mask"))
    bold, mask = read_nifti(bold_path), read_nifti(mask_path)
    bold, mask = bold.reshape(*bold.shape[:2], -1), mask.reshape(mask.shape[:2])  # a slice by time, a slice
    refuse(
        bold.shape[:2] != mask.shape, mask_path, f"its shape is {mask.shape}, the images' {bold.shape[:2]}"
    )
    refuse(bool((bold != bold.astype(np.int16)).any()), bold_path, "its values are not 16-bit integers")
    path = find(folder, ["attributes_literal.txt"])
    lines = [
        line.split() for line in unzipped(path, _MOST).decode("ascii", "replace").splitlines() if line.strip()
    ]
    refuse(len(lines) != bold.shape[2], path, f"it has {len(lines)} lines for {bold.shape[2]} volumes")
    for number, words in enumerate(lines, 1):
        good = len(words) == 2 and words[0] in CLASSES and words[1].isdigit() and int(words[1]) < 256
        refuse(not good, path, f"line {number} is not a class and a run")
    inside = np.argwhere(mask != 0)
    arrays = {
        "bold": np.asfortranarray(bold[inside[:, 0], inside[:, 1]].T.astype("<i2")),
        "label": np.array([CLASSES.index(words[0]) for words in lines], np.uint8),
        "run": np.array([int(words[1]) for words in lines], np.uint8),
        "voxel_ij": inside.astype(np.uint8),
        "classes": np.array(CLASSES),
    }
    return [write_npz(to / FILE, arrays, SHA256)]


def read_nifti(path: Path) -> np.ndarray:
    """The values of a NIfTI-1 file, gzipped or not, with its axes in their order (dimensions of 1 at the end dropped).

    Raises:
        InvalidInput: not such a file, an unknown type of values, or a length that is not what its header says.
    """
    content = unzipped(path, _MOST)
    order = "<" if content[:4] == (348).to_bytes(4, "little") else ">"
    known = int.from_bytes(content[:4], "little" if order == "<" else "big") == 348
    refuse(not known or len(content) < 352, path, "it has no NIfTI header")
    dims = np.frombuffer(content, f"{order}i2", 8, 40)
    rank, kind = int(dims[0]), int(np.frombuffer(content, f"{order}i2", 1, 70)[0])
    refuse(
        not 1 <= rank <= 7 or bool((dims[1 : rank + 1] < 1).any()),
        path,
        f"its dimensions are {dims.tolist()}",
    )
    refuse(kind not in _TYPES, path, f"its values have the unknown type {kind}")
    dtype = np.dtype(f"{order}{_TYPES[kind]}")
    start = int(np.frombuffer(content, f"{order}f4", 1, 108)[0])
    shape = tuple(int(n) for n in dims[1 : rank + 1])
    expected = start + dtype.itemsize * int(np.prod(shape, dtype=np.int64))
    refuse(
        start < 348 or len(content) < expected, path, f"it holds {len(content)} bytes, its header {expected}"
    )
    slope, inter = np.frombuffer(content, f"{order}f4", 2, 112)
    values = np.frombuffer(content, dtype, int(np.prod(shape)), start).reshape(shape, order="F")
    scaled = slope not in (0.0, 1.0) or inter != 0.0
    values = values * slope + inter if scaled else values
    while values.ndim > 2 and values.shape[-1] == 1:
        values = values[..., 0]
    return values
