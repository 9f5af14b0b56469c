"""Handwritten characters by writer: UNIPEN's pen strokes drawn (Guyon et al. 1994), or FEMNIST (Caldas et al. 2018)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedsolve.core.building import by_name
from fedsolve.core.errors import InvalidInput, check_integer, is_one_of, unknown
from fedsolve.data.sources import read_checked
from fedsolve.tasks.models.models import CNN, MLP, Softmax
from fedsolve.tasks.shared import by_owner, classification, pick
from fedsolve.tasks.task import Examples, Task

FILE = "unipen62_by_writer.npz"
SHA256 = "0e68c5e582c44c911d92b10fb0390e3ca0c0a65478ca6cadafded77b8f1579e7"
FEMNIST = "femnist.npz"
"""What `fedsolve data femnist` makes; there are several splits of it, so no check sum is known beforehand."""


def models(classes: int) -> dict[str, Any]:
    # the MLP has the two hidden layers of 200 of Yuan et al. 2021
    return {
        "softmax": Softmax(784, classes),
        "mlp": MLP((784, 200, 200, classes)),
        "cnn": CNN(classes=classes),
    }


@by_name("handwriting")
def handwriting(
    data_dir: str | Path | None = None,
    classes: int = 62,
    model: Any = "softmax",
    num_clients: int | None = None,
    seed: int = 0,
    flip: bool = False,
    dataset: str = "unipen",
) -> Task:
    """UNIPEN characters by writer: 315 clients, 43,655 training and 10,903 test images of 62 classes.

    A stand-in for FEMNIST, made in its manner but of other people's writing: results on it are not results
    on FEMNIST. Clients are writers; with 10 classes those who wrote digits (267 clients, 7,357 training and
    1,900 test images). The test set is a random fifth of every writer, whichever writers are clients.
    x is float32 of shape (n, 28, 28, 1) in [0, 1] with ink 1, y int32: digits, capitals, small letters.
    Batches are of 10; Yuan et al. 2021 have 10 local epochs in a round, the default here is 1.

    Args:
        data_dir: the data folder; default the environment variable FEDSOLVE_DATA.
        classes: 62, or 10 for the digits alone.
        model: "softmax", "mlp" (two hidden layers of 200), "cnn", or any model of such inputs and `classes`
            logits.
        num_clients: that many writers, drawn at random; default all; at least 1.
        seed: of the drawn writers, at least 0.
        flip: pixels 1 - x: paper is 1 and ink 0, as TensorFlow's federated EMNIST stores them. The code of
            Yuan et al. turns those into ink 1, which is what there is here without it.
        dataset: "unipen", or "femnist": the writers, split and numbers of examples are then those of the folder
            that `fedsolve data femnist` converted.

    Returns:
        The task `handwriting-62`, or `femnist-62` of that data set, and so on, with `accuracy` as its metric.

    Raises:
        InvalidInput: the file is missing, damaged or another version, or an argument that cannot be used.
    """
    if check_integer("classes", classes) not in (10, 62):
        raise InvalidInput(f"classes = {classes} must be 62, or 10 for the digits alone")
    chosen = pick("model", model, models(classes))
    if not is_one_of(dataset, ("unipen", "femnist")):
        raise unknown("data set of handwriting", dataset, ("unipen", "femnist"))
    file, sha256 = (FILE, SHA256) if dataset == "unipen" else (FEMNIST, "")
    z = read_checked(data_dir, file, sha256, ["x", "y", "writer", "is_test"])
    wanted = z["y"] < classes
    train, test = np.flatnonzero(wanted & ~z["is_test"]), np.flatnonzero(wanted & z["is_test"])

    def examples(rows: np.ndarray) -> Examples:
        x = np.divide(z["x"][rows][..., None], 255.0, dtype=np.float32)
        return Examples(1 - x if flip else x, z["y"][rows].astype(np.int32))

    data = by_owner(z["writer"], train, num_clients, seed, examples, "writer")
    name = f"handwriting-{classes}" if dataset == "unipen" else f"femnist-{classes}"
    source = "guyon1994unipen" if dataset == "unipen" else "caldas2018leaf"
    task = classification(name, chosen, classes, data, examples(test), source)
    return replace(task, batch_size=10, eval_examples=5_000)
