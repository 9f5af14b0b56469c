"""Columns of the tables of Dadras et al. 2024 as tasks: data, their deal to clients, the set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

import fedsolve as fs
from fedsolve.data import IID, LabelsPerClient
from fedsolve.geometry import L1Ball, L2Ball, as_blocks
from fedsolve.studies.public import classification
from fedsolve.tasks import CNN, MLP, Softmax

RADIUS = 10.0
BALLS: dict[str, Any] = {"l2": L2Ball(RADIUS), "l1": L1Ball(RADIUS)}
"""The paper's constraints, each one ball for the whole parameter vector."""
DEALS = {"iid": "IID", "labels": "non-IID"}
HELD_OUT = 5
"""A synthetic client holds out one example to so many that it trains on, for the common test."""
POPULATION = 30
"""Synthetic clients drawn for each one that is large enough to be kept."""


@dataclass(frozen=True)
class Pictures:
    """A data set of pictures, dealt anew for each seed, and the model to fit.

    Attributes:
        load: from the data folder to its training and test examples, in bytes.
        mean, deviation: of the scaling, as the public code has it: (x / 255 - mean) / deviation.
        classes: of the labels.
        labels: of a client that is not IID.
        model: softmax regression with bias where None.
    """

    load: Callable[[Path | None], tuple[fs.Examples, fs.Examples]]
    mean: float = 0.5
    deviation: float = 0.5
    classes: int = 10
    labels: int = 3
    model: Any = None

    def __call__(
        self, data_dir: Path | None, seed: int, clients: int, iid: bool, most: int | None
    ) -> fs.Task:
        """All examples dealt; each client keeps `most` of its own, drawn at random."""
        pool, test = self.load(data_dir)
        deal = IID() if iid else LabelsPerClient(self.labels)
        parts, rng = deal(pool.y, clients, seed), np.random.default_rng((seed, 1))
        if most is not None and (least := min(map(len, parts))) < most:
            raise fs.InvalidInput(
                f"a client has {least} of the {most} examples that it should keep: keep fewer"
            )
        parts = [part if most is None else rng.permutation(part)[:most] for part in parts]
        counts, rows = np.array([len(part) for part in parts]), np.concatenate(parts)
        data = fs.FederatedData(self._scaled(pool, rows), counts)
        model = self.model or Softmax(int(np.prod(pool.x.shape[1:])), self.classes)
        return _task(model, data, self._scaled(test, slice(None)), self.classes)

    def _scaled(self, examples: fs.Examples, rows: Any) -> fs.Examples:
        x = np.asarray(examples.x[rows], np.float32)
        return fs.Examples((x / 255 - self.mean) / np.float32(self.deviation), examples.y[rows])


SYNTHETIC = Softmax(60, 10)


def synthetic(
    data_dir: Path | None, seed: int, clients: int, iid: bool, most: int | None, model: Any = SYNTHETIC
) -> fs.Task:
    """synthetic(0.5, 0.5) with 3 labels a client, or synthetic-iid; clients of `most` examples, or all as drawn.

    The public code draws at least 250 examples a client. So clients are those that have as many, of a population of
    which most do not; the k-th is drawn from those with the labels of client k.
    """
    drawn: dict[str, Any] = {"iid": True} if iid else {"alpha": 0.5, "beta": 0.5, "labels_per_client": 3}
    if most is None:
        made = fs.tasks.synthetic(num_clients=clients, seed=seed, model=model, **drawn)
        return replace(made, eval_examples=None)
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
            raise fs.InvalidInput(f"seed {seed} drew too few clients of {kept} examples: take another seed")
        chosen.append(fitting[0])
    mine = [whole.data.client(i) for i in chosen]
    data = fs.FederatedData.from_clients([fs.Examples(e.x[held_out:kept], e.y[held_out:kept]) for e in mine])
    test = fs.Examples(
        np.concatenate([e.x[:held_out] for e in mine]), np.concatenate([e.y[:held_out] for e in mine])
    )
    return _task(model, data, test, 10)


def _task(model: Any, data: fs.FederatedData, test: fs.Examples, classes: int) -> fs.Task:
    task = classification("frank-wolfe", model, classes, data, test, "dadras2024fedfw")
    return replace(task, eval_examples=None)


def judged(task: fs.Task, ball: str) -> fs.Task:
    """With the Frank-Wolfe gap of the set, whatever the method, and from the projection of the model's usual start."""
    set_, init = as_blocks(BALLS[ball]), task.init
    return replace(
        task,
        init=lambda key: set_.project(init(key)),
        diagnostics=(fs.diagnostics.FrankWolfeGap(BALLS[ball]),),
    )


def halved(x: np.ndarray) -> np.ndarray:
    """Images of half the height and width: means of 2 x 2 pixels; shape (n, height, width, channels)."""
    n, height, width, channels = x.shape
    return x.reshape(n, height // 2, 2, width // 2, 2, channels).mean((2, 4)).astype(np.float32)


def _both(task: fs.Task, change: Callable[[np.ndarray], np.ndarray]) -> tuple[fs.Examples, fs.Examples]:
    """All training and all test examples of a task, their pictures changed."""
    both: Any = (task.data.examples, task.test)
    pool, test = (fs.Examples(change(e.x), e.y) for e in both)
    return pool, test


@lru_cache(maxsize=1)
def _mnist(data_dir: Path | None) -> tuple[fs.Examples, fs.Examples]:
    task = fs.tasks.mnist_by_writer(data_dir, "softmax", 1, 0, IID())
    return _both(task, lambda x: np.rint(255 * x).astype(np.uint8))


@lru_cache(maxsize=1)
def _small_mnist(data_dir: Path | None) -> tuple[fs.Examples, fs.Examples]:
    pool, test = _mnist(data_dir)
    return fs.Examples(halved(pool.x), pool.y), fs.Examples(halved(test.x[::5]), test.y[::5])


@lru_cache(maxsize=1)
def _cifar(data_dir: Path | None) -> tuple[fs.Examples, fs.Examples]:
    return _both(fs.tasks.cifar10(data_dir, 1, IID(), model="softmax", augment=False), halved)


@lru_cache(maxsize=1)
def _femnist(data_dir: Path | None) -> tuple[fs.Examples, fs.Examples]:
    return _both(fs.tasks.femnist(data_dir, "softmax", flip=False), halved)


def _digits(data_dir: Path | None) -> tuple[fs.Examples, fs.Examples]:
    pool, test = (fs.Examples(e.x[e.y < 10], e.y[e.y < 10]) for e in _femnist(data_dir))
    return pool, test


EMNIST = 0.1307, 0.3081
"""Mean and deviation of the scaling."""
DATA: dict[str, Callable[..., fs.Task]] = {
    "mnist": Pictures(_mnist),
    "cifar": Pictures(_cifar),
    "synthetic": synthetic,
    "digits": Pictures(_digits, *EMNIST),
    "characters": Pictures(_femnist, *EMNIST, classes=62, labels=20),
    "cnn": Pictures(_small_mnist, model=CNN(classes=10, height=14, width=14, channels=(8, 16), hidden=64)),
    "dnn": partial(synthetic, model=MLP((60, 20, 20, 10))),
}
"""(data folder, seed, clients, whether IID, examples of a client) -> task, by the names of the columns."""
