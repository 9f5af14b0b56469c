"""What clients are asked of a model, and what they answer: its metrics on their own examples. No Flower here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

PARTS = ("train", "validation")
"""The examples that a client measures a model on: those that it trains on, and those that it holds out."""


@dataclass(frozen=True)
class Measured:
    """Metrics of a model on some examples of one client.

    Attributes:
        examples: how many, at least 1.
        means: of each metric by name, finite where its count is not 0.
        counts: what each is a mean over, by name: the examples, or parts of them where a metric counts these (tokens),
            an int; the sum of their weights, a float, of a weighted mean; NaN of what is no mean, such as F1, whose
            values of several clients make no value of all their examples.
    """

    examples: int
    means: Mapping[str, float]
    counts: Mapping[str, float]


@dataclass(frozen=True)
class Question:
    """What a client is asked to measure.

    Attributes:
        experiment: name of the experiment that the client's state belongs to.
        round: rounds done.
        client: the client's number.
        population: clients in all.
        last_used_round: the last round in which the server used an update of this client, from 0; -1 if none.
        key: two words, from which the shuffles of local steps follow: of the round that comes next.
        method: the method as data (see `fedsolve.deploy.messages.spec`).
        signature: shapes and types of the model's leaves; a client with another model refuses.
        metrics: names of the metrics.
        model: the server's, as `fedsolve.wire` encodes it.
        first_broadcast: that of the first round, for a client with a model of its own that never took part; else None.
        steps: local steps that the client takes before, 0 for none.
        solver: what takes them, as data; None for none.
        buffers: what is averaged beside the model, by name.
    """

    experiment: str
    round: int
    client: int
    population: int
    last_used_round: int
    key: tuple[int, ...]
    method: Any
    signature: str
    metrics: tuple[str, ...]
    model: bytes
    first_broadcast: bytes | None
    steps: int
    solver: Any
    buffers: dict[str, np.ndarray]


@dataclass(frozen=True)
class Answer:
    """What a client found.

    Attributes:
        experiment, round, client, steps: those of the question.
        parts: what it measured, by the names in `PARTS`; it may hold out nothing.
    """

    experiment: str
    round: int
    client: int
    steps: int
    parts: Mapping[str, Measured]
