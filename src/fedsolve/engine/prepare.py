"""Making a run ready: its arguments checked, data put on the device, the program chosen."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from fedsolve.core import trees
from fedsolve.core.algorithm import Algorithm, name_of
from fedsolve.core.buffers import with_buffers
from fedsolve.core.errors import InvalidInput, shown
from fedsolve.core.fleets.fleet import Fleet
from fedsolve.core.fleets.profiles import PROFILES
from fedsolve.core.sampling import Sampling, Uniform
from fedsolve.core.xla.compiler import make_room
from fedsolve.engine.checks.buffer_checks import check_buffers
from fedsolve.engine.checks.method_checks import check_method
from fedsolve.engine.checks.rates import check_rates, on_standing_still
from fedsolve.engine.checks.sizes import check_memory, needs
from fedsolve.engine.compute.cast import cast
from fedsolve.engine.compute.clients import LocalWork, PackedClients, local_work, on_device, pack
from fedsolve.engine.compute.groups import group_clients, works_by_size
from fedsolve.engine.compute.keys import in_type, on_types, run_key, start_key, start_params
from fedsolve.engine.compute.layout import chunk_size, cohort_size, mesh_of
from fedsolve.engine.compute.processes import everywhere
from fedsolve.engine.compute.program import AXIS, MODEL, Program
from fedsolve.engine.compute.round import client_state_bytes, start
from fedsolve.engine.evaluation.eval_sets import judging
from fedsolve.engine.options import RunOptions
from fedsolve.engine.prepared_run import PreparedRun
from fedsolve.engine.records.identity import describe
from fedsolve.engine.records.message_sizes import traffic
from fedsolve.engine.simulated_time import fleet_of, on_the_clock
from fedsolve.engine.streaming.placement import is_streamed
from fedsolve.engine.streaming.population import Population, first_clients
from fedsolve.engine.streaming.stream import Stream
from fedsolve.tasks.task import Task

_OWN = (
    "clients of {} have models of their own: metrics of training examples, and of validation examples of theirs, are "
    "of these; a test set and unseen clients are measured with the server's model"
)
_NOBODY_LATE = "no systems were given: nobody is late, and a round of {} is synchronous, of all whom it draws"
LONGEST_CALL = 2**16
"""Rounds of one compiled call at most: its logs have a row for each."""


def check_all_begin(algorithms: Iterable[Algorithm], task: Task, options: RunOptions) -> None:
    """Raise `InvalidInput` unless each method can begin on the task: before the first of several is run."""
    sampling, dtype = choose_sampling(options, task), jnp.dtype(options.dtype)
    with jax.enable_x64(options.dtype == "float64"):
        params = start_params(task, options.seed, dtype)
        for algorithm in algorithms:
            check_method(algorithm)
            algorithm.check(sampling, task.data.num_clients)
            jax.eval_shape(task.around(cast(algorithm, dtype)).init, params)


def prepare(algorithm: Algorithm, task: Task, options: RunOptions, label: str | None = None) -> PreparedRun:
    """A run made ready; call it with 64-bit types enabled where the run's type needs them.

    Raises:
        InvalidInput: a method, a task or options that cannot be used, or that do not fit each other.
    """
    check_method(algorithm)
    make_room()
    sampling, mesh = choose_sampling(options, task), mesh_of(options.devices, options.mesh)
    sharers = mesh.shape[AXIS]
    algorithm.check(sampling, task.data.num_clients)
    options = replace(options.with_defaults(task), devices=mesh.size, mesh=None)
    dtype, batch = jnp.dtype(options.dtype), _batch_size(options)
    counts = task.data.counts
    local: Any = {"batch_size": batch, "epochs": options.epochs, "local_steps": options.local_steps}
    work, steps = local_work(counts, task.loss, **local)
    work = replace(work, half=options.matmul_dtype is not None)
    label = label or name_of(algorithm)
    fleet = (
        None if options.systems is None else fleet_of(options.systems, task.data.num_clients, options.seed)
    )
    identity = _identity(algorithm, task, sampling, options, work, fleet)
    algorithm = task.around(algorithm)
    key, given = run_key(options.seed), task.init(start_key(options.seed))
    params = in_type(task, given, dtype)
    algorithm, sampling = cast(algorithm, dtype), cast(sampling, dtype)
    check_rates(algorithm, options.rounds)
    own = client_state_bytes(algorithm, params, len(counts))
    packed, everyone, where = _clients(task, options, dtype, local, steps, mesh, own)
    if MODEL in mesh.shape:
        identity["mesh"] = describe(dict(mesh.shape))
    model = with_buffers(params, task.buffers)
    check_buffers(task, work, packed.model(model), packed.examples)
    judged, on_judging = judging(algorithm, task, params, packed, everyone, dtype, own)
    timed = None
    if fleet is not None:
        sent = traffic(algorithm, work, packed, key, algorithm.init(params), params)
        timed = on_the_clock(fleet, algorithm, sampling, options, key, steps, sent)
        sampling = timed.sampling
        if timed.depth:
            algorithm, identity = algorithm.with_versions(timed.depth), identity | {"versions": timed.depth}
    side_by_side = partial(
        chunk_size,
        options.chunk, task, model, dtype, batch_size=batch, sampling=sampling, devices=sharers,
    )  # fmt: skip
    chunk = side_by_side()
    seats = cohort_size(sampling, len(counts))
    groups = group_clients(works_by_size(work, counts, steps), counts, seats / sharers, side_by_side)
    every = options.eval_every or options.rounds
    program = Program(work, chunk, min(every, options.rounds, LONGEST_CALL), mesh, groups=groups)
    stream = None
    if everyone is not None:
        stream = Stream(everyone, program, sampling, key, options.rounds, seats, own)
    server = jax.eval_shape(algorithm.init, params)
    sent = traffic(algorithm, work, packed, key, server, params) if timed is None else timed.sent
    program = replace(program, variants=len(sent.up))
    places = len(counts) if stream is None else stream.places
    kept = None if algorithm.reduction is None else min(sent.up)
    room = needs(program, packed, stream, trees.nbytes(server), places * own, params, seats, kept)
    sizes = check_memory(room, trees.nbytes(packed.examples) if stream is None else 0)
    state = start(algorithm, params, len(counts), mesh, places)
    return PreparedRun(
        algorithm=algorithm,
        sampling=sampling,
        task=task,
        label=label,
        rounds=options.rounds,
        eval_every=every,
        program=program,
        packed=packed,
        shared=packed if mesh.size == 1 or stream is not None else everywhere(packed, mesh),
        stream=stream,
        params=params,
        state=state,
        key=key,
        traffic=sent,
        timed=timed,
        identity=identity | {"chunk": chunk},
        remarks=(
            *task.notes,
            *on_types(given, dtype),
            *([where] if where else []),
            *([sizes] if sizes else []),
            *on_judging,
            *([_OWN.format(name_of(algorithm))] if algorithm.personal else []),
            *_on_systems(algorithm, options),
            *on_standing_still(algorithm, params, int(steps.max()), options.rounds),
        ),
        **vars(judged),
    )


def _clients(
    task: Task, options: RunOptions, dtype: Any, local: Any, steps: np.ndarray, mesh: Mesh, own: int
) -> tuple[PackedClients, Population | None, str]:
    """Clients on the device, the population where only some lie there, and what is to be said of it."""
    streamed, where = is_streamed(options, task.data, dtype, own)
    frozen = on_device(task.frozen, dtype)
    if not streamed:
        return pack(task.data, task.loss, dtype, **local, frozen=frozen)[0], None, where
    if MODEL in mesh.shape:
        raise InvalidInput(
            "mesh: models that lie in parts train clients on the device: give residency = 'device'"
        )
    everyone = Population(task.data, steps, dtype, frozen, mesh)
    return first_clients(everyone), everyone, where


def _on_systems(algorithm: Algorithm, options: RunOptions) -> Iterator[str]:
    """What is to be said of the fleet that a run is on, or is not on."""
    if options.systems is None and algorithm.buffer:
        yield _NOBODY_LATE.format(name_of(algorithm))
    if isinstance(options.systems, str):
        yield f"time is on the clock of the fleet {options.systems} ({PROFILES[options.systems].source})"


def choose_sampling(options: RunOptions, task: Task) -> Sampling:
    """Who takes part: as given, else a uniform cohort of a size, else all clients.

    Raises:
        InvalidInput: no task, no sampling, one that does not fit the task's clients, or one with which none
            takes part in any round.
    """
    if not isinstance(task, Task):
        raise InvalidInput(f"task must be one such as fs.tasks.digits(), not {shown(task)}")
    sampling, population = options.sampling, task.data.num_clients
    if sampling is not None and not isinstance(sampling, Sampling):
        raise InvalidInput(f"sampling = {shown(sampling)} must be one such as fs.sampling.Bernoulli(0.1)")
    if sampling is None:
        size = options.clients_per_round
        sampling = Uniform(population if size is None else size)
    sampling.check(population)
    sampling.check_rounds(options.rounds)
    return sampling


def _batch_size(options: RunOptions) -> int | None:
    """Examples of a local step, None for all of a client's."""
    return options.batch_size if isinstance(options.batch_size, int) else None


def _identity(
    algorithm: Algorithm,
    task: Task,
    sampling: Sampling,
    options: RunOptions,
    work: LocalWork,
    fleet: Fleet | None,
) -> dict[str, Any]:
    """What decides the results and can be read in a record."""
    clock = {"quorum": options.quorum, "deadline": options.deadline, "systems": describe(fleet)}
    return {
        "task": task.name,
        "clients": task.data.num_clients,
        "examples": task.data.num_examples,
        "algorithm": describe(algorithm),
        "sampling": describe(sampling),
        "seed": options.seed,
        "batch_size": work.batch_size,
        "epochs": options.epochs,
        "local_steps": options.local_steps,
        "dtype": options.dtype,
        "devices": options.devices,
        **({"matmul_dtype": options.matmul_dtype} if work.half else {}),  # older records have no such line
        **({} if fleet is None else clock),
    }
