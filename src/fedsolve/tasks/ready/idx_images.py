"""MNIST by writer (LeCun et al. 1998; Yadav and Bottou 2019) and Fashion-MNIST (Xiao et al. 2017), of idx files."""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedsolve.core.building import by_name
from fedsolve.core.errors import InvalidInput, check_integer
from fedsolve.data import sources
from fedsolve.data.federated import FederatedData
from fedsolve.data.partitions import Dirichlet, Natural, Partition, as_partition
from fedsolve.data.sources import checksum, read_idx, read_npz
from fedsolve.tasks.losses.sequences import TopK
from fedsolve.tasks.models.models import CNN, MLP, Softmax
from fedsolve.tasks.shared import Choice, classification, deal_rows, pick
from fedsolve.tasks.task import Examples, Task

MODELS = {"cnn": CNN(classes=10), "mlp": MLP((784, 128, 10)), "softmax": Softmax(784, 10)}

SHA256 = {
    "mnist_writers.npz": "af94acbc1c2f4bbe358f73421d4f35c038e4a9bf9667d58adb8232e59dc6011c",
    "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
}
"""SHA-256 of the files; the four idx files are the originals."""


@by_name("mnist")
def mnist_by_writer(
    data_dir: str | Path | None = None,
    model: Any = "cnn",
    num_clients: int | None = None,
    seed: int = 0,
    partition: Partition | Choice | None = None,
    examples: int | None = None,
) -> Task:
    """MNIST by writer: 539 clients of 19 to 131 digits, 60,000 in all, and the 10,000 test digits.

    x is float32 of shape (n, 28, 28, 1) in [0, 1] with ink 1, y int32 of shape (n,). No writer of the test
    digits is a client. With `partition` the 60,000 are pooled and dealt anew instead.
    The files are read from `mnist/` in the data folder and their check sums verified.

    Args:
        data_dir: the data folder; default the environment variable FEDSOLVE_DATA.
        model: "cnn", "mlp" (one hidden layer of 128), "softmax", or any model of such inputs and 10 logits.
        num_clients: that many writers, drawn at random (default all), or that many clients of the partition; at least
            1.
        seed: of the drawn examples and writers, and of the partition, at least 0.
        partition: a partition, its name or a table of name and parameters, such as
            {"name": "labels", "k": 3}; needs `num_clients`. Default (and "natural"): by writer.
        examples: that many training digits, drawn at random before anything else; default all. Writers left
            without any are no clients.

    Returns:
        The task `mnist`, with `accuracy` and `top3_accuracy` as its metrics.

    Raises:
        InvalidInput: a file is missing, damaged or another version, or an argument that cannot be used.
    """
    chosen = pick("model", model, MODELS)
    deal = Natural() if partition is None else as_partition(partition)
    by_writer = isinstance(deal, Natural)
    if num_clients is None and not by_writer:
        raise InvalidInput(
            f"partition {deal.name} needs num_clients: give the number of clients, such as 100"
        )
    folder = sources.data_dir(data_dir) / "mnist"
    for name, sha256 in SHA256.items():
        checksum(folder / name, sha256)
    writers = read_npz(folder / "mnist_writers.npz", ["train_writer"])["train_writer"]
    column = writers if by_writer else read_idx(folder / "train-labels-idx1-ubyte.gz")
    drawn = _draw(len(column), examples, seed)
    parts = [drawn[part] for part in deal(column[drawn], num_clients, seed)]  # type: ignore[arg-type]
    names = tuple(f"writer {writers[part[0]]}" for part in parts) if by_writer else ()
    data = deal_rows(parts, lambda rows: _read(folder, "train", rows), names)
    task = classification("mnist", chosen, 10, data, _read(folder, "t10k"), "yadav2019qmnist")
    metrics = {**task.metrics, "top3_accuracy": TopK(chosen, 3)}
    return replace(task, metrics=metrics, batch_size=20, eval_examples=5_000)


def _draw(total: int, examples: int | None, seed: int) -> np.ndarray:
    if examples is None:
        return np.arange(total)
    if check_integer("examples", examples, 1) > total:
        raise InvalidInput(
            f"examples = {examples} is more than the {total} training digits: give at most {total}"
        )
    rng = np.random.default_rng((check_integer("seed", seed), 1))  # not the stream of the partition
    return np.sort(rng.choice(total, examples, replace=False))


