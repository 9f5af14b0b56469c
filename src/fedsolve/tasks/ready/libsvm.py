"""Binary logistic regression on a9a, w8a and mushrooms in LIBSVM's format (Chang and Lin 2011; Platt 1998)."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path

import numpy as np

from fedsolve.core.building import by_name
from fedsolve.core.errors import InvalidInput, check_integer, check_number, is_one_of, unknown
from fedsolve.data import sources
from fedsolve.data.federated import FederatedData
from fedsolve.data.partitions import IID, Partition, as_partition
from fedsolve.tasks.losses.losses import Logistic, Ridge
from fedsolve.tasks.losses.sequences import BinaryAccuracy
from fedsolve.tasks.models.models import Linear
from fedsolve.tasks.shared import Choice
from fedsolve.tasks.task import Examples, Task

FEATURES = {"a9a": 123, "w8a": 300, "mushrooms": 112}
HELD_OUT = {"a9a": "a9a.t"}
SHA256 = {
    "a9a": "f5d5ffd8d865ff41328e7ee043e4b020816914ff6843ff15b98905ddbedce906",
    "a9a.t": "7d8c09f1120d9ff231d85caba98956906033f3c4d53e2b15ab7ef83710de6a76",
    "w8a": "b464b4f6ce6a5d9e181ffc793e19a04751036273722312398ef7673705014902",
    "mushrooms": "f39a4eb628dc61a7d43760815b061c9e497aa728ce1ad8bde57a09ef6043b538",
}
"""SHA-256 of the text of each file, unzipped."""
_LARGEST = float(np.finfo(np.float32).max)
_LONGEST = 18  # digits of an index
DEALT = IID()
"""The partition where none is given."""


@by_name("libsvm")
def libsvm(
    data_dir: str | Path | None = None,
    dataset: str = "a9a",
    num_clients: int = 100,
    partition: Partition | Choice = DEALT,
    l2: float = 0.0,
    bias: bool = False,
    seed: int = 0,
) -> Task:
    """Logistic regression on a9a, w8a or mushrooms: mean log(1 + exp(-y <w, x>)) + (l2 / 2) |w|^2 from w = 0.

    x is float32 of shape (n, features), as in the file; y is int32 of shape (n,), 1 for the larger of the
    file's two labels and 0 for the other. a9a has 32,561 training and 16,281 test examples of 123 features;
    of w8a (49,749 of 300) and mushrooms (8,124 of 112) a random fifth is held out. With l2 > 0 the problem is
    strongly convex; the loss that is logged then has the penalty, in the test set as well.

    The files are `libsvm/a9a.gz`, `a9a.t.gz`, `w8a.gz` and `mushrooms.gz` of the data folder, or the same
    unzipped; the check sum of their text is verified.

    Args:
        data_dir: the data folder; default the environment variable FEDSOLVE_DATA.
        dataset: "a9a", "w8a" or "mushrooms".
        num_clients: clients, at most the training examples.
        partition: a partition, its name or a table of name and parameters; default IID. "shards" with
            per_client = 1 sorts by label.
        l2: weight of (1/2) |w|^2, >= 0; the bias is not penalised.
        bias: whether the margin has a bias; without one, as in the optimisation literature, by default.
        seed: of the held-out choice and the partition, at least 0.

    Returns:
        The task of the data set's name, with `accuracy` as its metric; its model is an `Affine` of weight
        (features,).

    Raises:
        InvalidInput: a file is missing, damaged or another version, or an argument that cannot be used.
    """
    if not is_one_of(dataset, FEATURES):
        raise unknown("LIBSVM data set", dataset, FEATURES)
    check_number("l2", l2, at_least=0)
    deal = as_partition(partition)
    rng = np.random.default_rng(check_integer("seed", seed))
    check_integer("num_clients", num_clients, 1)
    folder = sources.data_dir(data_dir) / "libsvm"
    pooled = _read(folder, dataset, FEATURES[dataset])
    if dataset in HELD_OUT:
        test = _read(folder, HELD_OUT[dataset], FEATURES[dataset])
    else:
        order = rng.permutation(len(pooled.y))
        held_out = round(0.2 * len(order))
        test = Examples(*(a[order[:held_out]] for a in pooled))
        pooled = Examples(*(a[order[held_out:]] for a in pooled))
    model = Linear(FEATURES[dataset], bias=bias)
    return Task(
        name=dataset,
        init=model.init,
        loss=Ridge(Logistic(model), float(l2)) if l2 else Logistic(model),
        data=FederatedData.from_partition(pooled, deal(pooled.y, num_clients, seed)),
        test=test,
        metrics={"accuracy": BinaryAccuracy(model)},
        citation="chang2011libsvm",
    )


def _read(folder: Path, name: str, features: int) -> Examples:
    # zipped or not, with labels 0 and 1; the check sum is that of the text
    zipped, plain = folder / f"{name}.gz", folder / name
    path = plain if plain.is_file() and not zipped.is_file() else zipped
    text = sources.read_bytes(path)
    text = sources.unzipped(path, text) if path == zipped else text
    x, labels = parse(text, features, str(path))
    actual = hashlib.sha256(text).hexdigest()
    if actual != SHA256[name]:
        raise InvalidInput(
            f"{path} has text of SHA-256 {actual[:12]}, expected {SHA256[name][:12]}: "
            "the file is damaged or another version, fetch the file again"
        )
    return Examples(x, (labels == labels.max()).astype(np.int32))


def parse(text: bytes, features: int, where: str = "the text") -> tuple[np.ndarray, np.ndarray]:
    """Inputs (n, features), float32, and labels (n,), float64, of LIBSVM's format; blank lines are skipped.

    A line is `label index:value ...`, indices ascending from 1; what is not named is 0. `InvalidInput` if there is no
    example, or a line is not of the format, with its number.

    >>> parse(b"-1 1:2 3:0.5", 3)
    (array([[2. , 0. , 0.5]], dtype=float32), array([-1.]))
    >>> parse(b"-1 3:1 1:2", 3)
    Traceback (most recent call last):
    ...
    fedsolve.InvalidInput: the text, line 1: index 1 after 3, indices must ascend from 1 to 3
    """
    labels: list[float] = []
    rows: list[int] = []
    columns: list[int] = []
    values: list[float] = []
    for number, line in enumerate(text.split(b"\n"), 1):
        words = line.split()
        if not words:
            continue
        at = f"{where}, line {number}"
        label = _number(words[0], at, "label")
        last = 0
        for place, word in enumerate(words[1:], 2):
            index, colon, value = word.partition(b":")
            if not (colon and index.isdigit() and len(index) <= _LONGEST):
                raise InvalidInput(f"{at}: word {place} is not index:value")
            column = int(index)
            if not last < column <= features:
                raise InvalidInput(
                    f"{at}: index {column} after {last}, indices must ascend from 1 to {features}"
                )
            rows.append(len(labels))
            columns.append(column - 1)
            values.append(_number(value, at, "value"))
            last = column
        labels.append(label)
    if not labels:
        raise InvalidInput(f"{where} holds no example: fetch the file again")
    x = np.zeros((len(labels), features), np.float32)
    x[rows, columns] = values
    return x, np.array(labels)


def _number(word: bytes, at: str, what: str) -> float:
    try:
        number = float(word)
    except ValueError:
        number = math.nan
    if not abs(number) <= _LARGEST:
        raise InvalidInput(f"{at}: {what} is not a finite number")
    return number
