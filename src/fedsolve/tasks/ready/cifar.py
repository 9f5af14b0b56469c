"""Subsets of CIFAR-10 and CIFAR-100 in any partition (Krizhevsky 2009), with the preprocessing of Reddi et al. 2021."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedsolve.core.building import by_name
from fedsolve.core.errors import InvalidInput, check_integer
from fedsolve.data.federated import FederatedData
from fedsolve.data.partitions import Dirichlet, Pachinko, Partition, as_partition
from fedsolve.data.sources import read_checked
from fedsolve.tasks.datasets.originals import find, members, refuse, unzipped, write_npz
from fedsolve.tasks.losses.sequences import TopK
from fedsolve.tasks.models.models import CNN, Softmax
from fedsolve.tasks.models.pictures import Augmented, ResNet18
from fedsolve.tasks.shared import Choice, classification, deal_rows, pick
from fedsolve.tasks.task import Examples, Task

FILE = "cifar10_20k4k.npz"
SHA256 = "ac8d8318e4a2d88def2ace1fe0717f333d1bfa6572154dc95742fd566a888652"
FILE_100 = "cifar100_20k4k.npz"
SHA256_100 = "d9b844860b4def2c1610ed65acc9777f9e82ec22510712188f982f44e2f5f78b"

DIRICHLET = Dirichlet(0.3)
"""The partition of CIFAR-10 where none is given."""
PACHINKO = Pachinko()
"""The partition of CIFAR-100 where none is given."""


def models(side: int, classes: int) -> dict[str, Any]:
    # for images of side x side pixels
    return {
        "resnet18": ResNet18(classes),
        "resnet18-16": ResNet18(classes, width=16, groups=8),
        "cnn": CNN(classes=classes, height=side, width=side, inputs=3, dropout=(0.25, 0.5)),
        "softmax": Softmax(3 * side * side, classes),
    }


@by_name("cifar10")
def cifar10(
    data_dir: str | Path | None = None,
    num_clients: int = 100,
    partition: Partition | Choice = DIRICHLET,
    model: Any = "resnet18",
    seed: int = 0,
    examples_per_client: int | None = None,
    augment: bool = True,
) -> Task:
    """CIFAR-10 subset, 20,000 + 4,000 images: 100 clients, Dirichlet(0.3) (Krizhevsky 2009).

    A random subset of the data set, 2,000 of the 5,000 training images of each class: accuracies are below those
    of papers that train on all. x is uint8 of shape (n, 32, 32, 3), red, green and blue, which the model takes as
    floats; y is int32 of shape (n,). 100 clients in a Dirichlet(0.3) split are those of Takakura et al. 2025. The
    preprocessing (random crop of 24 x 24 and mirror in training, the middle in evaluation, each image
    standardised), batches of 20 and 1 epoch are those of Reddi et al. 2021, who draw 10 clients a round and add
    1e-4 of weight decay.

    Args:
        data_dir: the data folder; default the environment variable FEDSOLVE_DATA.
        num_clients: clients, at least 1.
        partition: a partition, its name or a table of name and parameters; default Dirichlet(0.3).
        model: "resnet18" (with GroupNorm, 11 million parameters), "resnet18-16" (a quarter as wide), "cnn" (with
            dropout), "softmax", or any model of such inputs and 10 logits.
        seed: of the partition and of the drawn examples, at least 0.
        examples_per_client: after the partition each client keeps at most that many, drawn at random.
        augment: the preprocessing above; without it models see all of an image, as bytes, in training and after.

    Returns:
        The task `cifar10-subset`, with `accuracy` as its metric.

    Raises:
        InvalidInput: the file is missing, damaged or another version, or an argument that cannot be used.
    """
    rule, most = as_partition(partition), _most(examples_per_client)
    chosen = _model(model, 10, augment)
    z = read_checked(data_dir, FILE, SHA256, _FIELDS)
    data, test = _deal(z, rule, num_clients, seed, most)
    task = classification("cifar10-subset", chosen, 10, data, test, "krizhevsky2009cifar")
    return replace(task, batch_size=20, eval_examples=5_000)


@by_name("cifar100")
def cifar100(
    data_dir: str | Path | None = None,
    num_clients: int = 200,
    partition: Partition | Choice = PACHINKO,
    model: Any = "resnet18",
    seed: int = 0,
    examples_per_client: int | None = None,
    augment: bool = True,
) -> Task:
    """CIFAR-100 subset, 20,000 + 4,000 images: 200 clients by Pachinko over the 20 superclasses (Krizhevsky 2009).

    A random subset of the data set, 200 of the 500 training images of each class: accuracies are below those of
    papers that train on all. As in Reddi et al. 2021 a client has 100 images drawn by Pachinko allocation (0.1
    over the superclasses, 10 over the classes of each), but there are 200 clients, not 500. Inputs, preprocessing,
    batches and epochs are those of `cifar10`; the cohort of the paper is 10. `top5_accuracy` is measured, too.

    Args:
        data_dir: the data folder; default the environment variable FEDSOLVE_DATA.
        num_clients: clients, at least 1.
        partition: a partition, its name or a table of name and parameters; default Pachinko(0.1, 10).
        model: "resnet18" (with GroupNorm, 11 million parameters), "resnet18-16" (a quarter as wide), "cnn" (with
            dropout), "softmax", or any model of such inputs and 100 logits.
        seed: of the partition and of the drawn examples, at least 0.
        examples_per_client: after the partition each client keeps at most that many, drawn at random.
        augment: the preprocessing of `cifar10`; without it models see all of an image, as bytes.

    Returns:
        The task `cifar100-subset`, with `accuracy` and `top5_accuracy` as its metrics.

    Raises:
        InvalidInput: the file is missing, damaged or another version, or an argument that cannot be used.
    """
    rule, most = as_partition(partition), _most(examples_per_client)
    chosen = _model(model, 100, augment)
    z = read_checked(data_dir, FILE_100, SHA256_100, [*_FIELDS, "coarse_of"])
    data, test = _deal(z, rule, num_clients, seed, most, z["coarse_of"][z["y_train"]])
    task = classification("cifar100-subset", chosen, 100, data, test, "krizhevsky2009cifar")
    metrics = {**task.metrics, "top5_accuracy": TopK(chosen, 5)}
    return replace(task, metrics=metrics, batch_size=20, eval_examples=5_000)


_FIELDS = ("d_train", "y_train", "d_test", "y_test")


def _model(model: Any, classes: int, augment: bool) -> Any:
    # behind the preprocessing
    chosen = pick("model", model, models(24 if augment else 32, classes))
    return Augmented(chosen) if augment else chosen


def _most(examples: int | None) -> int | None:
    return None if examples is None else check_integer("examples_per_client", examples, 1)


def _deal(
    z: dict[str, np.ndarray], rule: Partition, clients: int, seed: int, most: int | None, coarse: Any = None
) -> tuple[FederatedData, Examples]:
    # coarse: superclasses of the training images
    y, above = z["y_train"], {"coarse": coarse} if isinstance(rule, Pachinko) else {}
    parts = rule(y, clients, seed, **above)
    if most is not None:
        rng = np.random.default_rng((seed, 1))  # not the stream that the partition drew from
        parts = [np.sort(rng.permutation(part)[:most]) for part in parts]
    data = deal_rows(parts, lambda rows: _examples(z["d_train"][rows], y[rows]))
    return data, _examples(z["d_test"], z["y_test"])


def decode(differences: np.ndarray) -> np.ndarray:
    # differences -> pixels, both uint8 (n, 3, 32, 32), modulo 256. The file holds red and blue minus green,
    # then differences down the rows, then along the columns
    x = np.cumsum(np.cumsum(differences, axis=2, dtype=np.uint8), axis=3, dtype=np.uint8)
    x[:, 0] += x[:, 1]
    x[:, 2] += x[:, 1]
    return x


def _examples(differences: np.ndarray, y: np.ndarray) -> Examples:
    return Examples(np.ascontiguousarray(decode(differences).transpose(0, 2, 3, 1)), y.astype(np.int32))


# CIFAR-10 and CIFAR-100 from their binary versions: balanced subsets in the form that the tasks read.

ARCHIVE = "cifar-10-binary.tar.gz"
ARCHIVE_100 = "cifar-100-binary.tar.gz"
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
PARTS = {"train": [f"data_batch_{i}.bin" for i in range(1, 6)], "test": ["test_batch.bin"]}
PARTS_100 = {"train": ["train.bin"], "test": ["test.bin"]}
_MOST = 200_000_000


def convert(folder: Path, to: Path, each: tuple[int, int] = (2_000, 400), whole: int = 10_000) -> list[Path]:
    # draws (with a fixed seed) each[0] training and each[1] test images of each class, from `whole` a file
    contents = _contents(
        folder, ARCHIVE, PARTS, ("cifar-10-python.tar.gz", "data_batch_1", "cifar-10-batches-py")
    )
    sizes = dict.fromkeys(contents, whole)
    arrays, _ = _drawn(folder, contents, PARTS, sizes, each, 1, 10)
    return [write_npz(to / FILE, {"classes": np.array(CLASSES), **arrays}, SHA256)]


def convert_100(
    folder: Path, to: Path, each: tuple[int, int] = (200, 40), whole: tuple[int, int] = (50_000, 10_000)
) -> list[Path]:
    # the same of CIFAR-100, whose records have a superclass before the class; files of `whole` images
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
    # arrays of the images drawn, and all training records: `labels` bytes, the class last, then the pixels
    record, rng = labels + 3072, np.random.default_rng(0)
    arrays, all_ = {}, {}
    for (split, names), count in zip(parts.items(), each, strict=True):
        for name in names:
            size, wanted = len(contents[name]), f"{sizes[name]} x {record}"
            refuse(size != sizes[name] * record, folder / name, f"it has {size} bytes, not {wanted}")
        records = np.concatenate(
            [np.frombuffer(contents[name], np.uint8).reshape(-1, record) for name in names]
        )
        y, x = records[:, labels - 1], records[:, labels:].reshape(-1, 3, 32, 32)
        counts = np.bincount(y, minlength=classes)
        wrong = len(counts) > classes or len(set(counts)) > 1
        refuse(wrong, folder / names[0], f"its labels are {counts.tolist()}")
        rows = np.concatenate(
            [rng.permutation(np.flatnonzero(y == label))[:count] for label in range(classes)]
        )
        rows = rng.permutation(rows)
        arrays |= {f"y_{split}": y[rows], f"d_{split}": encode(x[rows])}
        all_[split] = records
    return arrays, all_["train"]


def encode(x: np.ndarray) -> np.ndarray:
    # the inverse of `decode`
    d = x.copy()
    d[:, 0] -= x[:, 1]
    d[:, 2] -= x[:, 1]
    d[:, :, :, 1:] = d[:, :, :, 1:] - d[:, :, :, :-1]
    d[:, :, 1:] = d[:, :, 1:] - d[:, :, :-1]
    return d


def _contents(
    folder: Path, archive: str, parts: Mapping[str, Sequence[str]], pickles: Sequence[str]
) -> dict[str, bytes]:
    # from the archive, or unpacked
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
