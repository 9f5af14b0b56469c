"""The evaluations of a deployment: by the server, and by the clients that are connected; no model follows from them."""

from __future__ import annotations

import math
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flwr.app import RecordDict
from flwr.serverapp import Grid

from fedsolve.core.errors import InvalidInput, check_integer, shown
from fedsolve.deploy.codec import Expected, record_to_reply
from fedsolve.deploy.exchange import Exchange, PendingRequests, Replies, send_and_wait
from fedsolve.deploy.message import EVALUATE, PARTS, EvaluateReply, EvaluateRequest, PartMetrics, Sums
from fedsolve.deploy.registry import ClientRegistry
from fedsolve.deploy.reply_checks import check_evaluate_reply
from fedsolve.deploy.sanitize import reading, sanitize
from fedsolve.deploy.server.coordinator import Coordinator
from fedsolve.deploy.server.settings import Settings
from fedsolve.deploy.site_names import numbered
from fedsolve.deploy.status import Cause, PhaseClock
from fedsolve.engine.evaluation.eval_sets import as_part, client_percentiles
from fedsolve.folders.logs import append_line
from fedsolve.folders.sealed import sealed
from fedsolve.methods.robust.reductions import FACTOR, usual_norm
from fedsolve.report.style import human_time
from fedsolve.results.clients import ClientMetrics
from fedsolve.results.columns import dumps

# What clients measured of a model: as columns of the record, client by client, and which are far beyond the others.
#
# No Flower here.


MEASURED = "clients_measured"
"""The column that says how many clients' answers count."""


@dataclass(frozen=True)
class EvaluationResult:
    """The replies that count to one request, after so many local `steps`; `refused` says by client why one does not."""

    round: int
    steps: int
    metrics: tuple[str, ...]
    answers: Mapping[int, Mapping[str, PartMetrics]]
    refused: Mapping[int, str]
    names: Callable[[int], str] = numbered

    def columns(self) -> dict[str, float]:
        """Means over all examples and of clients' own means, under the names that simulations have them by."""
        # The mean over all is NaN of what is no mean over anything.
        result: dict[str, float] = {MEASURED: len(self.answers)}
        for part in PARTS:
            measured = self._measured(part)
            if not measured and part != "train":
                continue
            found = self._columns(measured)
            columns = {f"train_{column.name}": column.pooled for column in found}
            # Shapes (clients, columns).
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
        return {client: parts[part] for client, parts in sorted(self.answers.items()) if part in parts}

    def _columns(self, measured: Mapping[int, PartMetrics]) -> list[_Column]:
        answers = list(measured.values())
        by_metric = [
            _sum_columns(name, [answer.sums[name] for answer in answers])
            if answers and name in answers[0].sums
            else [_mean_column(name, answers)]
            for name in self.metrics
        ]
        return [column for columns in by_metric for column in columns]


class _Column(NamedTuple):
    """A metric's number, or one of several: each client's `own`, and whether it is `known`, (clients,) both."""

    name: str
    pooled: float
    own: np.ndarray
    known: np.ndarray


def _mean_column(name: str, answers: Sequence[PartMetrics]) -> _Column:
    # A mean over something, or what is no mean, whose values of several clients make none (NaN).
    own, counts = (
        np.array([x[name] for x in column], float)
        for column in ([a.means for a in answers], [a.counts for a in answers])
    )
    known = (counts > 0) | np.isnan(counts)
    with np.errstate(invalid="ignore", divide="ignore"):
        # The mean over all examples weighs means by their counts; NaN of what is no mean stays NaN.
        pooled = float((np.where(known, own, 0.0) * counts).sum() / counts.sum())
    return _Column(name, pooled, own, known)


def _sum_columns(name: str, sums: Sequence[Sums]) -> list[_Column]:
    # The columns of a metric of `fs.metrics`, from each client's sums.
    metric, values = sums[0].metric, np.stack([one.values for one in sums])
    with jax.enable_x64(True):
        # In 64 bits: counts above 2^24 are exact.
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
    """The clients whose answer to a question has a metric far beyond the usual, each with the reason."""
    # Usual is the median of the answers, as in a first round, or what was measured `first` where that is larger:
    # where most losses fall to 0 an honest one need not.
    outliers: dict[int, str] = {}
    for part in PARTS:
        of_part = {client: parts[part] for client, parts in sorted(answers.items()) if part in parts}
        outliers |= _example_count_outliers(part, of_part) | _metric_kind_outliers(part, of_part)
        for name in {name: None for measured in of_part.values() for name in measured.means}:
            sizes = {client: abs(measured.means[name]) for client, measured in of_part.items()}
            known = {client: x for client, x in sizes.items() if x < math.inf}
            if not known:
                continue
            median = float(usual_norm(np.array(list(known.values())), 0.0, np))
            # Where most losses have fallen to 0, an honest one need not have.
            usual = max(median, abs(first.get(name, 0.0)))
            for client, x in known.items():
                if x > FACTOR * usual:
                    outliers[client] = (
                        f"its {part} {name} is {of_part[client].means[name]:.6g}, in size more than {FACTOR:,.0f} "
                        f"times the {usual:.6g} that is usual"
                    )
    return outliers


