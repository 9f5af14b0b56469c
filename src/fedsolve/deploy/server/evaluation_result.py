"""What clients measured of a model: as columns of the record, client by client, and which are far beyond the others.

No Flower here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedsolve.deploy.messages.message import PARTS, PartMetrics
from fedsolve.engine.evaluation.pooling import as_part, client_percentiles
from fedsolve.methods.robust.outliers import FACTOR, usual_norm
from fedsolve.results.clients import ClientMetrics

MEASURED = "clients_measured"
"""The column that says how many clients' answers count."""


@dataclass(frozen=True)
class EvaluationResult:
    """The replies that count to one request.

    Attributes:
        round: rounds done.
        steps: local steps that clients took before.
        metrics: what was asked for.
        answers: by client, what each measured by part.
        refused: by client, why it does not count.
    """

    round: int
    steps: int
    metrics: tuple[str, ...]
    answers: Mapping[int, Mapping[str, PartMetrics]]
    refused: Mapping[int, str]

    def columns(self) -> dict[str, float]:
        """Means over all examples and of clients' own means, under the names that simulations have them by.

        The mean over all is NaN of what is no mean over anything.
        """
        result: dict[str, float] = {MEASURED: len(self.answers)}
        for part in PARTS:
            clients, _, means, counts = self._arrays(part)
            if not clients and part != "train":
                continue
            known = _known(counts)
            with np.errstate(invalid="ignore", divide="ignore"):
                pooled = (np.where(known, means, 0.0) * counts).sum(0) / counts.sum(0)
            columns = {f"train_{name}": float(x) for name, x in zip(self.metrics, pooled, strict=True)}
            columns |= client_percentiles(self.metrics, means, known)
            result |= columns if part == "train" else as_part(part, columns)
        return result

    def clients(self, part: str) -> ClientMetrics:
        """Each client's own metrics on its examples of a part, in the order of numbers."""
        clients, examples, means, counts = self._arrays(part)
        values = np.where(_known(counts), means, np.nan)
        names = tuple(f"client {client}" for client in clients)
        return ClientMetrics(names, examples, dict(zip(self.metrics, values.T, strict=True)))

    def line(self, part: str) -> dict[str, Any]:
        """The same as plain data, a line of the file that `fedsolve.results.clients.read_client_metrics` reads."""
        clients = self.clients(part)
        numbers = {"examples": clients.examples, "metrics": clients.metrics}
        return {"round": self.round, "steps": self.steps, "part": part, "names": clients.names, **numbers}

    def _arrays(self, part: str) -> tuple[list[int], np.ndarray, np.ndarray, np.ndarray]:
        """The clients that have such examples, how many, and every metric with its count, (clients, metrics) both."""
        clients = sorted(client for client, parts in self.answers.items() if part in parts)
        measured = [self.answers[client][part] for client in clients]
        shape = (len(clients), len(self.metrics))
        means, counts = (
            np.array([[getattr(x, kind)[name] for name in self.metrics] for x in measured], float).reshape(
                shape
            )
            for kind in ("means", "counts")
        )
        return clients, np.array([x.examples for x in measured], np.int64), means, counts


def _known(counts: np.ndarray) -> np.ndarray:
    """Where there is a value: a mean over something, or what is no mean (NaN)."""
    return (counts > 0) | np.isnan(counts)


def find_metric_outliers(
    answers: Mapping[int, Mapping[str, PartMetrics]], first: Mapping[str, float]
) -> dict[int, str]:
    """The clients whose answer to a question has a metric far beyond the usual, each with the reason.

    Usual is the median of the answers, as in a first round, or what was measured first where that is larger: where
    most losses fall to 0 an honest one need not.

    Args:
        answers: by client, what each measured by part.
        first: the first value in the record of each metric's mean over training examples, by metric.
    """
    outliers: dict[int, str] = {}
    for part in PARTS:
        of_part = {client: parts[part] for client, parts in sorted(answers.items()) if part in parts}
        for name in {name: None for measured in of_part.values() for name in measured.means}:
            sizes = {client: abs(measured.means[name]) for client, measured in of_part.items()}
            known = {client: x for client, x in sizes.items() if x < math.inf}
            if not known:
                continue
            median = float(usual_norm(np.array(list(known.values())), 0.0, np))
            usual = max(median, abs(first.get(name, 0.0)))
            for client, x in known.items():
                if x > FACTOR * usual:
                    outliers[client] = (
                        f"its {part} {name} is {of_part[client].means[name]:.6g}, in size more than {FACTOR:,.0f} "
                        f"times the {usual:.6g} that is usual"
                    )
    return outliers


def first_means(evaluations: Mapping[str, Any]) -> dict[str, float]:
    """What clients' training examples gave first, by metric: the first number in each of the record's columns.

    >>> first_means({"round": [0, 1], "train_loss": [float("nan"), 2.0], "test_loss": [3.0, 1.0]})
    {'loss': 2.0}
    """
    means = {}
    for name, values in evaluations.items():
        known = [x for x in values if np.isfinite(x)] if name.startswith("train_") else []
        if known:
            means[name.removeprefix("train_")] = float(known[0])
    return means
