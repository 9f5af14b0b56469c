"""What clients found of a model: as columns of the record, and client by client. No Flower here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedsolve.deploy.messages.message import PARTS, PartMetrics
from fedsolve.engine.evaluation.evaluate import as_part, by_client
from fedsolve.results.clients import ClientMetrics

MEASURED = "clients_measured"
"""The column that says how many clients' answers count."""


@dataclass(frozen=True)
class Found:
    """The answers that count to one question.

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
        found: dict[str, float] = {MEASURED: len(self.answers)}
        for part in PARTS:
            clients, _, means, counts = self._arrays(part)
            if not clients and part != "train":
                continue
            known = _known(counts)
            with np.errstate(invalid="ignore", divide="ignore"):
                pooled = (np.where(known, means, 0.0) * counts).sum(0) / counts.sum(0)
            columns = {f"train_{name}": float(x) for name, x in zip(self.metrics, pooled, strict=True)}
            columns |= by_client(self.metrics, means, known)
            found |= columns if part == "train" else as_part(part, columns)
        return found

    def clients(self, part: str) -> ClientMetrics:
        """Each client's own metrics on its examples of a part, in the order of numbers."""
        clients, examples, means, counts = self._arrays(part)
        values = np.where(_known(counts), means, np.nan)
        names = tuple(f"client {client}" for client in clients)
        return ClientMetrics(names, examples, dict(zip(self.metrics, values.T, strict=True)))

    def line(self, part: str) -> dict[str, Any]:
        """The same as plain data, a line of the file that `fedsolve.results.clients.read_client_metrics` reads."""
        found = self.clients(part)
        numbers = {"examples": found.examples, "metrics": found.metrics}
        return {"round": self.round, "steps": self.steps, "part": part, "names": found.names, **numbers}

    def _arrays(self, part: str) -> tuple[list[int], np.ndarray, np.ndarray, np.ndarray]:
        """The clients that have such examples, how many, and every metric with its count, (clients, metrics) both."""
        clients = sorted(client for client, parts in self.answers.items() if part in parts)
        own = [self.answers[client][part] for client in clients]
        shape = (len(clients), len(self.metrics))
        means, counts = (
            np.array([[getattr(x, kind)[name] for name in self.metrics] for x in own], float).reshape(shape)
            for kind in ("means", "counts")
        )
        return clients, np.array([x.examples for x in own], np.int64), means, counts


def _known(counts: np.ndarray) -> np.ndarray:
    """Where there is a value: a mean over something, or what is no mean (NaN)."""
    return (counts > 0) | np.isnan(counts)
