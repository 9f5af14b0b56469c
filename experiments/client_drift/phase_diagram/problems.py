"""The cells: three data sets dealt by label, three skews, one or ten local steps, a fifth of the clients or all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from pathlib import Path

import numpy as np

import fedsolve as fs
from experiments.client_drift import label_skew
from fedsolve.studies import Problem
from fedsolve.studies.public import classification

CLIENTS, ROUNDS, BATCH, SEEDS, TUNED_ON = 30, 50, 10, tuple(range(15)), (15, 16)
ALPHAS, STEPS, COHORTS = (0.05, 0.3, 10.0), (1, 10), (6, 30)
SKEWED, MANY = ALPHAS[:2], STEPS[-1]
_LENGTH = 10.0  # mean |x|^2, about that of the digits, so that one grid of rates does for all


def spread_out(x: np.ndarray) -> np.ndarray:
    """Features of mean 0 with a common factor, so that mean |x|^2 = 10; float32."""
    centred = x - x.mean(axis=0)
    return (centred * np.sqrt(_LENGTH / (centred**2).sum(axis=1).mean())).astype(np.float32)


@lru_cache(maxsize=1)
def tumours() -> tuple[np.ndarray, np.ndarray]:
    """569 tumours of two classes, 30 measures of cell nuclei, standardised (Street et al. 1993)."""
    from sklearn.datasets import load_breast_cancer

    x, y = map(np.asarray, load_breast_cancer(return_X_y=True))
    return spread_out((x - x.mean(axis=0)) / x.std(axis=0)), y.astype(np.int32)


@lru_cache(maxsize=1)
def mixture() -> tuple[np.ndarray, np.ndarray]:
    """1,500 points of five overlapping Gaussian classes in 40 dimensions, whose variances fall as 1 / k."""
    rng = np.random.default_rng(0)
    y = np.arange(1500) % 5
    scale = 1 / np.sqrt(np.arange(1, 41))
    x = scale * (0.6 * rng.normal(size=(5, 40))[y] + rng.normal(size=(1500, 40)))
    return spread_out(x), y.astype(np.int32)


@lru_cache(maxsize=64)
def dealt(data_set: str, alpha: float, seed: int) -> fs.Task:
    """Softmax regression from zero on a data set that a seed deals to the clients, without a test set."""
    if data_set == "digits":
        return label_skew.digits(alpha, CLIENTS, seed)
    x, y = {"tumours": tumours, "mixture": mixture}[data_set]()
    pooled = fs.Examples(x, y)
    deal = label_skew.EqualDirichlet(alpha)
    data = fs.data.FederatedData.from_partition(pooled, deal(y, CLIENTS, seed))
    classes = int(y.max()) + 1
    task = classification(data_set, fs.tasks.Softmax(x.shape[1], classes), classes, data, pooled, "")
    return label_skew.replace(task, test=None)


DATA_SETS: Mapping[str, str] = {
    "digits": "47 digits",
    "tumours": "18 tumours",
    "mixture": "50 points",
}
"""Data set -> what a client holds."""


@dataclass(frozen=True)
class Place:
    """Where in the diagram a cell lies."""

    data_set: str
    cohort: int
    steps: int
    alpha: float

    @property
    def name(self) -> str:
        """What the cell is called."""
        return f"{self.data_set}, alpha {self.alpha:g}, K {self.steps}, {self.cohort} of {CLIENTS}"

    @property
    def tick(self) -> str:
        """The same without its data set, in three lines."""
        return f"α {self.alpha:g}\nK {self.steps}\n{self.cohort}/{CLIENTS}"

    @property
    def problem(self) -> Problem:
        """The cell as a problem of the study."""

        def task(_: Path | None, seed: int) -> fs.Task:
            return dealt(self.data_set, self.alpha, seed)

        return Problem(
            self.name,
            f"{CLIENTS} clients of {DATA_SETS[self.data_set]}, {self.cohort} a round, batches of {BATCH}",
            task,
            {
                "rounds": ROUNDS, "clients_per_round": self.cohort, "local_steps": self.steps, "batch_size": BATCH,
                "eval_every": 5,
            },
            metric="train_loss",
            last=10,
            select="train_loss:10",
            tuning={"seeds": TUNED_ON},
            data_by_seed=True,
        )  # fmt: skip


PLACES = tuple(Place(*place) for place in product(DATA_SETS, COHORTS, STEPS, ALPHAS))
"""All cells; skews of one program lie next to each other."""


def places(**at: object) -> tuple[Place, ...]:
    """The cells with these coordinates.

    >>> len(places(steps=10, data_set="digits"))
    6
    """
    return tuple(p for p in PLACES if all(getattr(p, axis) == value for axis, value in at.items()))
