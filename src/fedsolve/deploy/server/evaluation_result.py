"""What clients measured of a model: as columns of the record, client by client, and which are far beyond the others.

No Flower here.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedsolve.deploy.messages.message import PARTS, PartMetrics, Sums
from fedsolve.deploy.site_names import numbered
from fedsolve.engine.evaluation.eval_sets import as_part, client_percentiles
from fedsolve.methods.robust.reductions import FACTOR, usual_norm
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
        names: what a client is called.
    """

    round: int
    steps: int
    metrics: tuple[str, ...]
    answers: Mapping[int, Mapping[str, PartMetrics]]
    refused: Mapping[int, str]
    names: Callable[[int], str] = numbered

    def columns(self) -> dict[str, float]:
        """Means over all examples and of clients' own means, under the names that simulations have them by.

        The mean over all is NaN of what is no mean over anything.
        """
        result: dict[str, float] = {MEASURED: len(self.answers)}
        for part in PARTS:
            measured = self._measured(part)
            if not measured and part != "train":
                continue
            found = self._columns(measured)
            columns = {f"train_{column.name}": column.pooled for column in found}
            own, known = (np.stack([getattr(c, kind) for c in found], axis=1) for kind in ("own", "known"))
            columns |= client_percentiles([column.name for column in found], own, known)
            result |= columns if part == "train" else as_part(part, columns)
        return result

    def clients(self, part: str) -> ClientMetrics:
        """Each client's own metrics on its examples of a part, in the order of numbers."""
        measured = self._measured(part)
        columns = {c.name: np.where(c.known, c.own, np.nan) for c in self._columns(measured)}
        examples = np.array([metrics.examples for metrics in measured.values()], np.int64)
        return ClientMetrics(tuple(self.names(client) for client in measured), examples, columns)

    def line(self, part: str) -> dict[str, Any]:
        """The same as plain data, a line of the file that `fedsolve.results.clients.read_client_metrics` reads."""
        clients = self.clients(part)
        numbers = {"examples": clients.examples, "metrics": clients.metrics}
        return {"round": self.round, "steps": self.steps, "part": part, "names": clients.names, **numbers}

    def _measured(self, part: str) -> dict[int, PartMetrics]:
        """What the clients that have examples of a part measured, by number."""
        return {client: parts[part] for client, parts in sorted(self.answers.items()) if part in parts}

    def _columns(self, measured: Mapping[int, PartMetrics]) -> list[_Column]:
        answers = list(measured.values())
        by_metric = [
            _of_sums(name, [answer.sums[name] for answer in answers])
            if answers and name in answers[0].sums
            else [_of_means(name, answers)]
            for name in self.metrics
        ]
        return [column for columns in by_metric for column in columns]


class _Column(NamedTuple):
    """One number that clients measured.

    Attributes:
        name: of the metric, with what it adds where it gives several.
        pooled: the value of all examples.
        own: each client's own, shape (clients,).
        known: where there is one, shape (clients,).
    """

    name: str
    pooled: float
    own: np.ndarray
    known: np.ndarray


def _of_means(name: str, answers: Sequence[PartMetrics]) -> _Column:
    """A mean over something, or what is no mean, whose values of several clients make none (NaN)."""
    own, counts = (
        np.array([x[name] for x in column], float)
        for column in ([a.means for a in answers], [a.counts for a in answers])
    )
    known = (counts > 0) | np.isnan(counts)
    with np.errstate(invalid="ignore", divide="ignore"):
        pooled = float((np.where(known, own, 0.0) * counts).sum() / counts.sum())
    return _Column(name, pooled, own, known)


def _of_sums(name: str, sums: Sequence[Sums]) -> list[_Column]:
    """The columns of a metric of `fs.metrics`, from each client's sums."""
    metric, values = sums[0].metric, np.stack([one.values for one in sums])
    with jax.enable_x64(True):
        of_sums = jax.vmap(metric.of_sums)
        own = np.asarray(of_sums(jnp.asarray(values)))
        pooled = np.asarray(of_sums(jnp.asarray(values.sum(0))[None]))[0]
    return [
        _Column(name + suffix, float(pooled[i]), own[:, i], ~np.isnan(own[:, i]))
        for i, suffix in enumerate(metric.columns)
    ]


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
        outliers |= _far_examples(part, of_part) | _other_kinds(part, of_part)
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


def _far_examples(part: str, measured: Mapping[int, PartMetrics]) -> dict[int, str]:
    """The clients that claim far more examples than is usual, each with the reason."""
    if not measured:
        return {}
    sizes = sorted(metrics.examples for metrics in measured.values())
    usual = sizes[(len(sizes) - 1) // 2]
    return {
        client: f"it claims {metrics.examples:,} {part} examples, more than {FACTOR:,.0f} times the usual {usual:,.0f}"
        for client, metrics in measured.items()
        if metrics.examples > FACTOR * usual
    }


def _other_kinds(part: str, measured: Mapping[int, PartMetrics]) -> dict[int, str]:
    """The clients that have another metric under a name than most, each with the reason."""
    outliers = {}
    for name in {name: None for metrics in measured.values() for name in (*metrics.means, *metrics.sums)}:
        kinds = {c: repr(m.sums[name].metric) if name in m.sums else "a mean" for c, m in measured.items()}
        [(most, _)] = Counter(kinds.values()).most_common(1)
        outliers |= {
            client: f"its {part} {name} is {kind}, that of most clients {most}: give all the same"
            for client, kind in kinds.items()
            if kind != most
        }
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
