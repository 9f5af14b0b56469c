"""How a cohort is laid out: how many clients side by side, on which devices."""

from __future__ import annotations

import os
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from fedsolve import trees
from fedsolve.engine.train import AXIS
from fedsolve.errors import InvalidInput
from fedsolve.types import Params

# Measured (benchmarks): on a CPU clients side by side win while a client's model stays in a core's cache;
# larger models train faster one after another, each with whole matrix products.
_CPU_MODEL_BYTES = 512 * 2**10
_CPU_BYTES = 256 * 2**20
_ACCELERATOR_BYTES = 4 * 2**30
_COPIES = 4  # model, gradient, displacement, message


def chunk_size(chunk: int | None, params: Params, cohort: int) -> int:
    """Clients trained side by side: as asked, else by the model's size and the kind of device.

    Raises:
        InvalidInput: a chunk below 1.
    """
    if chunk is not None:
        if isinstance(chunk, bool) or not isinstance(chunk, int) or chunk < 1:
            raise InvalidInput(f"chunk = {chunk} must be an integer of at least 1")
        return min(chunk, cohort)
    model = trees.nbytes(params)
    on_cpu = jax.default_backend() == "cpu"
    if on_cpu and model > _CPU_MODEL_BYTES:
        return 1
    room = _CPU_BYTES if on_cpu else _ACCELERATOR_BYTES
    return max(1, min(cohort, room // (_COPIES * model)))


# Measured (benchmarks, `sweeps`): lanes side by side win while all their clients' models stay in a core's cache.
_CPU_LANE_BYTES = 640 * 2**10


def blocks_at_once() -> int:
    """Blocks of lanes that a sweep runs at once: one a core on a CPU, else one."""
    return cores() if jax.default_backend() == "cpu" else 1


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def lanes_side_by_side(
    lanes: int | None, total: int, params: Params, chunk: int, state: Any
) -> tuple[int, str]:
    """Lanes of a sweep in one program, and what is to be said of it ('' if nothing).

    As asked, else what is fast and fits: a lane holds its `state` twice and `chunk` clients' models in training.

    Raises:
        InvalidInput: lanes below 1.
    """
    if lanes is not None:
        if isinstance(lanes, bool) or not isinstance(lanes, int) or lanes < 1:
            raise InvalidInput(f"lanes = {lanes} must be an integer of at least 1")
        return min(lanes, total), ""
    model = trees.nbytes(params)
    lane = 2 * trees.nbytes(state) + _COPIES * chunk * model
    free = _free_bytes() // (2 * blocks_at_once())
    fits = max(1, free // lane)
    note = ""
    if fits < total:
        note = (
            f"{total} lanes side by side need {total * lane / 1e9:.1f} GB and {free / 1e9:.1f} GB may be used: "
            f"{fits} at a time fit, and they run in parts"
        )
    if jax.default_backend() == "cpu":
        fits = min(fits, max(1, _CPU_LANE_BYTES // (chunk * model)))
    return min(fits, total), note


def _free_bytes() -> int:
    """Memory that is free on the device."""
    device = jax.devices()[0]
    stats = device.memory_stats() if device.platform != "cpu" else None
    if stats:
        return stats["bytes_limit"] - stats["bytes_in_use"]
    try:
        with open("/proc/meminfo") as file:
            return next(1024 * int(line.split()[1]) for line in file if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return 4 * 2**30  # not Linux


def mesh(devices: int) -> Mesh:
    """The first `devices` devices in a row.

    Raises:
        InvalidInput: more devices than there are.
    """
    found = jax.devices()
    if isinstance(devices, bool) or not isinstance(devices, int) or not 1 <= devices <= len(found):
        remedy = ""
        if jax.default_backend() == "cpu" and len(found) < cores():
            flag = f"--xla_force_host_platform_device_count={cores()}"
            remedy = f"; to use the {cores()} cores of this CPU as devices start Python with XLA_FLAGS={flag}"
        raise InvalidInput(
            f"devices = {devices} must be between 1 and {len(found)}, the devices found{remedy}"
        )
    return Mesh(np.array(found[:devices]), (AXIS,))
