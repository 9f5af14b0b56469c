"""Two kinds of images distinguished from brain activity, by run (Haxby et al. 2001): sparse logistic regression."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedsolve.core.building import by_name
from fedsolve.core.errors import InvalidInput, check_integer, unknown
from fedsolve.data.federated import FederatedData
from fedsolve.data.sources import read_checked
from fedsolve.tasks.datasets.originals import find, refuse, unzipped, write_npz
from fedsolve.tasks.losses.losses import Logistic
from fedsolve.tasks.losses.sequences import BinaryAccuracy
from fedsolve.tasks.models.models import Linear
from fedsolve.tasks.task import Examples, Task

FILE = "haxby2001_sub1_slice.npz"
SHA256 = "b1ee8becf77339ccecce6f9f6feff1c0b306e7b1fc593f5300882e4d4aa9f729"


@by_name("voxels")
def voxels(
    data_dir: str | Path | None = None,
    test_runs: int = 2,
    classes: Sequence[str] = ("face", "house"),
    seed: int = 0,
) -> Task:
    """Subject 1 of Haxby et al. 2001: 530 voxels of one half slice, 18 volumes of two classes in each of 12 runs.

    A run of the scanner is a client; `test_runs` whole runs, drawn at random, are held out. In each run every
    voxel loses the line fitted over all 121 volumes and is scaled to deviation 1 before the two
    classes are chosen; no run sees another. x is float32 of shape (n, 530), y int32 of shape (n,): 1 for the
    first class, 0 for the second. The model is logistic regression from zero; local steps are single examples.

    Yuan et al. 2021 have all six subjects and 39,912 voxels; this is one subject and one slice, so their
    numbers do not carry over. With a penalty on the weights the problem is their sparse one.

    Args:
        data_dir: the data folder; default the environment variable FEDSOLVE_DATA.
        test_runs: runs held out, 1 to 11.
        classes: two of rest, face, house, shoe, cat, scissors, scrambledpix, bottle, chair.
        seed: of the held-out runs, at least 0.

    Returns:
        The task `voxels`, with `accuracy` as its metric; clients are runs, 18 examples of each class.

    Raises:
        InvalidInput: the file is missing, damaged or another version, or an argument that cannot be used.
    """
    pair = () if isinstance(classes, str) else tuple(classes)
    if len(pair) != 2 or pair[0] == pair[1] or not all(isinstance(name, str) for name in pair):
        raise InvalidInput(f"classes = {classes!r} must be two different names, such as ['face', 'house']")
    check_integer("test_runs", test_runs, 1)
    z = read_checked(data_dir, FILE, SHA256, ["bold", "label", "run", "classes"])
    names = [str(name) for name in z["classes"]]
    for name in pair:
        if name not in names:
            raise unknown("class", name, names)
    runs = np.unique(z["run"])
    if test_runs >= len(runs):
        raise InvalidInput(f"test_runs = {test_runs} of {len(runs)} runs: give at most {len(runs) - 1}")
    held_out = np.random.default_rng(check_integer("seed", seed)).permutation(runs)[:test_runs]
    first, second = (names.index(name) for name in pair)
    x = standardise_runs(z["bold"], z["run"])

    def choose(run: int) -> Examples:
        rows = (z["run"] == run) & np.isin(z["label"], (first, second))
        return Examples(x[rows].astype(np.float32), (z["label"][rows] == first).astype(np.int32))

    trained_on = [run for run in runs if run not in held_out]
    test = [choose(run) for run in runs if run in held_out]
    model = Linear(x.shape[1], bias=True)
    return Task(
        name="voxels",
        init=model.init,
        loss=Logistic(model),
        data=FederatedData.from_clients(
            [choose(run) for run in trained_on], [f"run {run}" for run in trained_on]
        ),
        test=Examples(np.concatenate([t.x for t in test]), np.concatenate([t.y for t in test])),
        metrics={"accuracy": BinaryAccuracy(model)},
        batch_size=1,
        epochs=1,
        citation="haxby2001",
    )


def standardise_runs(signal: np.ndarray, run: np.ndarray) -> np.ndarray:
    # signal (volumes, voxels), volumes of a run in the order of time; run (volumes,). Each voxel loses the
    # least-squares line over each run and gets deviation 1 there; one without variation is zero
    result = np.zeros(signal.shape)
    for r in np.unique(run):
        part = signal[run == r].astype(np.float64)
        time = np.arange(len(part)) - (len(part) - 1) / 2
        part -= part.mean(axis=0)
        part -= np.outer(time, time @ part / max(time @ time, 1.0))
        spread = part.std(axis=0)
        # what rounding leaves of a constant or straight voxel is not a signal to be blown up
        result[run == r] = np.where(spread > 1e-9, part / np.maximum(spread, 1e-9), 0)
    return result


# One subject of Haxby et al. 2001 from PyMVPA's NIfTI files: the voxels of the mask, volume by volume.

CLASSES = ("rest", "face", "house", "shoe", "cat", "scissors", "scrambledpix", "bottle", "chair")
_TYPES = {2: "u1", 4: "i2", 8: "i4", 16: "f4", 64: "f8", 512: "u2"}
_MOST = 50_000_000


def convert(folder: Path, to: Path) -> list[Path]:
    # `bold.nii.gz`, `mask.nii.gz`, `attributes_literal.txt` -> a table of volumes and masked voxels
    bold_path, mask_path = (find(folder, [f"{name}.nii.gz", f"{name}.nii"]) for name in ("bold", "mask"))
    bold, mask = read_nifti(bold_path), read_nifti(mask_path)
    bold, mask = bold.reshape(*bold.shape[:2], -1), mask.reshape(mask.shape[:2])  # a slice by time, a slice
    refuse(
        bold.shape[:2] != mask.shape, mask_path, f"its shape is {mask.shape}, the images' {bold.shape[:2]}"
    )
    refuse(bool((bold != bold.astype(np.int16)).any()), bold_path, "its values are not 16-bit integers")
    path = find(folder, ["attributes_literal.txt"])
    text = unzipped(path, _MOST).decode("ascii", "replace")
    lines = [line.split() for line in text.splitlines() if line.strip()]
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
    # NIfTI-1, gzipped or not; dimensions of 1 at the end are dropped
    content = unzipped(path, _MOST)
    order = "<" if content[:4] == (348).to_bytes(4, "little") else ">"
    known = int.from_bytes(content[:4], "little" if order == "<" else "big") == 348
    refuse(not known or len(content) < 352, path, "it has no NIfTI header")
    dims = np.frombuffer(content, f"{order}i2", 8, 40)
    rank, kind = int(dims[0]), int(np.frombuffer(content, f"{order}i2", 1, 70)[0])
    wrong = not 1 <= rank <= 7 or bool((dims[1 : rank + 1] < 1).any())
    refuse(wrong, path, f"its dimensions are {dims.tolist()}")
    refuse(kind not in _TYPES, path, f"its values have the unknown type {kind}")
    dtype = np.dtype(f"{order}{_TYPES[kind]}")
    start = int(np.frombuffer(content, f"{order}f4", 1, 108)[0])
    shape = tuple(int(n) for n in dims[1 : rank + 1])
    expected = start + dtype.itemsize * int(np.prod(shape, dtype=np.int64))
    wrong = start < 348 or len(content) < expected
    refuse(wrong, path, f"it holds {len(content)} bytes, its header {expected}")
    slope, inter = np.frombuffer(content, f"{order}f4", 2, 112)
    values = np.frombuffer(content, dtype, int(np.prod(shape)), start).reshape(shape, order="F")
    scaled = slope not in (0.0, 1.0) or inter != 0.0
    values = values * slope + inter if scaled else values
    while values.ndim > 2 and values.shape[-1] == 1:
        values = values[..., 0]
    return values
