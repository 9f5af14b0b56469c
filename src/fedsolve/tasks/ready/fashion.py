"""Fashion-MNIST in any partition (Xiao et al. 2017)."""

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
from fedsolve.data.partitions import Dirichlet, Partition, as_partition
from fedsolve.tasks.models.models import CNN, MLP, Softmax
from fedsolve.tasks.shared import Choice, classification, pick
from fedsolve.tasks.task import Examples, Task

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

MODELS = {
    "cnn": CNN(classes=10, dropout=(0.25, 0.5)),
    "mlp": MLP((784, 128, 10)),
    "softmax": Softmax(784, 10),
}
"""Models of the task by name."""
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
    chosen = pick("model", model, MODELS)
    deal = as_partition(partition)
    check_integer("seed", seed)
    folder = _folder(data_dir)
    pool, test = (_read(folder, split) for split in ("train", "t10k"))
    data = FederatedData.from_partition(pool, deal(pool.y, num_clients, seed))
    task = classification("fashion-mnist", chosen, 10, data, test, "xiao2017fashion")
    return replace(task, batch_size=20, eval_examples=5_000)


def _folder(data_dir: str | Path | None) -> Path:
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


def _read(folder: Path, split: str) -> Examples:
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
