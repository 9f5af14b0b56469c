"""The processes of a run under JAX's distributed runtime: what all of them hold, and what they agree on.

Each runs the same program on devices of its own, and they meet in its sums. So whatever the clock, a signal or a
callback decides must be decided for all of them at once: one that did otherwise would leave the others waiting.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from fedsolve.core.errors import InvalidInput, Unavailable


def several() -> bool:
    """Whether the run has more processes than this one."""
    return jax.process_count() > 1


def is_first() -> bool:
    """Whether this is the process that writes, prints and calls back."""
    return jax.process_index() == 0


def own_devices(mesh: Mesh) -> list[Any]:
    """Those of the mesh's devices that this process drives."""
    return [d for d in mesh.devices.flat if d.process_index == jax.process_index()]


def replicate(tree: Any, mesh: Mesh, *, may_alias: bool | None = None) -> Any:
    """Arrays with a copy on every device of the mesh; each process gives its own, and all give the same."""
    sharding = NamedSharding(mesh, P())
    if not several():
        return jax.device_put(tree, sharding, may_alias=may_alias)

    def put(x: Any) -> jax.Array:
        copies = [jax.device_put(x, d, may_alias=False) for d in own_devices(mesh)]
        return jax.make_array_from_single_device_arrays(x.shape, sharding, copies)

    return jax.tree.map(put, tree)


def put_by_device(parts: Sequence[Any], mesh: Mesh) -> Any:
    """Arrays of which each device of the mesh has a part, one behind another along the first axis.

    Args:
        parts: those of this process's own devices, pytrees of arrays of one shape.
        mesh: devices in a row.
    """
    sharding = NamedSharding(mesh, P(*mesh.axis_names))

    def put(*own: Any) -> jax.Array:
        placed = [jax.device_put(x, d) for x, d in zip(own, own_devices(mesh), strict=True)]
        shape = (mesh.size * len(own[0]), *own[0].shape[1:])
        return jax.make_array_from_single_device_arrays(shape, sharding, placed)

    return jax.tree.map(put, *parts)


def put_sharded(tree: Any, sharding: Callable[[jax.Array], NamedSharding]) -> Any:
    """Arrays in parts, or copies, on devices of all processes, each of which gives the whole ones."""

    def put(x: Any) -> jax.Array:
        if not several():
            return jax.device_put(x, sharding(x))
        whole = np.asarray(x)
        return jax.make_array_from_callback(whole.shape, sharding(x), lambda part: whole[part])

    return jax.tree.map(put, tree)


def local_copy(tree: Any) -> Any:
    """What lies on all devices as this process's first ones have it, which takes no further memory.

    That is the copy on one device, or where some arrays lie in parts, the parts on the first that have a whole model.
    """
    leaves = jax.tree.leaves(tree)
    if all(x.is_fully_replicated for x in leaves):
        return jax.tree.map(lambda x: x.addressable_data(0) if len(x.sharding.device_set) > 1 else x, tree)
    mesh = next(x.sharding.mesh for x in leaves if not x.is_fully_replicated)
    row = next(row for row in mesh.devices if set(row) <= set(own_devices(mesh)))
    own = Mesh(row, mesh.axis_names[1:])

    def taken(x: Any) -> jax.Array:
        parts = {part.device: part.data for part in x.addressable_shards}
        spec = P() if x.is_fully_replicated else x.sharding.spec
        return jax.make_array_from_single_device_arrays(
            x.shape, NamedSharding(own, spec), [parts[device] for device in row]
        )

    return jax.tree.map(taken, tree)


def process_allgather(*numbers: int) -> np.ndarray:
    """What each process gives, all known to all, shape (processes, numbers); every process must call it."""
    if not several():
        return np.array([numbers])
    mesh, gather = _allgather_program()
    own = NamedSharding(mesh, P("processes"))
    given = jax.make_array_from_process_local_data(own, np.array([numbers], np.int32))
    return np.asarray(gather(given).addressable_data(0))


def broadcast_from_first(numbers: Mapping[str, float]) -> dict[str, float]:
    """The first process's numbers, to the bit, in all of them; each gives its own under the same names."""
    if not several():
        return dict(numbers)
    bits = np.array(list(numbers.values()), np.float64).view(np.int32)
    return dict(zip(numbers, process_allgather(*bits.tolist())[0].view(np.float64).tolist(), strict=True))


@cache
def _allgather_program() -> tuple[Mesh, Any]:
    """One device of each process, and the program that makes known to all what each has."""
    firsts = {d.process_index: d for d in reversed(jax.devices())}
    mesh = Mesh(np.array([firsts[i] for i in sorted(firsts)]), ("processes",))
    return mesh, jax.jit(lambda x: x, out_shardings=NamedSharding(mesh, P()))


def check_same(what: str, fact: Any) -> None:
    """Raise `InvalidInput` unless all processes have the same of something, whose text is compared."""
    digests = process_allgather(zlib.crc32(repr(fact).encode()) >> 1)[:, 0]
    if (digests != digests[0]).any():
        other = int(np.flatnonzero(digests != digests[0])[0])
        raise InvalidInput(
            f"process {other} and process 0 differ in their {what}: start all {len(digests)} processes with the same "
            "configuration, data and folder"
        )


def check_alone(what: str) -> None:
    """Raise `InvalidInput` if what is asked for cannot be shared by several processes."""
    if several():
        raise InvalidInput(
            f"{what} runs in one process, and there are {jax.process_count()}: start one, or share single runs (fs.run)"
        )


@contextlib.contextmanager
def report_lost_process(last: Callable[[], str]) -> Iterator[None]:
    """Say it plainly where another process of the run is gone; `last` says where the last checkpoint is.

    Raises:
        Unavailable: a meeting failed.
    """
    try:
        yield
    except (jax.errors.JaxRuntimeError, ValueError) as error:  # JAX raises either
        met = not isinstance(error, ValueError) or "Gloo" in str(error)
        if not several() or not met or "RESOURCE_EXHAUSTED" in str(error):
            raise
        why = " ".join(str(error).splitlines()[0].split())
        raise Unavailable(
            f"process {jax.process_index()} of {jax.process_count()} has lost another ({why}): start all of them again "
            f"with resume. {last()}"
        ) from error