def _read(folder: Path, split: str, rows: np.ndarray | None = None) -> Examples:
    x = read_idx(folder / f"{split}-images-idx3-ubyte.gz")
    y = read_idx(folder / f"{split}-labels-idx1-ubyte.gz")
    if x.shape != (len(y), 28, 28):
        raise InvalidInput(
            f"{folder}: {split} images have shape {x.shape} for {len(y)} labels: fetch them again"
        )
    if rows is not None:
        x, y = x[rows], y[rows]
    return Examples(np.divide(x[..., None], 255.0, dtype=np.float32), y.astype(np.int32))


FOLDER = "fashion-mnist"
DEBIAN = Path("/usr/share/datasets/fashion-mnist")
"""Where Debian's package dataset-fashion-mnist puts the files."""
CONTENT = {
    "train-images-idx3-ubyte.gz": "2e487a6c89124f78f2d7521542223cafe96f7123c3ca13d447772ac6ecbb3012",
    "train-labels-idx1-ubyte.gz": "657fbd221bfc9f4198cc14b5619cc33ec57c58dd0e47af4d99d6650759e869a7",
    "t10k-images-idx3-ubyte.gz": "c867c93ff95360594e8ec3287995350b824dd110b11595c0e13d5423f621867a",
    "t10k-labels-idx1-ubyte.gz": "3d0e6c6ea990b53b6f8f500a41cac93881d981b315f84578b7d915342ade01e9",
}
"""SHA-256 of the pixels and labels behind each file's header: Debian has zipped the files anew."""

FASHION_MODELS = {
    "cnn": CNN(classes=10, dropout=(0.25, 0.5)),
    "mlp": MLP((784, 128, 10)),
    "softmax": Softmax(784, 10),
}
DIRICHLET = Dirichlet(0.3)
"""The partition where none is given."""


@by_name("fashion-mnist")
def fashion_mnist(
    data_dir: str | Path | None = None,
    num_clients: int = 100,
    partition: Partition | Choice = DIRICHLET,
    model: Any = "cnn",
    seed: int = 0,
) -> Task:
    """Fashion-MNIST, all 60,000 + 10,000 images of clothes, in any partition (Xiao et al. 2017).

    x is uint8 of shape (n, 28, 28, 1), which the model takes as floats; y int32 of shape (n,), 10 classes. The
    data have no clients of their own and none of the papers here uses them: the default split, Dirichlet(0.3) over
    100 clients, and batches of 20 are those of `cifar10`.

    Args:
        data_dir: the data folder, with the four idx files in `fashion-mnist/`; default the environment variable
            FEDSOLVE_DATA, or Debian's package dataset-fashion-mnist where that has none.
        num_clients: clients, at least 1.
        partition: a partition, its name or a table of name and parameters; default Dirichlet(0.3).
        model: "cnn" (with dropout), "mlp" (one hidden layer of 128), "softmax", or any model of such inputs and 10
            logits.
        seed: of the partition, at least 0.

    Returns:
        The task `fashion-mnist`, with `accuracy` as its metric.

    Raises:
        InvalidInput: a file is missing, damaged or another version, or an argument that cannot be used.
    """
    chosen = pick("model", model, FASHION_MODELS)
    deal = as_partition(partition)
    check_integer("seed", seed)
    folder = _fashion_folder(data_dir)
    pool, test = (_read_fashion(folder, split) for split in ("train", "t10k"))
    data = FederatedData.from_partition(pool, deal(pool.y, num_clients, seed))
    task = classification("fashion-mnist", chosen, 10, data, test, "xiao2017fashion")
    return replace(task, batch_size=20, eval_examples=5_000)


def _fashion_folder(data_dir: str | Path | None) -> Path:
    # the data folder, else where Debian puts the files
    if data_dir is None:
        given = os.environ.get(sources.VARIABLE)
        if not (given and (Path(given).expanduser() / FOLDER).is_dir()):
            if DEBIAN.is_dir():
                return DEBIAN
            raise InvalidInput(
                f"no {FOLDER}/ in the data folder ({sources.VARIABLE}) and no Debian package dataset-fashion-mnist: "
                "`fedsolve data fashion-mnist --to FOLDER` fetches the files"
            )
    return sources.data_dir(data_dir) / FOLDER


def _read_fashion(folder: Path, split: str) -> Examples:
    arrays = []
    for name in (f"{split}-images-idx3-ubyte.gz", f"{split}-labels-idx1-ubyte.gz"):
        a = sources.read_idx(folder / name)
        actual = hashlib.sha256(a.tobytes()).hexdigest()
        if actual != CONTENT[name]:
            raise InvalidInput(
                f"{folder / name} has content of SHA-256 {actual[:12]}, expected {CONTENT[name][:12]}: it is damaged "
                "or another data set, fetch it again"
            )
        arrays.append(a)
    x, y = arrays
    return Examples(x[..., None], y.astype(np.int32))
