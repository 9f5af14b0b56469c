"""Tasks of the image studies: the library's, judged on as many examples as a small machine has time for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

import fedsolve as fs
from fedsolve.tasks.task import Task

TRAIN_EXAMPLES = 1_000
"""Of the training clients, that an evaluation of the small forms looks at."""


def judged_on(test: int | None, build: Callable[..., Task], **options: Any) -> Callable[[Path | None], Task]:
    """From the data folder to a task without unseen clients, with so many test examples.

    Args:
        test: test examples, drawn once, the same for all methods and seeds; None for all, and for the task's own
            number of training examples.
        build: of `fedsolve.tasks`.
        **options: its arguments.
    """

    def task(data_dir: Path | None) -> Task:
        made = replace(build(data_dir, **options), unseen=None)
        return made if test is None else few(made, test, TRAIN_EXAMPLES)

    return task


def few(task: Task, test: int, train: int) -> Task:
    """The task judged on `test` of its test examples, drawn at random, and on clients of `train` examples."""
    total = len(jax.tree.leaves(task.test)[0])
    rows = np.sort(np.random.default_rng(0).permutation(total)[:test])
    return replace(task, test=jax.tree.map(lambda a: a[rows], task.test), eval_examples=train)


def small_digits(data_dir: Path | None = None) -> Task:
    """Ten clients of scikit-learn's digits, for the quick forms."""
    return fs.tasks.build("digits", num_clients=10)