def _example_count_outliers(part: str, measured: Mapping[int, PartMetrics]) -> dict[int, str]:
    # The clients that claim far more examples than is usual, each with the reason.
    if not measured:
        return {}
    sizes = sorted(metrics.examples for metrics in measured.values())
    # The lower median: of two clients the larger one is no measure of what is usual.
    usual = sizes[(len(sizes) - 1) // 2]
    return {
        client: f"it claims {metrics.examples:,} {part} examples, more than {FACTOR:,.0f} times the usual {usual:,.0f}"
        for client, metrics in measured.items()
        if metrics.examples > FACTOR * usual
    }


def _metric_kind_outliers(part: str, measured: Mapping[int, PartMetrics]) -> dict[int, str]:
    # The clients that have another metric under a name than most, each with the reason.
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


def save_client_metrics(path: Path, result: EvaluationResult) -> None:
    """Add what clients measured to a file, client by client: a line for each part of their examples."""
    for part in PARTS:
        append_line(path, sealed(dumps(result.line(part))))


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


Metrics = Mapping[str, PartMetrics]
"""What a client measured, by part of its examples."""


class ClientEvaluation(Exchange[EvaluateRequest, Metrics]):
    """Asks all clients that are connected, and waits for them as long as for a round's replies.

    Who leaves requests without an answer is not asked the next 1, 2, 4, ... times. That is apart from training, and
    so is all else here: who trains, and from what, is the same with and without it.

    Args:
        first: gives what was measured first, a mean over training examples of each metric.
        save: told what clients measured, each time that they are asked.
    """

    def __init__(
        self,
        grid: Grid,
        coordinator: Coordinator,
        settings: Settings,
        registry: ClientRegistry,
        first: Callable[[], Mapping[str, float]],
        save: Callable[[EvaluationResult], None],
        log: Callable[[str], None],
    ) -> None:
        self._coordinator, self._settings, self._registry = coordinator, settings, registry
        super().__init__(
            grid, EVALUATE, settings.round_seconds, settings.grace, self._read, registry.clients, log
        )
        self._first, self._save = first, save
        self._times = 0
        self._last: EvaluationResult | None = None
        self._carried_result: Callable[[], EvaluationResult] | None = None

    def _read(self, request: EvaluateRequest, record: RecordDict) -> Metrics:
        return read_metrics(request, record, self._coordinator.declared.get(request.client))

    def prepare(self) -> PendingRequests[EvaluateRequest, Metrics]:
        """The requests of the next `evaluate`, for a caller that sends them beside others before it asks for that."""
        pending, self._carried_result = self._prepare(0, None)
        return pending

    def evaluate(self, steps: int = 0, solver: Any = None) -> EvaluationResult:
        """What clients measure of the present model, after so many local steps of a solver."""
        # They are asked once a round where they take none.
        if steps:
            return self._ask(steps, solver)
        # Carried by the orders of this round, whose replies have come.
        if self._carried_result is not None:
            self._last, self._carried_result = self._carried_result(), None
        if self._last is None or self._last.round != self._coordinator.state.round:
            self._last = self._ask(0, None)
        return self._last

    def _ask(self, steps: int, solver: Any) -> EvaluationResult:
        pending, result = self._prepare(steps, solver)
        send_and_wait([pending], self._coordinator.state.round, PhaseClock())
        return result()

    def _prepare(
        self, steps: int, solver: Any
    ) -> tuple[PendingRequests[EvaluateRequest, Metrics], Callable[[], EvaluationResult]]:
        begun, done = time.perf_counter(), self._coordinator.state.round
        self._times += 1
        requests = self._requests(steps, solver)
        title = f"evaluation after round {done}{f' and {steps} local steps' if steps else ''}"
        needed = self._settings.replies_needed(len(requests))
        replies: Replies[Metrics] = Replies(title, needed, len(requests))
        pending = PendingRequests(self, requests, replies, self._times)

        def result() -> EvaluationResult:
            for client in pending.silent:
                self.reject(replies, client, Cause.NO_ANSWER, "no answer in time")
            # Late answers are to an earlier model, and to no question any more.
            self.take_late()
            for client, reason in find_metric_outliers(replies.accepted, self._first()).items():
                del replies.accepted[client]
                self.reject(replies, client, Cause.OUTLIER, reason)
            self._clients.succeeded(replies.accepted)
            self._log(
                f"{title}: {len(replies.accepted)} of {len(requests)} clients count, {replies.bytes_up:,} bytes up, "
                f"{replies.bytes_down:,} down, {human_time(time.perf_counter() - begun)}"
            )
            found = self._result_of(done, steps, replies)
            self._save(found)
            return found

        return pending, result

    @property
    def _metrics(self) -> tuple[str, ...]:
        return tuple(self._settings.client_metrics)

    def _requests(self, steps: int, solver: Any) -> dict[int, EvaluateRequest]:
        request_for = self._coordinator.evaluate_requests(self._metrics, steps, solver)
        return {
            node: request_for(client)
            for client, node in self._registry.poll().items()
            if not self.backoff.is_backing_off(client, node, self._times)
        }

    def _result_of(self, done: int, steps: int, replies: Replies[Metrics]) -> EvaluationResult:
        refused = dict(replies.rejected)
        return EvaluationResult(done, steps, self._metrics, replies.accepted, refused, self._registry.names)


class Evaluation:
    """Evaluates a coordinator's model, also on clients unless these are None."""

    def __init__(
        self, coordinator: Coordinator, settings: Settings, clients: ClientEvaluation | None
    ) -> None:
        self._coordinator, self._settings, self._clients = coordinator, settings, clients

    @property
    def may_be_carried(self) -> bool:
        """Whether the next round's orders may carry it: nothing asks for it before, and all are waited for."""
        settings = self._settings
        waits_for_all = not settings.over_select and settings.grace in (None, math.inf)
        is_asked_for = bool(settings.callbacks) or self._coordinator.reacts
        return self._clients is not None and waits_for_all and not is_asked_for

    @property
    def measures(self) -> bool:
        """Whether there is more to an evaluation than the losses of local steps."""
        return self._settings.evaluate is not None or self._clients is not None

    def metrics(self, is_first: bool) -> dict[str, float]:
        """What is measured of the present model, nothing where nobody measures anything."""
        return self._measured_by_clients(is_first) | self._measured_here()

    def _measured_here(self) -> dict[str, float]:
        if self._settings.evaluate is None:
            return {}
        try:
            return dict(self._settings.evaluate(self._coordinator.model, self._coordinator.state.buffers))
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            done = self._coordinator.state.round
            raise InvalidInput(
                f"evaluate raised {type(error).__name__} after round {done} ({sanitize(error)}; {last.filename}, "
                f"line {last.lineno}): fix it and resume"
            ) from error

    def _measured_by_clients(self, is_first: bool) -> dict[str, float]:
        if self._clients is None:
            return {}
        result = self._clients.evaluate()
        if not result.answers and result.refused and is_first:  # nothing is lost yet
            client, reason = min(result.refused.items())
            raise InvalidInput(
                f"no client evaluates client_metrics = {result.metrics}; {result.names(client)}: {reason}"
            )
        return result.columns()

    def by_client(
        self, *, unseen: bool = False, validation: bool = False, steps: int = 0, solver: Any = None
    ) -> ClientMetrics:
        """What callbacks are given as `Evaluated.clients`: the metrics of those that answer."""
        if self._clients is None:
            raise InvalidInput(
                "clients measure nothing in this run: give server_app client_metrics = ('loss',)"
            )
        if unseen:
            raise InvalidInput("a federation has no held-out clients: each client may train")
        if check_integer("steps", steps) and not callable(getattr(solver, "solve", None)):
            raise InvalidInput(
                f"solver = {shown(solver)} must be one such as fs.client.SGD(0.1), for {steps} steps"
            )
        result = self._clients.evaluate(steps, solver)
        metrics = result.clients("validation" if validation else "train")
        if validation and result.answers and not metrics.names:
            raise InvalidInput(
                "no client has validation examples: give their oracles some, such as JaxOracle(..., validation=...)"
            )
        return metrics


def read_metrics(request: EvaluateRequest, record: RecordDict, declared: int | None = None) -> Metrics:
    """What a client answered to a request, checked; `declared` are the examples that it trains on, None if unknown."""
    with reading("the answer"):
        reply = record_to_reply(EvaluateReply, record, Expected(metrics=request.metrics))
        check_evaluate_reply(reply, request, declared)
        return reply.parts
