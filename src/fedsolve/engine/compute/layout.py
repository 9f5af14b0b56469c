"""How a cohort is laid out: how many clients side by side, on which devices."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from fedsolve.core import trees
from fedsolve.core.errors import InvalidInput, check_integer, is_integer
from fedsolve.core.sampling import Sampling
from fedsolve.core.types import Batch, Params, Scalar
from fedsolve.core.xla.compiler import (
    DEVICES_VARIABLE,
    Program,
    cores,
    equations_of,
    is_number_given,
    programs_inside,
)
from fedsolve.engine.compute.clients import on_device
from fedsolve.engine.compute.sharding import CLIENT_AXIS, MODEL_AXIS, several
from fedsolve.tasks.leaves import with_frozen
from fedsolve.tasks.loss_arguments import call
from fedsolve.tasks.task import Task

# Measured (benchmarks/FINDINGS.md): on a CPU clients side by side win while what one step of a client writes is small;
# beyond, whole operations on one client after another stay in a core's cache.
_CPU_STEP_BYTES = 128 * 2**10
_CPU_BYTES = 256 * 2**20
# beyond, products on all cores take as long as a client on each core, and half the memory
_CPU_MODEL_BYTES = 32 * 2**20
# on a kind that was not measured, clients side by side may need a fourth of the memory
_ACCELERATOR_SHARE = 4
_MEASURED = "accelerators.json"  # beside this file, {kind of device: {"step_bytes", "bytes"}}: `make gpu` measures them
# examples that each further core copies, and those divided for evaluation, may be an eighth of the machine's memory
_COPIED_SHARE = 8
_COPIES = 4  # model, gradient, client update, message
_ONE_CORE_BYTES = 6 * 2**20  # measured as well: of clients side by side


@dataclass(frozen=True)
class LocalStep:
    """What a layout depends on of a client's local step: a loss of a model and of rows, all by their shapes."""

    # `params` train, with buffers where there are some, `frozen` do not; a minibatch has all of a client's examples
    # where `batch_size` is None, and is worked through in `parts`; `largest` are the examples of the largest client.

    loss: Callable[..., Any]
    params: Params
    frozen: Params
    examples: Batch
    batch_size: int | None
    largest: int
    parts: int = 1

    @classmethod
    def of(cls, task: Task, params: Params, dtype: Any, work: Mapping[str, Any]) -> LocalStep:
        # work: as `RunOptions.local_work` has it
        rows, largest = (
            jax.eval_shape(partial(on_device, dtype=dtype), task.data.examples),
            task.data.counts.max(),
        )
        parts = work["batch_size"], int(largest), work["microbatches"]
        return cls(task.loss, params, task.frozen, rows, *parts)

    @property
    def model_bytes(self) -> int:
        return trees.nbytes(self.params)

    def written(self, largest: int | None = None) -> int:
        """`step_bytes` of a minibatch, of a client of so many examples where each step sees all of them."""
        largest = largest or self.largest
        batch = -(-(largest if self.batch_size is None else min(self.batch_size, largest)) // self.parts)
        model = jax.eval_shape(with_frozen, self.params, self.frozen)
        return step_bytes(self.loss, model, self.examples, batch)


def chunk_size(
    chunk: int | None,
    step: LocalStep,
    sampling: Sampling,
    population: int,
    devices: int,
    *,
    largest: int | None = None,
) -> int:
    """Clients trained side by side: as asked, else by what a client's local step writes and the kind of device."""
    # a model of work and no timing, so that the same run has the same layout, hence the same bits, on a busy
    # machine
    # chunk: what the user asks for, None to choose
    # devices: that share a cohort
    # largest: examples of the largest client that is trained so, None for that of all
    cohort = -(-cohort_size(sampling, population) // devices)
    if chunk is not None:
        return min(check_integer("chunk", chunk, 1), cohort)
    model, written = step.model_bytes, step.written(largest)
    most_step, room = _limits()
    if model + written > most_step:
        return 1
    chunks = -(-cohort // max(1, room // (_COPIES * model + written)))
    return -(-cohort // chunks)  # as many in each, since absent clients of the last would be trained too


def is_on_one_core(chunk: int, devices: int, step: LocalStep, state_bytes: int) -> bool:
    """Whether a CPU computes each loop of a device's rounds on one core."""
    # it does where each core is a device. On fewer devices XLA may divide a loop among the cores. Clients side
    # by side that keep no states are faster without that while their models and steps are small: a core then
    # finds in its own cache what it wrote before, and the others are free for other seeds and methods. The bits
    # are the same either way.
    # chunk: clients trained side by side; loops of one alone are divided
    # devices: of this process, whose machine has the cores
    if jax.default_backend() != "cpu":
        return False
    if devices >= cores():
        return True
    if chunk == 1 or state_bytes:
        return False
    return chunk * (_COPIES * step.model_bytes + step.written()) <= _ONE_CORE_BYTES


def _limits() -> tuple[float, int]:
    # bytes beyond which a client's model and step have the device for themselves; bytes of all that train side
    # by side
    if jax.default_backend() == "cpu":
        return _CPU_STEP_BYTES, _CPU_BYTES
    measured = json.loads(files("fedsolve.engine.compute").joinpath(_MEASURED).read_text())
    of_kind = measured.get(jax.devices()[0].device_kind, {})
    return of_kind.get("step_bytes") or math.inf, of_kind.get("bytes") or total_bytes() // _ACCELERATOR_SHARE


def devices_by_layout(
    step: LocalStep, sampling: Sampling, population: int, example_bytes: int
) -> tuple[int, str]:
    """Devices of a run that names none, and what is to be said of it ('' if nothing)."""
    # on a CPU where clients train one after another, each core trains some of them: its share of a cohort is a
    # device's. Like `chunk_size` a model of work and no timing. One device where clients train side by side,
    # where the cohort is one client, and where a copy of the examples for each core is much of the memory that
    # the machine has.
    wanted = min(cores(), cohort_size(sampling, population))
    if several() or jax.default_backend() != "cpu" or wanted == 1:
        return 1, ""
    if wanted * example_bytes > total_bytes() // _COPIED_SHARE:
        return 1, ""
    # a model that is larger by itself spares the trace of its loss
    model = step.model_bytes
    if model > _CPU_MODEL_BYTES:
        return 1, ""
    if model <= _CPU_STEP_BYTES and model + step.written() <= _CPU_STEP_BYTES:
        return 1, ""
    found = len(jax.devices())
    if found >= wanted or is_number_given():
        return min(found, wanted), ""
    return found, (
        f"clients train one after another on {found} of {cores()} cores, since JAX had begun: set "
        f"{DEVICES_VARIABLE}={cores()} before Python starts, or call fs.run before JAX computes anything else"
    )


def step_bytes(loss: Callable[[Params, Batch], Scalar], params: Params, examples: Batch, batch: int) -> int:
    """Bytes of the results of all operations of the loss on a minibatch."""
    # the body of a loop counts once on a CPU, whose cache has to hold what is written before it is read again,
    # and elsewhere as often as it runs, as all is kept in memory for the gradient
    every_pass = jax.default_backend() != "cpu"
    rows = jax.tree.map(lambda a: jax.ShapeDtypeStruct((batch, *a.shape[1:]), a.dtype), examples)
    key = jax.eval_shape(jax.random.key, 0)

    def written(program: Program) -> int:
        total = 0
        for equation in equations_of(program):
            if inside := [*programs_inside(equation)]:
                passes = equation.params.get("length", 1) if every_pass else 1
                total += passes * sum(map(written, inside))
            else:
                shapes: list[Any] = [v.aval for v in equation.outvars]
                total += sum(a.size * a.dtype.itemsize for a in shapes if hasattr(a, "dtype"))
        return total

    return written(jax.make_jaxpr(lambda *given: call(loss, *given[:2], key=given[2])[0])(params, rows, key))


def cohort_size(sampling: Sampling, population: int) -> int:
    """Clients of a round to lay out for: where their number is random, as many as nearly every round has."""
    # two standard deviations of independent clients beyond the mean: a rare larger cohort takes a second chunk,
    # while a chunk of the whole population would train as many absent clients in every round
    size, expected = getattr(sampling, "size", None), sampling.expected(population)
    if size is not None or expected is None:
        return population if size is None else int(size)
    return max(1, min(population, math.ceil(expected + 2 * math.sqrt(expected))))


# Measured (benchmarks, `sweeps`): trials side by side win while all their clients' models stay in a core's cache.
_CPU_TRIAL_BYTES = 640 * 2**10


def batches_at_once() -> int:
    """Batches of trials that a sweep runs at once: one a core on a CPU, else one."""
    return cores() if jax.default_backend() == "cpu" else 1


def parallel_trials(
    trials: int | None, total: int, params: Params, chunk: int, state: Any
) -> tuple[int, str]:
    """Trials of a sweep in one program, and what is to be said of it ('' if nothing)."""
    # as asked, else what is fast and fits: a trial holds its `state` twice and `chunk` clients' models in
    # training
    if trials is not None:
        return min(check_integer("parallel_trials", trials, 1), total), ""
    model = trees.nbytes(params)
    trial = 2 * trees.nbytes(state) + _COPIES * chunk * model
    free = free_bytes() // (2 * batches_at_once())
    fits = max(1, free // trial)
    note = ""
    if fits < total:
        note = (
            f"{total} trials side by side need {total * trial / 1e9:.1f} GB and {free / 1e9:.1f} GB may be used: "
            f"{fits} at a time fit, and they run in parts"
        )
    if jax.default_backend() == "cpu":
        fits = min(fits, max(1, _CPU_TRIAL_BYTES // (chunk * model)))
    return min(fits, total), note


def free_bytes() -> int:
    stats = _stats()
    return stats["bytes_limit"] - stats["bytes_in_use"] if stats else _meminfo("MemAvailable")


def total_bytes() -> int:
    stats = _stats()
    return stats["bytes_limit"] if stats else _meminfo("MemTotal")


def _stats() -> dict[str, int] | None:
    device = jax.devices()[0]
    return device.memory_stats() if device.platform != "cpu" else None


def _meminfo(name: str) -> int:
    try:
        with open("/proc/meminfo") as file:
            return next(1024 * int(line.split()[1]) for line in file if line.startswith(name))
    except (OSError, StopIteration):
        return 4 * 2**30  # not Linux


# What a run needs at least of memory and of disk, compared with what there is before anything is compiled.
#
# Lower bounds from shapes: a run is refused where it cannot fit, with what makes it smaller, in place of being killed.

_LITTLE = 20  # a run that needs less than so small a part of the memory says nothing of it


class Need(NamedTuple):
    """A part of what a run needs: so many bytes at least, and what makes them fewer."""

    what: str
    bytes: int
    remedy: str


def check_memory(needs: Sequence[Need], there: int) -> str:
    """What is to be said of a run's memory, '' if it needs little."""
    # needs: what is not in memory yet
    needed, free = sum(need.bytes for need in needs), free_bytes()
    if needed > free:
        largest = max(needs, key=lambda need: need.bytes)
        raise InvalidInput(
            f"the run needs {size(needed)} of memory at least ({size(largest.bytes)} for {largest.what}), and "
            f"{size(free)} are free: take {largest.remedy}"
        )
    if there + needed < total_bytes() // _LITTLE:
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
    return f"{bytes / 1e9:.1f} GB" if bytes >= 1e9 else f"{bytes / 1e6:.1f} MB"


# The devices of a run.


def mesh_of(devices: int | None, table: Mapping[str, int] | None) -> Mesh:
    """The devices of a run: `devices` in a row, or a table of those that share a cohort and a model."""
    if table is None or table[MODEL_AXIS] == 1:
        return first_devices(devices if table is None else table[CLIENT_AXIS])
    own = len(jax.local_devices())
    if several() and own % table[MODEL_AXIS]:
        raise InvalidInput(
            f"mesh.model = {table[MODEL_AXIS]} and a process has {own} devices: a model must be within one process, "
            "which evaluates and saves it; give each a multiple of as many devices"
        )
    row = first_devices(table[CLIENT_AXIS] * table[MODEL_AXIS])
    return Mesh(row.devices.reshape(table[CLIENT_AXIS], table[MODEL_AXIS]), (CLIENT_AXIS, MODEL_AXIS))


def first_devices(devices: int | None) -> Mesh:
    """The first `devices` devices in a row: one where none are asked for, and all that several processes have."""
    available = jax.devices()
    if several():
        # a process none of whose devices is in the mesh would have no part in the run's programs
        if devices not in (None, len(available)):
            raise InvalidInput(
                f"devices = {devices}: {jax.process_count()} processes share a run on all of their {len(available)} "
                "devices; leave it out"
            )
        return Mesh(np.array(available), (CLIENT_AXIS,))
    devices = 1 if devices is None else devices
    if not is_integer(devices) or not 1 <= devices <= len(available):
        remedy = ""
        if jax.default_backend() == "cpu" and len(available) < cores():
            flag = f"--xla_force_host_platform_device_count={cores()}"
            remedy = f"; to use the {cores()} cores of this CPU as devices start Python with XLA_FLAGS={flag}"
        raise InvalidInput(
            f"devices = {devices} must be between 1 and {len(available)}, the devices found{remedy}"
        )
    return Mesh(np.array(available[:devices]), (CLIENT_AXIS,))
