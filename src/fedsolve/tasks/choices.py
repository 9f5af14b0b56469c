"""What the classification tasks share: a model by name, and the loss and metrics of a classifier."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax

from fedsolve.core.errors import InvalidInput, unknown
from fedsolve.data.federated import FederatedData
from fedsolve.tasks.losses.accuracies import Accuracy
from fedsolve.tasks.losses.losses import CrossEntropy, check_labels
from fedsolve.tasks.models.models import check_model
from fedsolve.tasks.task import Examples, Task

Choice = str | Mapping[str, Any]
"""A name, or a table with a name and parameters, as a configuration file gives it."""


def pick(kind: str, value: Any, known: Mapping[str, Any]) -> Any:
    """`value` itself, or what it names in `known`; `InvalidInput` for an unknown name or no such object."""
    if isinstance(value, str):
        if value not in known:
            raise unknown(kind, value, known)
        return known[value]
    if not (callable(value) and hasattr(value, "init")):
        raise InvalidInput(
            f"{kind} = {value!r} must be one of {', '.join(known)} or an object with init and call"
        )
    return value


def classification(
    name: str, model: Any, classes: int, data: FederatedData, test: Examples, citation: str
) -> Task:
    """The task of fitting `model` by cross-entropy, evaluated by accuracy.

    Raises:
        InvalidInput: a label outside the classes, or a model that does not fit the data.
    """
    for part in (data.examples, test):
        check_labels(part.y, classes)
    check_model(model, jax.tree.leaves(data.examples)[0].shape[1:], (classes,))
    return Task(
        name=name,
        init=model.init,
        loss=CrossEntropy(model),
        data=data,
        test=test,
        metrics={"accuracy": Accuracy(model)},
        citation=citation,
    )
