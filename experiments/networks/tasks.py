"""Tasks of the image studies: the library's, judged on as many examples as a small machine has time for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

import fedsolve as fs
from fedsolve.studies import Problem

AS_IN_FEDDUA: Mapping[str, Any] = {
    "rounds": 500, "clients_per_round": 20, "batch_size": 50, "local_steps": 20, "eval_every": 5, "validation": 0.1,
}  # fmt: skip
"""How Takakura et al. run, and what is held out to choose by."""
LESS_OF_FEDDUA: Mapping[str, Any] = {
    "rounds": 40, "clients_per_round": 10, "batch_size": 20, "local_steps": 5, "eval_every": 10, "validation": 0.1,
}  # fmt: skip
"""The small forms of that on images."""
TRAIN_EXAMPLES = 1_000
"""Of the training clients, that an evaluation of the small forms looks at."""


def judged_on(
    test: int | None, build: Callable[..., fs.Task], **options: Any
) -> Callable[[Path | None], fs.Task]:
    """From the data folder to a task without unseen clients, with so many test examples.

    Args:
        test: test examples, drawn once, the same for all methods and seeds; None for all, and for the task's own
            number of training examples.
        build: of `fedsolve.tasks`.
        **options: its arguments.
    """

    def task(data_dir: Path | None) -> fs.Task:
        made = replace(build(data_dir, **options), unseen=None)
        return made if test is None else few(made, test, TRAIN_EXAMPLES)

    return task


def few(task: fs.Task, test: int, train: int) -> fs.Task:
    """The task judged on `test` of its test examples, drawn at random, and on clients of `train` examples."""
    total = len(jax.tree.leaves(task.test)[0])
    rows = np.sort(np.random.default_rng(0).permutation(total)[:test])
    return replace(task, test=jax.tree.map(lambda a: a[rows], task.test), eval_examples=train)


def run_with(problem: Problem, *methods: str) -> Problem:
    """The problem with some of the methods alone, and the paper's numbers of these."""
    published = {name: problem.published[name] for name in methods if name in problem.published}
    return replace(problem, methods=methods, published=published)


def small_digits(data_dir: Path | None = None) -> fs.Task:
    """Ten clients of scikit-learn's digits, for the quick forms."""
    return fs.tasks.build("digits", num_clients=10)


QUICK = Problem(
    title="scikit-learn's digits",
    size="10 clients",
    task=small_digits,
    options={"rounds": 2, "clients_per_round": 4, "validation": 0.2},
    select="validation-accuracy",
)
"""The problem of the quick forms."""
