"""Handwritten characters by writer: FEMNIST (Caldas et al. 2018) and UNIPEN (Guyon et al. 1994)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedsolve.core.building import by_name
from fedsolve.core.errors import InvalidInput, check_integer, is_one_of, unknown
from fedsolve.data.federated import FederatedData
from fedsolve.data.partitions import Natural
from fedsolve.data.sources import read_checked
from fedsolve.tasks.losses.sequences import ReconstructionError
from fedsolve.tasks.models.models import CNN, MLP, Softmax, check_model
from fedsolve.tasks.models.recurrent import Autoencoder
from fedsolve.tasks.shared import by_owner, classification, deal_rows, pick
from fedsolve.tasks.task import Examples, Task

FILE = "femnist_leaf_sample.npz"
SHA256 = "bab00599b4ae8be2755d3c49ff3c2d280331e15c46d185334cdc0e59038bafe2"

MODELS = {
    "cnn": CNN(classes=62, dropout=(0.25, 0.5)),
    "mlp": MLP((784, 200, 200, 62)),
    "softmax": Softmax(784, 62),
}


@by_name("femnist")
def femnist(
    data_dir: str | Path | None = None,
    model: Any = "cnn",
    num_clients: int | None = None,
    seed: int = 0,
    flip: bool = True,
    dataset: str = "sample",
) -> Task:
    """FEMNIST sample, 300 + 240 writers: 43,552 training images of 300 clients, 62 classes (Caldas et al. 2018).

    Real FEMNIST in LEAF's form and LEAF's split of each writer, but a sample: LEAF has about 3,550 writers, Reddi
    et al. 2021 train on 3,400 with 671,585 images, Takakura et al. 2025 on 100 drawn ones. Clients are writers (1
    to 326 images, median 150). The test set is the 5,050 test images of the same writers; 240 other writers with
    7,348 images are `unseen`. These are no draw from the same writers: nearly all have numbers below 1500 in
    NIST's list, the clients above, and 34 % of their images are digits, 71 % of the clients', so that a model does
    worse on them for that reason, too. x is uint8 of shape (n, 28, 28, 1), which the model takes as floats; y
    int32: digits, capitals, small letters. Batches of 20 and 1 epoch are those of Reddi et al., who draw 10
    clients a round.

    Args:
        data_dir: the data folder; default the environment variable FEDSOLVE_DATA.
        model: "cnn" (that of Reddi et al., with dropout), "mlp", "softmax", or any model of such inputs and 62
            logits.
        num_clients: that many writers, drawn at random; default all; at least 1.
        seed: of the drawn writers, at least 0.
        flip: paper is 1 and ink 0, as in TensorFlow's federated EMNIST and in LEAF; without, ink is 1.
        dataset: "sample", or "leaf" for the writers of the folder that `fedsolve data femnist` converted.

    Returns:
        The task `femnist-sample` or `femnist-leaf`, with `accuracy` as its metric; `unseen` are the writers without
        training images.

    Raises:
        InvalidInput: the file is missing, damaged or another version, or an argument that cannot be used.
    """
    chosen = pick("model", model, MODELS)
    data, test, unseen = pictures(data_dir, num_clients, seed, dataset, flip)
    task = classification(f"femnist-{dataset}", chosen, 62, data, test, "caldas2018leaf")
    return replace(task, unseen=unseen, batch_size=20, eval_examples=2_000)


def pictures(
    data_dir: str | Path | None, num_clients: int | None, seed: int, dataset: str, flip: bool
) -> tuple[FederatedData, Examples, FederatedData | None]:
    # writers that train, the test images of all such writers, and writers that have test images alone
    files = {"sample": (FILE, SHA256), "leaf": (FEMNIST, "")}
    if dataset not in files:
        raise unknown("data set of femnist", dataset, files)
    z = read_checked(data_dir, *files[dataset], ["x", "y", "writer", "is_test", "writers"])
    if flip:
        z["x"] = 255 - z["x"]
    known = np.isin(z["writer"], z["writer"][~z["is_test"]])
    test, unseen = np.flatnonzero(known & z["is_test"]), np.flatnonzero(~known)
    train = np.flatnonzero(~z["is_test"])
    if not len(test) or not len(train):
        raise InvalidInput(f"{files[dataset][0]} has no training or no test images: make it again")
    parts = [train[part] for part in Natural()(z["writer"][train], num_clients, seed)]
    return (
        _writers(z, parts),
        _examples(z, test),
        _writers(z, [unseen[part] for part in Natural()(z["writer"][unseen])]) if len(unseen) else None,
    )


def _writers(z: dict[str, np.ndarray], parts: list[np.ndarray]) -> FederatedData:
    names = tuple(f"writer {z['writers'][z['writer'][part[0]]]}" for part in parts)
    return deal_rows(parts, lambda rows: _examples(z, rows), names)


def _examples(z: dict[str, np.ndarray], rows: np.ndarray) -> Examples:
    return Examples(z["x"][rows][..., None], z["y"][rows].astype(np.int32))


AUTOENCODERS = {"autoencoder": Autoencoder(), "small": Autoencoder((784, 128, 30))}


@by_name("femnist-autoencoder")
def femnist_autoencoder(
    data_dir: str | Path | None = None,
    model: Any = "autoencoder",
    num_clients: int | None = None,
    seed: int = 0,
    flip: bool = True,
    dataset: str = "sample",
) -> Task:
    """FEMNIST sample, 300 + 240 writers: an autoencoder that reconstructs the images (Reddi et al. 2021).

    The loss is the mean square of the reconstruction's error in a pixel, the paper's measure, of training, test
    and unseen writers. Writers and images are those of `femnist`, a sample: Reddi et al. have 3,400 writers with
    671,585 images. x and y are both the image, uint8 of shape (n, 28, 28, 1), of which the model and the loss
    take x / 255. Batches of 20 and 1 epoch are theirs; they draw 10 clients a round, for 3,000 rounds.

    Args:
        data_dir: the data folder; default the environment variable FEDSOLVE_DATA.
        model: "autoencoder" (the paper's, 784-1000-500-250-30 and back), "small" (784-128-30 and back), or any model
            whose outputs have the shape of its inputs.
        num_clients: that many writers, drawn at random; default all; at least 1.
        seed: of the drawn writers, at least 0.
        flip: paper is 1 and ink 0, as in TensorFlow's federated EMNIST and in LEAF; without, ink is 1.
        dataset: "sample", or "leaf" for the writers of the folder that `fedsolve data femnist` converted.

    Returns:
        The task `femnist-sample-autoencoder` or `femnist-leaf-autoencoder`, whose loss is its measure; it has no
        other metric.

    Raises:
        InvalidInput: the file is missing, damaged or another version, or an argument that cannot be used.
    """
    chosen = pick("model", model, AUTOENCODERS)
    data, test, unseen = pictures(data_dir, num_clients, seed, dataset, flip)
    check_model(chosen, (28, 28, 1), (28, 28, 1))
    return Task(
        name=f"femnist-{dataset}-autoencoder",
        init=chosen.init,
        loss=ReconstructionError(chosen),
        data=_themselves(data),
        test=Examples(test.x, test.x),
        unseen=None if unseen is None else _themselves(unseen),
        batch_size=20,
        eval_examples=2_000,
        citation="reddi2021fedopt",
    )


def _themselves(data: FederatedData) -> FederatedData:
    x = data.examples.x
    return FederatedData(Examples(x, x), data.counts, data.names)


FILE_UNIPEN = "unipen62_by_writer.npz"
SHA256_UNIPEN = "0e68c5e582c44c911d92b10fb0390e3ca0c0a65478ca6cadafded77b8f1579e7"
FEMNIST = "femnist.npz"
"""What `fedsolve data femnist` makes; there are several splits of it, so no check sum is known beforehand."""


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
    # the MLP has the two hidden layers of 200 of Yuan et al. 2021
    models = {
        "softmax": Softmax(784, classes),
        "mlp": MLP((784, 200, 200, classes)),
        "cnn": CNN(classes=classes),
    }
    chosen = pick("model", model, models)
    if not is_one_of(dataset, ("unipen", "femnist")):
        raise unknown("data set of handwriting", dataset, ("unipen", "femnist"))
    file, sha256 = (FILE_UNIPEN, SHA256_UNIPEN) if dataset == "unipen" else (FEMNIST, "")
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
