"""Where clients' examples and states live: on the device, or on the host and on disk, read as they are needed."""

from __future__ import annotations

from typing import Any

import jax

from fedsolve.core.errors import InvalidInput
from fedsolve.data.federated import FederatedData
from fedsolve.engine.checks.sizes import size
from fedsolve.engine.compute.clients import PackedClients, on_device, pack
from fedsolve.engine.compute.layout import free_bytes, total_bytes
from fedsolve.engine.compute.program import MODEL_AXIS
from fedsolve.engine.options import RunOptions
from fedsolve.engine.preparation.requested import Requested
from fedsolve.engine.streaming.population import Population, first_clients, row_bytes

_SHARE = 4  # of the memory there is: a run's examples and states may take so small a part by default


def place_clients(
    requested: Requested, dtype: Any, state_bytes: int
) -> tuple[PackedClients, Population | None, str]:
    """Clients on the device, the population where only some lie there, and what is to be said of it.

    Args:
        requested: the run.
        dtype: its floating-point type.
        state_bytes: of a client's own state.

    Raises:
        InvalidInput: clients that shall lie on a device without the memory, or that cannot be streamed.
    """
    task, options, mesh = requested.task, requested.options, requested.mesh
    streamed, remark = is_streamed(options, task.data, dtype, state_bytes)
    frozen = on_device(task.frozen, dtype)
    if not streamed:
        return pack(task.data, task.loss, dtype, **options.local_work, frozen=frozen)[0], None, remark
    if MODEL_AXIS in mesh.shape:
        raise InvalidInput(
            "mesh: models that lie in parts train clients on the device: give residency = 'device'"
        )
    population = Population(task.data, requested.steps, dtype, frozen, mesh)
    return first_clients(population), population, remark


def is_streamed(options: RunOptions, data: FederatedData, dtype: Any, state_bytes: int) -> tuple[bool, str]:
    """Whether clients are streamed, as asked, else by their size; and what is to be said of it.

    By the memory that the device has, not by what is free at the moment: so a run that goes on decides alike.

    Args:
        options: of the run.
        data: the clients.
        dtype: the run's floating-point type.
        state_bytes: of a client's own state.

    Raises:
        InvalidInput: they shall lie on the device, which has not that much memory free.
    """
    on_cpu = jax.default_backend() == "cpu"  # CPU devices of a process share one memory
    copies = (options.devices or 1) // jax.process_count() if on_cpu else 1
    examples = copies * data.num_examples * row_bytes(data, dtype)
    states = copies * data.num_clients * state_bytes
    sizes = f"{size(examples)} of examples" + (f", {size(states)} of states" if states else "")
    fit = options.residency is None and examples + states <= total_bytes() // _SHARE
    if options.residency != "device" and not fit:
        return True, f"clients are streamed ({sizes})"
    free = free_bytes()
    if examples + states > free:
        raise InvalidInput(
            f"residency = 'device' needs {size(examples + states)} ({sizes}), and {size(free)} are free: give "
            "'stream', or take fewer clients"
        )
    return False, ""
