"""Callbacks, which run after each evaluation: early stopping, saving the best model, metrics of each client.

    fs.run(method, task, rounds=500, callbacks=[fs.callbacks.EarlyStopping("validation_loss", patience=10)])

A callback is a function of an `Evaluated`; it returns None to go on, or words that say why the run ends here. One with
a method `ended` is told of the result at the end, of None where the run was interrupted or failed.

A rate that reacts to evaluations is a schedule: `fedsolve.schedules.ReduceOnPlateau`, or a `Reacting` of your own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from fedsolve.config.signatures import accepts
from fedsolve.core.errors import InvalidInput, check_flag, check_integer, check_path, check_range, shown
from fedsolve.core.metric_direction import improvements, signed
from fedsolve.results.clients import ClientMetrics
from fedsolve.results.columns import Columns

__all__ = [
    "Callback",
    "CallbacksOfMethod",
    "CallbacksOfMethodAndSeed",
    "CallbacksOfSeed",
    "EachClient",
    "EarlyStopping",
    "Evaluated",
    "FineTuning",
    "KeepBest",
]


@dataclass(frozen=True)
class Evaluated:
    """The state of a run after an evaluation, which is passed to callbacks.

    Attributes:
        label: the method's name.
        round: rounds done, 0 for the initial model.
        rounds: of the whole run.
        metrics: all evaluations so far as columns, each of shape (evaluations,): round, train_loss, test_accuracy, ...
        result: gives the `fedsolve.Result` so far, the model of this evaluation with the record up to here.
        clients: gives the `fedsolve.results.clients.ClientMetrics` of this evaluation, of each client's own model where
            it has one; with `unseen=True` those of the clients that never train, with `validation=True` those on
            clients' validation examples, with `steps` and a local `solver` after so many local steps. It takes the time
            of another evaluation, and that of the steps.
    """

    label: str
    round: int
    rounds: int
    metrics: Columns
    result: Callable[[], Any] = field(repr=False)
    clients: Callable[..., ClientMetrics] = field(repr=False)

    def signed(self, metric: str) -> np.ndarray:
        """A metric's values so far, shape (evaluations,), negated if smaller is better; -inf in place of NaN.

        Args:
            metric: a column of `metrics`.

        Returns:
            Minus the values, unless more of the metric is better.

        Raises:
            InvalidInput: no such metric (the nearest is named).
        """
        return signed(metric, self.metrics, "a callback")


Callback = Callable[[Evaluated], str | None]
"""A function that runs after each evaluation; a string that it returns ends the run and is recorded as the reason."""
CallbacksOfSeed = Callable[[int], Sequence[Callback]]
"""A function (seed) -> callbacks of that seed's run; callbacks are called one at a time."""
CallbacksOfMethod = Callable[[str], Sequence[Callback]]
"""A function (label) -> callbacks of that method's run in a comparison."""
CallbacksOfMethodAndSeed = Callable[[str, int], Sequence[Callback]]
"""A function (label, seed) -> callbacks of that method's run with that seed."""


def notify_ended(callbacks: Sequence[Callback], result: Any) -> None:
    """Call the method `ended` of those that have one with the result, None where the run failed."""
    for callback in callbacks:
        ended = getattr(callback, "ended", None)
        if ended is not None:
            ended(result)


def check_callbacks(callbacks: object) -> Sequence[Callback]:
    """The same, if they are a list of functions of one argument; else `InvalidInput`."""
    if isinstance(callbacks, str) or not isinstance(callbacks, Sequence):
        raise InvalidInput(f"callbacks = {shown(callbacks)} must be a list of functions")
    for callback in callbacks:
        if isinstance(callback, type):
            name = callback.__name__
            raise InvalidInput(f"callbacks: {name} is a class: give an instance of it, such as {name}(...)")
        if not callable(callback):
            raise InvalidInput(f"callbacks: {shown(callback)} must be a function")
        if not accepts(callback, ["at"]):
            raise InvalidInput(f"callbacks: {shown(callback)} must take one argument, the evaluation")
        ended = getattr(callback, "ended", None)
        if ended is not None and not (callable(ended) and accepts(ended, ["result"])):
            raise InvalidInput(
                f"callbacks: `ended` of {shown(callback)} must be a method of one argument, the result"
            )
    return callbacks


def _check_rounds(rounds: object) -> None:
    # raise `InvalidInput` unless these are rounds at which to look, or None
    if rounds is None:
        return
    if isinstance(rounds, str) or not isinstance(rounds, Collection):
        raise InvalidInput(f"rounds = {shown(rounds)} must be a list of rounds or None for every evaluation")
    for round in rounds:
        check_integer("rounds: a round", round)


def stop_reason(callbacks: Sequence[Callback], at: Evaluated) -> str:
    """Call callbacks in their order, and say why the run ends here by the first that says so; "" if it goes on."""
    for callback in callbacks:
        why = callback(at)
        if why is not None and not isinstance(why, str):
            raise InvalidInput(
                f"a callback returned {shown(why)}: return None to continue, or a string to end the run"
            )
        if why and at.round < at.rounds:
            return f"ended after round {at.round} of {at.rounds}: {why}"
    return ""


