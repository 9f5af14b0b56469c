"""The problems of the Frank-Wolfe experiments: smaller than the paper's, dealt alike or by labels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import fedsolve as fs
from fedsolve.data.federated import FederatedData
from fedsolve.data.partitions import IID, LabelsPerClient
from fedsolve.diagnostics import FrankWolfeGap, Suboptimality
from fedsolve.geometry import L1Ball, L2Ball
from fedsolve.geometry.blocks import as_blocks
from fedsolve.tasks.choices import classification
from fedsolve.tasks.models import CNN, Softmax
from fedsolve.tasks.task import Examples, Task

RADIUS = 10.0
BALLS: dict[str, Any] = {"l2": L2Ball(RADIUS), "l1": L1Ball(RADIUS)}
"""The paper's constraints, each one ball for the whole parameter vector."""
NAMES = {"iid": "IID", "labels": "non-IID"}

NOTES = (
    "Pixels of MNIST are in [0, 1]; their code takes (x - 0.5) / 0.5. "
    "In a ball of radius 10 this changes the problem.",
    "One ball for the whole parameter vector, as the paper writes; the public code has one for each tensor.",
)


@dataclass(frozen=True)
class Problem:
    """A column of the paper's tables.

    Attributes:
        title: what tables call it.
        build: (data folder, seed, clients, whether IID) -> task.
        needs_data: whether it reads the data folder.
    """

    title: str
    build: Callable[[Path | None, int, int, bool], Task]
    needs_data: bool = True


def judged(task: Task, ball: Any) -> Task:
    """Judged by the full objective F (as `suboptimality` from 0), the gap and the test accuracy."""
    diagnostics = (FrankWolfeGap(ball), Suboptimality(None, 0.0))
    return replace(
        task, eval_examples=None, diagnostics=diagnostics, metrics={"accuracy": task.metrics["accuracy"]}
    )


def projected(task: Task, ball: Any) -> Task:
    """As `judged`, and starting at the projection of the usual start on the ball."""
    set_, init = as_blocks(ball), task.init
    return replace(judged(task, ball), init=lambda key: set_.project(init(key)))


def halved(x: np.ndarray) -> np.ndarray:
    """Images of half the height and width: means of 2 x 2 pixels; shape (n, height, width, channels)."""
    n, height, width, channels = x.shape
    return x.reshape(n, height // 2, 2, width // 2, 2, channels).mean((2, 4)).astype(np.float32)


def mnist(examples: int, small: bool = False, model: Any = None) -> Callable[..., Task]:
    """MNIST, some training digits and 2,000 test digits; `small` halves the images."""

    def build(folder: Path | None, seed: int, clients: int, iid: bool) -> Task:
        task = fs.tasks.mnist_by_writer(folder, "softmax", 1, seed, IID(), examples)
        some = np.sort(np.random.default_rng((seed, 2)).choice(10_000, 2_000, replace=False))
        test = Examples(task.test.x[some], task.test.y[some])  # type: ignore[union-attr]
        return _dealt("mnist", task.data.examples, test, 10, 3, seed, clients, iid, small, model)

    return build


def synthetic(model: str, most: int) -> Callable[..., Task]:
    """synthetic(0.5, 0.5) with 3 labels a client, or synthetic-iid; at most so many examples a client."""

    def build(folder: Path | None, seed: int, clients: int, iid: bool) -> Task:
        other: dict[str, Any] = {"iid": True} if iid else {"alpha": 0.5, "beta": 0.5, "labels_per_client": 3}
        return fs.tasks.synthetic(num_clients=clients, seed=seed, model=model, max_examples=most, **other)

    return build


def small_cnn() -> CNN:
    """The library's CNN for 14 x 14 images, 8 and 16 channels and 64 hidden units: 28,000 parameters."""
    return CNN(classes=10, height=14, width=14, channels=(8, 16), hidden=64)


def _dealt(
    name: str, pool: Any, test: Any, classes: int, labels: int, seed: int, clients: int, iid: bool,
    small: bool, model: Any,
) -> Task:  # fmt: skip
    """Pooled images dealt to clients, and the model (softmax with bias by default) to fit."""
    x, tx = (halved(a) if small else a for a in (pool.x, test.x))
    deal = IID() if iid else LabelsPerClient(labels)
    data = FederatedData.from_partition(Examples(x, pool.y), deal(pool.y, clients, seed))
    model = Softmax(int(np.prod(x.shape[1:])), classes) if model is None else model
    return classification(name, model, classes, data, Examples(tx, test.y), "dadras2024fedfw")
