"""What a run needs at least of memory and of disk, compared with what there is before anything is compiled.

Lower bounds from shapes: a run is refused where it cannot fit, with what makes it smaller, in place of being killed.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from fedsolve.core import trees
from fedsolve.core.errors import InvalidInput
from fedsolve.core.types import Params
from fedsolve.engine.compute.clients import PackedClients
from fedsolve.engine.compute.layout import free_bytes, total_bytes
from fedsolve.engine.compute.processes import own_devices
from fedsolve.engine.compute.program import Program
from fedsolve.engine.streaming.stream import Stream

_TOLD = 20  # a run that needs less than so small a part of the memory says nothing of it


class Need(NamedTuple):
    """A part of what a run needs.

    Attributes:
        what: in words.
        bytes: at least.
        remedy: what makes it smaller.
    """

    what: str
    bytes: int
    remedy: str


def needs(
    program: Program,
    packed: PackedClients,
    stream: Stream | None,
    server: int,
    states: int,
    params: Params,
    cohort: int,
    message: int | None,
) -> tuple[Need, ...]:
    """What a run needs beside the clients that lie on its first device.

    Args:
        program: of a round.
        packed: the clients on the device, where they are not streamed.
        stream: that of a run whose clients are.
        server, states: bytes of the server's state, and of those of all clients.
        params: the model.
        cohort: clients of a round.
        message: bytes of a client's message, where a cohort's are kept side by side.
    """
    devices = (
        len(own_devices(program.mesh)) if jax.default_backend() == "cpu" else 1
    )  # which share one memory
    parts = program.mesh.size // program.num_shards
    model, chunk = trees.nbytes(params), max([program.chunk, *(g.chunk for g in program.groups)])
    smaller = "a smaller model, or one in parts on several devices (mesh)"
    if trees.dtype_of(params) == np.float64:
        smaller += ", or dtype = 'float32'"
    side_by_side = devices * chunk * 2 * model // parts  # where each stands, and its gradient
    on_others = (devices - 1) * trees.nbytes(packed.examples)
    found = [
        Need("the server's state and the model", devices * (server + model) // parts, smaller),
        Need(f"{chunk:,} clients side by side", side_by_side, "a smaller chunk" if chunk > 1 else smaller),
    ]
    if stream is None:
        remedy = "residency = 'stream', or a method that keeps none"
        found.append(Need("clients' states", devices * states // parts, remedy))
        found.append(Need("further devices' examples", on_others, "residency = 'stream', or devices = 1"))
    else:
        found.append(Need("the clients of the next rounds", stream.needed, "fewer clients a round"))
    if message is not None:
        kept = f"the messages of {cohort:,} clients, which {devices:,} devices keep"
        found.append(Need(kept, devices * cohort * message, "fewer clients a round"))
    return tuple(found)


def check_memory(needs: Sequence[Need], there: int) -> str:
    """What is to be said of a run's memory, '' if it needs little.

    Args:
        needs: what is not in memory yet.
        there: bytes of the examples that are.

    Raises:
        InvalidInput: less is free; the largest part is named with its remedy.
    """
    needed, free = sum(need.bytes for need in needs), free_bytes()
    if needed > free:
        largest = max(needs, key=lambda need: need.bytes)
        raise InvalidInput(
            f"the run needs {size(needed)} of memory at least ({size(largest.bytes)} for {largest.what}), and "
            f"{size(free)} are free: take {largest.remedy}"
        )
    if there + needed < total_bytes() // _TOLD:
        return ""
    parts = [("examples", there), *((need.what, need.bytes) for need in needs)]
    words = ", ".join(f"{size(bytes)} for {what}" for what, bytes in parts if bytes)
    return f"it needs {size(there + needed)} of {size(total_bytes())} of memory at least: {words}"


def check_disk(folder: Path, needs: Sequence[Need]) -> None:
    """Raise `InvalidInput` if a folder's disk has no room for what a run will surely write there."""
    needed, free = sum(need.bytes for need in needs), shutil.disk_usage(folder).free
    if needed > free:
        largest = max(needs, key=lambda need: need.bytes)
        raise InvalidInput(
            f"the run needs {size(needed)} of disk at least ({size(largest.bytes)} for {largest.what}), and the disk "
            f"of {folder} has {size(free)} free: free space, choose another folder, or take {largest.remedy}"
        )


def size(bytes: int) -> str:
    """Bytes as people read them."""
    return f"{bytes / 1e9:.1f} GB" if bytes >= 1e9 else f"{bytes / 1e6:.1f} MB"
