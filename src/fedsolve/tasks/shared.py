"""What ready tasks share: a model by name, classification, and the prediction of next tokens of padded sequences."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedsolve.core.errors import InvalidInput, unknown
from fedsolve.data.federated import FederatedData
from fedsolve.data.partitions import Natural
from fedsolve.tasks.losses.losses import CrossEntropy, OfOutputs, check_labels
from fedsolve.tasks.losses.sequences import Accuracy, BitsPerToken, NextToken, NextTokenAccuracy
from fedsolve.tasks.models.models import check_model
from fedsolve.tasks.task import Examples, Task

Choice = str | Mapping[str, Any]
"""A name, or a table with a name and parameters, as a configuration file gives it."""


def pick(kind: str, value: Any, known: Mapping[str, Any]) -> Any:
    # a model itself, or the name of one in `known`
    if isinstance(value, str):
        if value not in known:
            raise unknown(kind, value, known)
        return known[value]
    if not (callable(value) and hasattr(value, "init")):
        raise InvalidInput(
            f"{kind} = {value!r} must be one of {', '.join(known)} or an object with init and call"
        )
    return value


def package_folder(name: str, missing: str) -> Path:
    # of an installed package, which is not imported
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise InvalidInput(missing)
    return Path(spec.origin).parent


def deal_rows(
    parts: Sequence[np.ndarray], examples: Callable[[np.ndarray], Examples], names: tuple[str, ...] = ()
) -> FederatedData:
    # `examples` makes the examples of row numbers
    return FederatedData(examples(np.concatenate(parts)), np.array([len(part) for part in parts]), names)


def by_owner(
    owners: np.ndarray,
    rows: np.ndarray,
    num_clients: int | None,
    seed: int,
    examples: Callable[[np.ndarray], Examples],
    word: str,
) -> FederatedData:
    # a client for each owner of some rows, or for so many drawn ones, called by a word and its number
    parts = [rows[part] for part in Natural()(owners[rows], num_clients, seed)]
    return deal_rows(parts, examples, tuple(f"{word} {owners[part[0]]}" for part in parts))


def classification(
    name: str, model: Any, classes: int, data: FederatedData, test: Examples, citation: str
) -> Task:
    # cross-entropy, evaluated by accuracy
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


PADDING = 0
"""The token of a tail, which no loss and no metric counts."""


def windows(tokens: np.ndarray, length: int) -> Examples:
    """Split a text of n tokens into ceil((n - 1) / length) sequences of inputs and next tokens.

    x and y are int32 of shape (sequences, length); y is x moved on by one. No token is a target twice; the tail of the
    last sequence is `PADDING`.

    >>> windows(np.array([5, 6, 7, 8]), 2).y
    array([[6, 7],
           [8, 0]], dtype=int32)

    Args:
        tokens: numbers above 0, shape (n,), n at least 2.
        length: of a sequence, at least 1.

    Returns:
        x and y, each int32 (ceil((n - 1) / length), length).
    """
    sequences = -(-(len(tokens) - 1) // length)
    padded = np.full((2, sequences * length), PADDING, np.int32)
    padded[0, : len(tokens) - 1], padded[1, : len(tokens) - 1] = tokens[:-1], tokens[1:]
    return Examples(*padded.reshape(2, sequences, length))


def check_sequences(examples: Examples, vocabulary: int) -> None:
    """Check sequences of tokens: x and y integers (sequences, length), 0 to vocabulary - 1, each with a target.

    Args:
        examples: x and y.
        vocabulary: tokens, padding (0) among them.

    Raises:
        InvalidInput: another shape or type, a token out of the range, or a sequence of length 0, with its row.

    >>> check_sequences(Examples(np.ones((2, 3), int), np.array([[1, 0, 0], [0, 0, 0]])), 2)
    Traceback (most recent call last):
    ...
    fedsolve.InvalidInput: the sequence in row 1 has length 0: every y needs a token besides padding (0)
    """
    for name, a in zip(("x", "y"), (np.asarray(part) for part in examples), strict=True):
        if a.ndim != 2 or a.dtype.kind not in "iu":
            raise InvalidInput(
                f"{name} of the sequences has shape {a.shape} and type {a.dtype}: give integers (sequences, length)"
            )
        bad = ((a < 0) | (a >= vocabulary)).any(axis=1)
        if bad.any():
            row = int(np.argmax(bad))
            raise InvalidInput(
                f"{name} of the sequence in row {row} holds a token outside 0 .. {vocabulary - 1} of the vocabulary"
            )
    empty = (np.asarray(examples.y) == PADDING).all(axis=1)
    if empty.any():
        raise InvalidInput(
            f"the sequence in row {int(np.argmax(empty))} has length 0: every y needs a token besides padding (0)"
        )


def next_token(
    name: str,
    model: Any,
    vocabulary: int,
    data: FederatedData,
    test: Examples,
    citation: str,
    accuracy: OfOutputs | None = None,
    bits: str = "bits_per_token",
) -> Task:
    # cross-entropy of each next token, evaluated by accuracy and bits. A sequence is an example: its loss is
    # the mean over its own tokens, and all sequences count alike; accuracy and bits are means over all tokens
    # together. model: (n, length) -> (n, length, vocabulary), padding among the vocabulary
    for part in (data.examples, test):
        check_sequences(part, vocabulary)
    length = test.x.shape[1]
    check_model(model, (length,), (length, vocabulary), np.int32)
    accuracy = NextTokenAccuracy(model, PADDING) if accuracy is None else accuracy
    return Task(
        name=name,
        init=model.init,
        loss=NextToken(model, PADDING),
        data=data,
        test=test,
        metrics={"accuracy": accuracy, bits: BitsPerToken(model, PADDING)},
        citation=citation,
    )


def sample_examples(examples: Examples, most: int | None, seed: int) -> Examples:
    # at most so many, in their order; None for all
    if most is None or most >= len(examples.y):
        return examples
    rows = np.sort(np.random.default_rng((seed, 2)).permutation(len(examples.y))[:most])
    return Examples(examples.x[rows], examples.y[rows])
