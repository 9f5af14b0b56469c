"""The evaluations of a deployment: by the server, by the clients, and what is called after each. No Flower here."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any, Protocol

from fedsolve.core.checks import check_integer
from fedsolve.core.errors import InvalidInput, shown
from fedsolve.deploy.messages.sanitize import sanitize
from fedsolve.deploy.server.coordinator import Coordinator
from fedsolve.deploy.server.evaluation_result import EvaluationResult
from fedsolve.deploy.server.settings import Settings
from fedsolve.engine.records.record import Recorder
from fedsolve.results.callbacks import Evaluated, why_it_ends
from fedsolve.results.clients import ClientMetrics


class EvaluatesOnClients(Protocol):
    """Gives what clients measure of the present model, after so many local steps of a solver."""

    def evaluate(self, steps: int = 0, solver: Any = None) -> EvaluationResult:
        """What they measure."""
        ...


class Evaluation:
    """Evaluates a coordinator's model.

    Args:
        coordinator: the method and its state.
        recorder: the record so far.
        settings: rounds, label, metrics of the model on the server, and what is called after each evaluation.
        clients: asks the clients; None if they measure nothing.
        result: gives the `fedsolve.Result` so far.

    Attributes:
        measures_loss: whether the training loss itself is measured, by the server or by clients.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        recorder: Recorder,
        settings: Settings,
        clients: EvaluatesOnClients | None,
        result: Callable[[], Any],
    ) -> None:
        self._coordinator, self._recorder, self._settings = coordinator, recorder, settings
        self._clients, self._result = clients, result
        self.measures_loss = False

    @property
    def measures(self) -> bool:
        """Whether there is more to an evaluation than the losses of local steps."""
        return self._settings.evaluate is not None or self._clients is not None

    def record(self, seconds: Callable[[], float], client_loss: float = float("nan")) -> None:
        """Record the model's metrics, or where nobody measures any the loss of local steps alone; react to them.

        Args:
            seconds: gives the time that the run has taken.
            client_loss: the mean loss of the round's local steps.

        Raises:
            InvalidInput: `evaluate` raises, or no client can measure what all are asked at first.
        """
        metrics = self._measured_by_clients() | self._measured_here()
        self.measures_loss = "train_loss" in metrics
        self._recorder.evaluation(
            self._coordinator.state.round, seconds(), {"train_loss": client_loss, **metrics}
        )

    def why_the_run_ends(self) -> str:
        """Why the run ends at this evaluation, by the first callback that says so; "" if it goes on."""
        if not self._settings.callbacks or self._recorder.latest["round"] != self._coordinator.state.round:
            return ""
        at = Evaluated(
            self._settings.label or "",
            self._coordinator.state.round,
            self._settings.rounds,
            self._recorder.evaluations.arrays(),
            self._result,
            self._each_client,
        )
        return why_it_ends(self._settings.callbacks, at)

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
                f"line {last.lineno}): mend it and resume"
            ) from error

    def _measured_by_clients(self) -> dict[str, float]:
        if self._clients is None:
            return {}
        result = self._clients.evaluate()
        if not result.answers and result.refused and not self._recorder.evaluated:  # nothing is lost yet
            client, reason = min(result.refused.items())
            raise InvalidInput(
                f"no client measures the model by client_metrics = {result.metrics}; client {client}: {reason}"
            )
        return result.columns()

    def _each_client(
        self, *, unseen: bool = False, validation: bool = False, steps: int = 0, solver: Any = None
    ) -> ClientMetrics:
        """What callbacks are given as `Evaluated.clients`: the metrics of those that answer.

        Raises:
            InvalidInput: clients are not asked, or of what a federation has not; a number of steps below 0, what is no
                solver; validation examples that no client has.
        """
        if self._clients is None:
            raise InvalidInput(
                "clients measure nothing in this run: give server_app client_metrics = ('loss',)"
            )
        if unseen:
            raise InvalidInput("a federation has no unseen clients: each client of it may train")
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
