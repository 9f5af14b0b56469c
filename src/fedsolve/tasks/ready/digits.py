"""The 8x8 handwritten digits that come with scikit-learn: a real task that needs no download."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedsolve.core.building import by_name
from fedsolve.core.errors import check_integer
from fedsolve.data.federated import FederatedData
from fedsolve.data.partitions import Dirichlet, Partition, as_partition
from fedsolve.tasks.models.models import MLP, Softmax
from fedsolve.tasks.shared import Choice, classification, package_folder, pick
from fedsolve.tasks.task import Examples, Task

MODELS = {"mlp": MLP((64, 64, 10)), "softmax": Softmax(64, 10)}
DIRICHLET = Dirichlet(0.3)
"""The partition where none is given."""


@by_name("digits")
def digits(
    num_clients: int = 100, partition: Partition | Choice = DIRICHLET, model: Any = "mlp", seed: int = 0
) -> Task:
    """8x8 handwritten digits: ten classes, 1,797 examples, a fifth held out (Alpaydin and Kaynak 1998).

    x is float32 of shape (n, 64) in [0, 1], y int32 of shape (n,); 1,438 training and 359 test examples.

    Args:
        num_clients: clients, 1 to 1,438.
        partition: a partition, its name or a table of name and parameters; default Dirichlet(0.3).
        model: "mlp" (one hidden layer of 64), "softmax", or any model of (n, 64) inputs and 10 logits.
        seed: of the held-out choice and the partition, at least 0.

    Returns:
        The task `digits`, with `accuracy` as its metric.

    Raises:
        InvalidInput: scikit-learn is missing, or an argument that cannot be used.
    """
    x, y = _load()
    chosen = pick("model", model, MODELS)
    deal = as_partition(partition)
    order = np.random.default_rng(check_integer("seed", seed)).permutation(len(y))
    test, train = order[: round(0.2 * len(y))], order[round(0.2 * len(y)) :]
    pooled = Examples(x[train], y[train])
    data = FederatedData.from_partition(pooled, deal(pooled.y, num_clients, seed))
    return classification("digits", chosen, 10, data, Examples(x[test], y[test]), "alpaydin1998digits")


def _load() -> tuple[np.ndarray, np.ndarray]:
    # read without importing scikit-learn, which takes two seconds
    missing = "the task digits needs scikit-learn: install it, or fedsolve with the extra 'digits'"
    table = package_folder("sklearn", missing) / "datasets" / "data" / "digits.csv.gz"
    if table.exists():
        rows = np.loadtxt(table, delimiter=",", dtype=np.float32)
        return rows[:, :-1] / np.float32(16), rows[:, -1].astype(np.int32)
    from sklearn.datasets import load_digits  # a scikit-learn that keeps the table elsewhere

    x, y = map(np.asarray, load_digits(return_X_y=True))
    return (x / 16.0).astype(np.float32), y.astype(np.int32)
