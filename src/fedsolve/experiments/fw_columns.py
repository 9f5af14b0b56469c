"""Columns of the tables of Dadras et al. 2024 as tasks: data, their deal to clients, the set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

import fedsolve as fs
from fedsolve.data.federated import FederatedData
from fedsolve.data.partitions import IID, LabelsPerClient
from fedsolve.diagnostics import FrankWolfeGap
from fedsolve.errors import InvalidInput
from fedsolve.experiments.fw_problems import BALLS, halved
from fedsolve.tasks.choices import classification
from fedsolve.tasks.models import Softmax
from fedsolve.tasks.task import Examples, Task

DEALS = {"iid": "IID", "labels": "non-IID"}
HELD_OUT = 5
"""A synthetic client holds out one example to so many that it trains on, for the common test."""
POPULATION = 30
"""Synthetic clients drawn for each one that is large enough to be kept."""


@dataclass(frozen=True)
class Pictures:
    """A data set of pictures, dealt anew for each seed.

    Attributes:
        load: from the data folder to its training and test examples, in bytes.
        mean, deviation: of the scaling, as the public code has it: (x / 255 - mean) / deviation.
        classes: of the labels.
        labels: of a client that is not IID.
    """

    load: Callable[[Path | None], tuple[Examples, Examples]]
    mean: float = 0.5
    deviation: float = 0.5
    classes: int = 10
    labels: int = 3

    def __call__(self, data_dir: Path | None, seed: int, clients: int, iid: bool, most: int | None) -> Task:
        """All examples dealt; each client keeps `most` of its own, drawn at random."""
        pool, test = self.load(data_dir)
        deal = IID() if iid else LabelsPerClient(self.labels)
        parts, rng = deal(pool.y, clients, seed), np.random.default_rng((seed, 1))
        if most is not None and (least := min(map(len, parts))) < most:
            raise InvalidInput(f"a client has {least} of the {most} examples that it should keep: keep fewer")
        parts = [part if most is None else rng.permutation(part)[:most] for part in parts]
        counts, rows = np.array([len(part) for part in parts]), np.concatenate(parts)
        data = FederatedData(self._scaled(pool, rows), counts)
        return _softmax(data, self._scaled(test, slice(None)), self.classes)

    def _scaled(self, examples: Examples, rows: Any) -> Examples:
        x = np.asarray(examples.x[rows], np.float32)
        return Examples((x / 255 - self.mean) / np.float32(self.deviation), examples.y[rows])


def synthetic(data_dir: Path | None, seed: int, clients: int, iid: bool, most: int | None) -> Task:
    """synthetic(0.5, 0.5) with 3 labels a client, or synthetic-iid; clients of `most` examples, or all as drawn.

    The public code draws at least 250 examples a client. So clients are those that have as many, of a population of
    which most do not; the k-th is drawn from those with the labels of client k.
    """
    drawn: dict[str, Any] = {"iid": True} if iid else {"alpha": 0.5, "beta": 0.5, "labels_per_client": 3}
    if most is None:
        return replace(fs.tasks.synthetic(num_clients=clients, seed=seed, **drawn), eval_examples=None)
    held_out = most // HELD_OUT
    kept = most + held_out  # the task holds a fifth out itself, of all clients together
    whole = fs.tasks.synthetic(
        num_clients=POPULATION * clients, seed=seed, max_examples=-(-5 * kept // 4), **drawn
    )
    large = np.flatnonzero(whole.data.counts >= kept).tolist()
    chosen: list[int] = []
    for k in range(clients):
        fitting = [i for i in large if i % 10 == k % 10 and i not in chosen]
        if not fitting:
            raise InvalidInput(f"seed {seed} drew too few clients of {kept} examples: take another seed")
        chosen.append(fitting[0])
    mine = [whole.data.client(i) for i in chosen]
    data = FederatedData.from_clients([Examples(e.x[held_out:kept], e.y[held_out:kept]) for e in mine])
    test = Examples(
        np.concatenate([e.x[:held_out] for e in mine]), np.concatenate([e.y[:held_out] for e in mine])
    )
    return _softmax(data, test, 10)


def _softmax(data: FederatedData, test: Examples, classes: int) -> Task:
    model = Softmax(int(np.prod(test.x.shape[1:])), classes)
    task = classification("frank-wolfe", model, classes, data, test, "dadras2024fedfw")
    return replace(task, eval_examples=None)


def judged(task: Task, ball: str) -> Task:
    """With the Frank-Wolfe gap of the set, whatever the method."""
    return replace(task, diagnostics=(FrankWolfeGap(BALLS[ball]),))


@lru_cache(maxsize=1)
def _mnist(data_dir: Path | None) -> tuple[Examples, Examples]:
    task = fs.tasks.mnist_by_writer(data_dir, "softmax", 1, 0, IID())
    both: Any = (task.data.examples, task.test)
    pool, test = (Examples(np.rint(255 * e.x).astype(np.uint8), e.y) for e in both)
    return pool, test


@lru_cache(maxsize=1)
def _cifar(data_dir: Path | None) -> tuple[Examples, Examples]:
    task = fs.tasks.cifar10(data_dir, 1, IID(), model="softmax", augment=False)
    both: Any = (task.data.examples, task.test)
    pool, test = (Examples(halved(e.x), e.y) for e in both)
    return pool, test


@lru_cache(maxsize=1)
def _femnist(data_dir: Path | None) -> tuple[Examples, Examples]:
    task = fs.tasks.femnist(data_dir, "softmax", flip=False)
    both: Any = (task.data.examples, task.test)
    pool, test = (Examples(halved(e.x), e.y) for e in both)
    return pool, test


def _digits(data_dir: Path | None) -> tuple[Examples, Examples]:
    pool, test = (Examples(e.x[e.y < 10], e.y[e.y < 10]) for e in _femnist(data_dir))
    return pool, test


EMNIST = 0.1307, 0.3081
"""Mean and deviation of the scaling."""
DATA: dict[str, Callable[..., Task]] = {
    "mnist": Pictures(_mnist),
    "cifar": Pictures(_cifar),
    "synthetic": synthetic,
    "digits": Pictures(_digits, *EMNIST),
    "characters": Pictures(_femnist, *EMNIST, classes=62, labels=20),
}
"""(data folder, seed, clients, whether IID, examples of a client) -> task, by the names of the columns."""
