"""The league's problems: twelve data sets, three of them by networks, each small enough for two cores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import fedsolve as fs
from experiments.networks.tasks import few
from fedsolve.data import Shards
from fedsolve.studies import Problem
from fedsolve.studies.public import VOCABULARY
from fedsolve.tasks import CNN, GRU, Softmax

ROUNDS, CLIENTS, STEPS, BATCH = 30, 10, 5, 10
HELD_OUT = 0.2
"""Of every client's examples, while settings are tried: they are chosen by the loss on these."""
MOST_EXAMPLES, MOST_SEQUENCES = 2_000, 200
"""About, of an evaluation on the training set; of one on the test set at most."""


def _problem(
    title: str, size: str, task: Callable[[Path | None], fs.Task], metric: str = "test_accuracy", rounds: int = ROUNDS,
    clients: int = CLIENTS, most: int = MOST_EXAMPLES,
) -> Problem:  # fmt: skip
    options = {
        "rounds": rounds, "clients_per_round": clients, "local_steps": STEPS, "batch_size": BATCH, "eval_every": rounds,
        "parallel_trials": 1,  # one program for the seeds and the settings: compiling is most of the time
    }  # fmt: skip
    return Problem(
        title,
        size,
        lambda data_dir: _judged(task(data_dir), most),
        options,
        metric=metric,
        select="validation_loss",
        tuning={"validation": HELD_OUT},
    )


def _judged(task: fs.Task, most: int) -> fs.Task:
    """The task, evaluated on at most so many examples of either set, without further diagnostics."""
    return replace(few(task, most, most), diagnostics=())


def _libsvm(dataset: str) -> Callable[[Path | None], fs.Task]:
    return lambda data_dir: fs.tasks.libsvm(data_dir, dataset, partition=Shards(2))


PROBLEMS = {
    "digits": _problem(
        "digits, MLP", "64 hidden units, 100 clients, Dirichlet(0.3)", lambda data_dir: fs.tasks.digits()
    ),
    "digits-cnn": _problem(
        "digits, CNN", "two convolutions of 4 and 8 channels, 16 hidden units, 30 clients, IID, 5 a round",
        lambda data_dir: fs.tasks.digits(30, "iid", CNN(10, 8, 8, (4, 8), 16)), rounds=15, clients=5,
    ),
    "synthetic": _problem(
        "synthetic(1, 1)", "softmax regression, 30 uneven clients of at most 200 examples",
        lambda data_dir: fs.tasks.synthetic(max_examples=200),
    ),
    "a9a": _problem("a9a", "logistic regression, 100 clients of two shards by label", _libsvm("a9a")),
    "w8a": _problem(
        "w8a", "logistic regression, 100 clients of two shards by label", _libsvm("w8a"), metric="test_loss"
    ),
    "mushrooms": _problem(
        "mushrooms", "logistic regression, 100 clients of two shards by label", _libsvm("mushrooms"), metric="test_loss"
    ),
    "voxels": _problem("voxels", "logistic regression, 10 runs of a scanner, 5 a round", fs.tasks.voxels,
        metric="test_loss", clients=5,
    ),
    "lasso": _problem(
        "LASSO's data", "least squares without the penalty, 64 clients", lambda data_dir: fs.tasks.lasso(),
        metric="test_loss",
    ),
    "news": _problem(
        "news", "33 logistic regressions on 500 words, 390 authors", lambda d: fs.tasks.news(d, vocabulary=500),
        metric="test_recall_at_5",
    ),
    "handwriting": _problem(
        "UNIPEN digits", "softmax regression, 267 writers", lambda d: fs.tasks.handwriting(d, classes=10)
    ),
    "mnist": _problem(
        "MNIST", "softmax regression on 6,000 digits, 100 clients of two labels",
        lambda d: fs.tasks.mnist_by_writer(d, Softmax(784, 10), 100, partition=Shards(2), examples=6_000),
    ),
    "shakespeare": _problem(
        "Shakespeare, GRU", "16 hidden units, 50 roles, 5 a round, 10 characters",
        lambda d: fs.tasks.shakespeare(d, GRU(VOCABULARY, 8, 16, 1), 50, length=10, test_examples=MOST_SEQUENCES),
        metric="test_loss", rounds=15, clients=5, most=MOST_SEQUENCES,
    ),
}  # fmt: skip
QUICK = PROBLEMS["synthetic"]
