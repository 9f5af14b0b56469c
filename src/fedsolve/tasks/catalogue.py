"""The catalogue of tasks: name, builder and summary, and `build`, which checks options before it builds."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

from fedsolve.errors import InvalidInput, unknown
from fedsolve.tasks.cifar import cifar
from fedsolve.tasks.composite import lasso, lowrank
from fedsolve.tasks.digits import digits
from fedsolve.tasks.handwriting import handwriting
from fedsolve.tasks.libsvm import libsvm
from fedsolve.tasks.mnist import mnist_by_writer
from fedsolve.tasks.news import news
from fedsolve.tasks.regression import anisotropic_regression
from fedsolve.tasks.synthetic import synthetic
from fedsolve.tasks.task import Task
from fedsolve.tasks.voxels import voxels


@dataclass(frozen=True)
class TaskEntry:
    """One task of the catalogue.

    Attributes:
        builder: options -> Task; its signature says which options there are.
        summary: one line for `fedsolve list tasks`.
        citation: key of its source.
    """

    builder: Callable[..., Task]
    summary: str
    citation: str


TASKS: dict[str, TaskEntry] = {
    "digits": TaskEntry(
        digits, "8x8 digits of scikit-learn, 10 classes, any partition, no download", "alpaydin1998digits"
    ),
    "regression": TaskEntry(
        anisotropic_regression,
        "linear regression, 1,000 anisotropic features, 20 clients of 30 examples",
        "takakura2025feddua",
    ),
    "synthetic": TaskEntry(
        synthetic,
        "synthetic(alpha, beta): softmax regression, 60 features, 30 uneven clients",
        "li2020fedprox",
    ),
    "mnist": TaskEntry(
        mnist_by_writer,
        "MNIST by writer (539 clients) or in any partition, 60,000 digits (needs the data folder)",
        "yadav2019qmnist",
    ),
    "lasso": TaskEntry(
        lasso,
        "sparse regression, 1,024 features, 64 or 256 clients, four data sets with known truth",
        "yuan2021fco",
    ),
    "lowrank": TaskEntry(
        lowrank,
        "a 32 x 32 matrix of rank 16, 4 or 1 from noisy products, four data sets with known truth",
        "yuan2021fco",
    ),
    "voxels": TaskEntry(
        voxels,
        "two kinds of pictures from 530 voxels of fMRI, 12 runs as clients (needs the data folder)",
        "haxby2001",
    ),
    "handwriting": TaskEntry(
        handwriting,
        "UNIPEN characters by writer, 62 classes or digits, 315 clients (needs the data folder)",
        "guyon1994unipen",
    ),
    "cifar": TaskEntry(
        cifar,
        "CIFAR-10, 20,000 images, any partition (needs the data folder)",
        "krizhevsky2009cifar",
    ),
    "libsvm": TaskEntry(
        libsvm,
        "logistic regression on a9a, w8a or mushrooms, any partition, l2 (needs the data folder)",
        "chang2011libsvm",
    ),
    "news": TaskEntry(
        news,
        "20 Newsgroups: 33 tags from a post's words, 390 authors as clients (needs the data folder)",
        "lang1995newsweeder",
    ),
}
"""Every task by its name."""


def build(name: str, **options: Any) -> Task:
    """The task of that name with those options.

    Raises:
        InvalidInput: an unknown name or option (with the nearest match), an option of the wrong type, or
            what the builder refuses.

    >>> build("digits", num_client=10)
    Traceback (most recent call last):
    ...
    fedsolve.errors.InvalidInput: unknown option of the task digits 'num_client': did you mean \
'num_clients'? Known: model, num_clients, partition, seed
    """
    if name not in TASKS:
        raise unknown("task", name, TASKS)
    builder = TASKS[name].builder
    hints = get_type_hints(builder)
    known = list(inspect.signature(builder).parameters)
    for option, value in options.items():
        if option not in known:
            raise unknown(f"option of the task {name}", option, known)
        if not _fits(value, hints[option]):
            wanted = " or ".join(_describe(kind) for kind in _kinds(hints[option]))
            raise InvalidInput(f"task {name}: {option} = {value!r} must be {wanted}")
    return builder(**options)


def _kinds(hint: Any) -> tuple[Any, ...]:
    """The plain types of a hint; none of them for Any."""
    if get_origin(hint) in (Union, types.UnionType):
        return tuple(kind for part in get_args(hint) for kind in _kinds(part))
    return (get_origin(hint) or hint,)


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value is of a hinted type; a whole number is a number, True is not."""
    for kind in _kinds(hint):
        if kind is Any:
            return True
        if kind in (int, float):
            if isinstance(value, (int,) if kind is int else (int, float)) and not isinstance(value, bool):
                return True
        elif isinstance(value, kind):
            return True
    return False


def _describe(kind: Any) -> str:
    """A type in words."""
    words = {
        int: "a whole number",
        float: "a number",
        bool: "true or false",
        str: "a text",
        Path: "a path",
        Mapping: "a table",
        Sequence: "a list",
        type(None): "nothing",
    }
    return words.get(kind, f"a {getattr(kind, '__name__', kind)}")
