"""The models of single clients after a run of a method that keeps one for each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from fedsolve.core.algorithm import Algorithm, name_of
from fedsolve.core.buffers import WithBuffers, bare
from fedsolve.core.errors import InvalidInput, check_integer
from fedsolve.core.types import Params

if TYPE_CHECKING:
    from fedsolve.engine.compute.round import RunState
    from fedsolve.engine.evaluation.run_evaluation import RunEvaluation


@dataclass(frozen=True, eq=False)
class ClientModels:
    """The models of a finished run's clients, each put together when it is asked for.

    Attributes:
        algorithm: the method.
        exported: the server's model, with its buffers.
        states: the clients' states as NumPy arrays, first axis (clients,); None where they are not kept.
        count: clients.
        assemble: trained parameters -> the model as the user gave it.
    """

    algorithm: Algorithm
    exported: Any
    states: Any
    count: int
    assemble: Callable[[Params], Params]

    @classmethod
    def of(cls, run: RunEvaluation, state: RunState) -> ClientModels | None:
        """Those of a run; None of a method whose clients all have the server's model."""
        if not run.algorithm.traits.personal:
            return None
        kept = run.stream is None and jax.process_count() == 1
        states = jax.device_get(state.clients) if kept else None
        clients, task = run.task.data.num_clients, run.task
        return cls(run.algorithm, run.algorithm.export(state.server), states, clients, task.assemble)

    def __call__(self, client: int) -> tuple[Params, Any]:
        """A client's model, assembled, and its buffers, None if it keeps nothing beside its parameters.

        Raises:
            InvalidInput: no such client, or its state was streamed and is not in memory.
        """
        if check_integer("client", client, 0) >= self.count:
            raise InvalidInput(f"client = {client} of {self.count} clients: give 0 to {self.count - 1}")
        if self.states is None:
            raise InvalidInput(
                f"the models of {name_of(self.algorithm)}'s clients were streamed and are not in memory: give the run "
                "data in memory, or use task.predict(result.params, x), the server's model"
            )
        own = jax.tree.map(lambda x: np.asarray(x)[client], self.states)
        model = self.algorithm.own_model(self.exported, own)
        buffers = model.buffers.given() if isinstance(model, WithBuffers) else None
        return self.assemble(bare(model)), buffers
