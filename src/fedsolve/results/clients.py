"""The metrics of each client under one model: who is served how well."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedsolve.core.errors import InvalidInput, check_integer, check_known
from fedsolve.core.metric_direction import badness
from fedsolve.folders.sealed import LARGEST, unsealed_values
from fedsolve.folders.untrusted import MALFORMED, read_bytes
from fedsolve.results.columns import as_column, frame

CLIENT_METRICS = "client-metrics.jsonl"
"""What the clients of a federation found, in its folder: a line each time they were asked, and part of examples."""


@dataclass(frozen=True, eq=False)
class ClientMetrics:
    """Each client's own means over its examples.

    Attributes:
        names: of the clients.
        examples: of each, shape (clients,).
        metrics: name (`loss`, `accuracy`, ...) -> values, shape (clients,), NaN where there is nothing to measure.
    """

    names: tuple[str, ...]
    examples: np.ndarray
    metrics: dict[str, np.ndarray]

    def __repr__(self) -> str:
        return f"ClientMetrics({len(self.names)} clients: {', '.join(self.metrics)})"

    def column(self, metric: str) -> np.ndarray:
        """A metric by client; `InvalidInput` names the nearest if there is none of that name."""
        check_known("metric of clients", metric, self.metrics)
        return self.metrics[metric]

    def deciles(self, metric: str) -> np.ndarray:
        """The 0th, 10th, ..., 100th percentile over the clients, shape (11,)."""
        return np.nanpercentile(self.column(metric), np.arange(0, 101, 10))

    def worst(self, metric: str, count: int = 1) -> list[tuple[str, float]]:
        """Names and values of the clients that fare worst, worst first; none for counts, such as `n_tp`.

        Of accuracies and the like less is worse, of a calibration what is farther from slope 1 or intercept 0.

        Raises:
            InvalidInput: no such metric, or a count below 1.
        """
        check_integer("count", count, 1)
        values = self.column(metric)
        worse = badness(metric, values)
        order = np.argsort(-worse, kind="stable")
        return [(self.names[i], float(values[i])) for i in order[:count] if not np.isnan(worse[i])]

    def by_group(self, metric: str, groups: Sequence[Any]) -> dict[Any, float]:
        """The mean over the clients of each group, in the order in which groups come.

        Args:
            metric: its name.
            groups: of each client, in the clients' order: a device, a region, a size.

        Raises:
            InvalidInput: no such metric, or not one group for each client.
        """
        values = self.column(metric)
        if len(groups) != len(self.names):
            raise InvalidInput(f"{len(groups)} groups for {len(self.names)} clients: give each client one")
        members: dict[Any, list[float]] = {}
        for group, value in zip(groups, values.tolist(), strict=True):
            members.setdefault(group, []).append(value)
        return {group: float(np.mean(found)) for group, found in members.items()}

    def frame(self) -> Any:
        """A data frame of pandas, or of polars where only that is installed: `client`, `examples` and each metric.

        Raises:
            InvalidInput: neither is installed.
        """
        return frame({"client": np.array(self.names), "examples": self.examples, **self.metrics})


def read_client_metrics(
    folder: str | Path, *, validation: bool = False, steps: int = 0
) -> dict[int, ClientMetrics]:
    """What the clients of a federation found of its models (`server_app(client_metrics=...)`), by round.

    Args:
        folder: the run's.
        validation: on the examples that they hold out, in place of those that they train on.
        steps: after so many local steps (`fs.callbacks.FineTuning`), 0 for none.

    Returns:
        The clients that answered, in the order of their numbers; of a round that was measured again after a resume,
        the last. A line that was cut short, as the server died, is passed over.

    Raises:
        InvalidInput: the folder has no such file, or a line of it is damaged or was written by something else.
    """
    path = Path(folder) / CLIENT_METRICS
    try:
        lines = read_bytes(path, LARGEST, follow=False).splitlines()
    except OSError as error:
        raise InvalidInput(
            f"cannot read {path}: {error.strerror}; give the folder of a run with client_metrics"
        ) from None
    by_round, wanted = {}, (check_integer("steps", steps), "validation" if validation else "train")
    for number, line in enumerate(lines, 1):
        if b"}" not in line[-2:]:  # cut short: a whole one ends in two of them
            continue
        try:
            entry, _ = unsealed_values(path, line)
            if (entry["steps"], entry["part"]) == wanted and entry["names"]:
                metrics = {name: as_column(values).astype(float) for name, values in entry["metrics"].items()}
                examples = as_column(entry["examples"])
                by_round[int(entry["round"])] = ClientMetrics(tuple(entry["names"]), examples, metrics)
        except MALFORMED:
            raise InvalidInput(
                f"{path}, line {number}: no metrics of clients as fedsolve writes them, or damaged: "
                "restore a copy, or remove the line"
            ) from None
    return by_round