@dataclass(frozen=True)
class EarlyStopping:
    """Stop a run when a metric has not improved for some evaluations.

    It follows from the run's record alone: a resumed run stops where an undisturbed one does. Decided on test data, the
    result is no estimate for new data any more: let validation examples decide (`Task.hold_out`).

    Attributes:
        metric: a column of the evaluations; of accuracies and the like more is better, of all else less.
        patience: so many evaluations in a row without a better one end the run, at least 1.
        min_delta: by how much it must be better to count, at least 0.

    Raises:
        InvalidInput: a number out of its range.
    """

    metric: str
    patience: int
    min_delta: float = 0.0

    def __post_init__(self) -> None:
        check_integer("patience", self.patience, 1)
        check_range("min_delta", self.min_delta, at_least=0)

    def __call__(self, at: Evaluated) -> str | None:
        """Return a reason once the metric has not improved for `patience` evaluations.

        Args:
            at: the evaluation.

        Returns:
            Why the run ends here, or None: it goes on.
        """
        values = at.signed(self.metric)
        last = improvements(values, self.min_delta)[-1]
        if len(values) - 1 - last < self.patience:
            return None
        best, when = at.metrics[self.metric][last], at.metrics["round"][last]
        return f"{self.metric} was no better than {best:g} (round {when}) in {self.patience} evaluations"


@dataclass(frozen=True)
class EachClient:
    """Record the metrics of each client at some evaluations.

    In a federation (`fs.flower.server_app`) those of the clients that answer.

    Attributes:
        rounds: at which to look; those that are no evaluation are passed over. None looks at every evaluation.
        unseen: at the clients that never train, in place of those that do.
        validation: at each client's validation examples (`Task.hold_out`), in place of those that it trains on.
        found: the `fedsolve.results.clients.ClientMetrics` by round.

    Raises:
        InvalidInput: rounds that are none.
    """

    observes_only: ClassVar[bool] = True  # and ends no run
    rounds: Collection[int] | None = None
    unseen: bool = False
    validation: bool = False
    found: dict[int, ClientMetrics] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        _check_rounds(self.rounds)
        check_flag("unseen", self.unseen)
        check_flag("validation", self.validation)

    def __call__(self, at: Evaluated) -> None:
        """Evaluate the clients, if the round is one of the requested ones.

        Args:
            at: the evaluation.
        """
        if self.rounds is None or at.round in self.rounds:
            self.found[at.round] = at.clients(unseen=self.unseen, validation=self.validation)


@dataclass(frozen=True)
class FineTuning:
    """Evaluate each client on its validation examples, before and after fine-tuning on its training examples.

    The steps, of SGD on all leaves, are from the model that the client is measured with, and are forgotten: the run is
    what it would be without. Buffers are measured as the steps leave them. Streamed clients are read for it, a block of
    them at a time. Validation examples are clients' own where `Task.hold_out` made them.

    Attributes:
        steps: local steps, at least 1.
        client_lr: their rate, > 0.
        rounds: at which to look; those that are no evaluation are passed over. None looks at every evaluation.
        before, after: the `fedsolve.results.clients.ClientMetrics` by round.

    Raises:
        InvalidInput: a number out of its range; of a run, a task without such examples.
    """

    observes_only: ClassVar[bool] = True  # and ends no run
    steps: int
    client_lr: float
    rounds: Collection[int] | None = None
    before: dict[int, ClientMetrics] = field(default_factory=dict, init=False)
    after: dict[int, ClientMetrics] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        check_integer("steps", self.steps, 1)
        check_range("client_lr", self.client_lr, above=0)
        _check_rounds(self.rounds)

    def __call__(self, at: Evaluated) -> None:
        """Evaluate the clients, if the round is one of the requested ones.

        Args:
            at: the evaluation.
        """
        from fedsolve.methods.client.sgd import SGD

        if self.rounds is None or at.round in self.rounds:
            self.before[at.round] = at.clients(validation=True)
            self.after[at.round] = at.clients(validation=True, steps=self.steps, solver=SGD(self.client_lr))


@dataclass(frozen=True)
class KeepBest:
    """Save the result of the best evaluation so far in a folder, which `fedsolve.load` reads.

    A resumed run goes on with the folder.

    Attributes:
        metric: a column of the evaluations; of accuracies and the like more is better, of all else less.
        folder: where to; it is made.

    Raises:
        InvalidInput: a folder that is no path.
    """

    observes_only: ClassVar[bool] = True  # and ends no run
    metric: str
    folder: str | Path

    def __post_init__(self) -> None:
        check_path("folder", self.folder)

    def __call__(self, at: Evaluated) -> None:
        """Save the result if the metric is better than at every earlier evaluation.

        Args:
            at: the evaluation.
        """
        values = at.signed(self.metric)
        if len(values) == 1 or values[-1] > values[:-1].max():
            at.result().save(self.folder)
