"""Second step: method, model and clients in the run's type, where the run has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from fedsolve.core.algorithm import Algorithm
from fedsolve.core.sampling import Sampling
from fedsolve.core.types import Params
from fedsolve.engine.checks.rates import check_rates
from fedsolve.engine.checks.shape_checks import check_buffers
from fedsolve.engine.compute.cast import cast
from fedsolve.engine.compute.clients import PackedClients
from fedsolve.engine.compute.keys import in_run, in_type, on_types, run_key, start_key
from fedsolve.engine.compute.round import client_state_bytes
from fedsolve.engine.preparation.requested import Requested
from fedsolve.engine.streaming.population import Population, place_clients


@dataclass(frozen=True, kw_only=True)
class Placed:
    """A run's method, model and clients, all numbers in the run's type.

    Attributes:
        algorithm: the method, with buffers around it where the task has some.
        sampling: who takes part.
        params: the initial model.
        key: of all rounds.
        state_bytes: of a client's own state.
        clients: on the device; a few of them where the population is streamed.
        population: all clients, where they are streamed; None where all are on the device.
        remarks: what is to be said of types, and of where the clients are.
    """

    algorithm: Algorithm
    sampling: Sampling
    params: Params
    key: Any
    state_bytes: int
    clients: PackedClients
    population: Population | None
    remarks: tuple[str, ...]


def place(requested: Requested) -> Placed:
    """Method, model and clients of a run, put where they belong.

    Raises:
        InvalidInput: numbers that the run's type has not, rates that a run cannot use, clients that no memory holds,
            a loss that does not fit the task's buffers.
    """
    task, options = requested.task, requested.options
    dtype = jnp.dtype(options.dtype)
    algorithm = in_run(requested.algorithm.with_steps(requested.work.equal_steps), task, dtype)
    given = task.init(start_key(options.seed))
    params = in_type(task, given, dtype)
    sampling = cast(requested.sampling, dtype)
    check_rates(algorithm, options.rounds)
    state_bytes = client_state_bytes(algorithm, params, task.data.num_clients)
    clients, population, where = place_clients(requested, dtype, state_bytes)
    model = clients.first_model(params, task.buffers)
    check_buffers(task, requested.work, model, clients.examples)
    return Placed(
        algorithm=algorithm,
        sampling=sampling,
        params=params,
        key=run_key(options.seed),
        state_bytes=state_bytes,
        clients=clients,
        population=population,
        remarks=(*on_types(given, dtype), *([where] if where else [])),
    )
