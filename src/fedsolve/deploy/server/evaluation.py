"""The evaluations of a deployment, by the server and by the clients. No Flower here."""

from __future__ import annotations

import traceback
from typing import Any, Protocol

from fedsolve.core.checks import check_integer
from fedsolve.core.errors import InvalidInput, shown
from fedsolve.deploy.messages.sanitize import sanitize
from fedsolve.deploy.server.coordinator import Coordinator
from fedsolve.deploy.server.evaluation_result import EvaluationResult
from fedsolve.deploy.server.settings import Settings
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
        settings: metrics of the model on the server.
        clients: asks the clients; None if they measure nothing.
    """

    def __init__(
        self, coordinator: Coordinator, settings: Settings, clients: EvaluatesOnClients | None
    ) -> None:
        self._coordinator, self._settings, self._clients = coordinator, settings, clients

    @property
    def measures(self) -> bool:
        """Whether there is more to an evaluation than the losses of local steps."""
        return self._settings.evaluate is not None or self._clients is not None

    def metrics(self, is_first: bool) -> dict[str, float]:
        """What is measured of the present model, nothing where nobody measures anything.

        Raises:
            InvalidInput: `evaluate` raises, or in the first evaluation no client can measure what all are asked.
        """
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
                f"line {last.lineno}): mend it and resume"
            ) from error

    def _measured_by_clients(self, is_first: bool) -> dict[str, float]:
        if self._clients is None:
            return {}
        result = self._clients.evaluate()
        if not result.answers and result.refused and is_first:  # nothing is lost yet
            client, reason = min(result.refused.items())
            raise InvalidInput(
                f"no client measures the model by client_metrics = {result.metrics}; client {client}: {reason}"
            )
        return result.columns()

    def by_client(
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
