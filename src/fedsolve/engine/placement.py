"""A run placed on its devices: data in the run's type, the program of a round, and the memory that it needs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedsolve.core import trees
from fedsolve.core.algorithm import Algorithm
from fedsolve.core.buffers import with_buffers
from fedsolve.core.sampling import Sampling
from fedsolve.core.types import Params
from fedsolve.engine.checks.methods import Traffic, check_buffers, check_rates, traffic
from fedsolve.engine.compute.casting import cast, in_run, in_type, on_types, run_key, start_key
from fedsolve.engine.compute.clients import PackedClients
from fedsolve.engine.compute.layout import (
    LocalStep,
    Need,
    check_memory,
    chunk_size,
    cohort_size,
    is_on_one_core,
)
from fedsolve.engine.compute.round import client_state_bytes
from fedsolve.engine.compute.sharding import (
    CLIENT_AXIS,
    Program,
    StateSharding,
    group_clients,
    own_devices,
    several,
    works_by_size,
)
from fedsolve.engine.resolve import ResolvedRun
from fedsolve.engine.simulated_time import Timed, schedule_cohorts, with_versions
from fedsolve.engine.streaming import Population, Stream, place_clients


@dataclass(frozen=True, kw_only=True)
class DeviceData:
    """A run's method (with buffers around it where the task has some), model and clients, in the run's type."""

    # A few `clients` lie on the device where the `population` is streamed; `state_bytes` are of a client's own state.

    algorithm: Algorithm
    sampling: Sampling
    params: Params
    key: Any
    state_bytes: int
    clients: PackedClients
    population: Population | None
    remarks: tuple[str, ...]


def put_on_devices(resolved: ResolvedRun) -> DeviceData:
    task, options = resolved.task, resolved.options
    dtype = jnp.dtype(options.dtype)
    # told before its first broadcast: clients that all take as many steps may send less
    algorithm = in_run(resolved.algorithm.with_steps(resolved.work.equal_steps), task, dtype)
    given = task.init(start_key(options.seed))
    params = in_type(task, given, dtype)
    sampling = cast(resolved.sampling, dtype)
    check_rates(algorithm, options.rounds)
    state_bytes = client_state_bytes(algorithm, params, task.data.num_clients)
    clients, population, where = place_clients(resolved, dtype, state_bytes)
    model = clients.first_model(params, task.buffers)
    check_buffers(task, resolved.work, model, clients.examples)
    return DeviceData(
        algorithm=algorithm,
        sampling=sampling,
        params=params,
        key=run_key(options.seed),
        state_bytes=state_bytes,
        clients=clients,
        population=population,
        remarks=(*on_types(given, dtype), *([where] if where else [])),
    )


# Third step: the program of a round, the cohorts that it is given, and the bytes that travel.

LONGEST_CALL = 2**16
"""Rounds of one compiled call at most: its logs have a row for each."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a run's rounds are."""

    # The method has the last broadcasts around it where clients are late; `timed` is what the clock of the run's
    # fleet makes of it, and `stream` reads the clients that come next: each None where there is none.

    algorithm: Algorithm
    sampling: Sampling
    cohort: int
    program: Program
    traffic: Traffic
    timed: Timed | None
    stream: Stream | None

    @property
    def identity(self) -> dict[str, Any]:
        """What of it decides the results, beside what was asked for."""
        late = {} if self.timed is None or not self.timed.depth else {"versions": self.timed.depth}
        return late | {"chunk": self.program.chunk}


def plan(resolved: ResolvedRun, placed: DeviceData) -> Plan:
    options = resolved.options
    # shapes alone: the state itself is made once the program is known
    server = jax.eval_shape(placed.algorithm.init, placed.params)
    sent = traffic(placed.algorithm, resolved.work, placed.clients, placed.key, server, placed.params)
    # a clock needs the bytes of messages, and may replace the cohorts
    timed = _timed(resolved, placed, sent)
    sampling = placed.sampling if timed is None else timed.sampling
    cohort = cohort_size(sampling, resolved.task.data.num_clients)
    program = _program(resolved, placed, sampling, cohort, len(sent.up))
    stream = None
    if placed.population is not None:
        given = (placed.population, program, sampling, placed.key)
        stream = Stream(*given, options.rounds, cohort, placed.state_bytes)
    return Plan(
        algorithm=with_versions(placed.algorithm, timed),
        sampling=sampling,
        cohort=cohort,
        program=program,
        traffic=sent,
        timed=timed,
        stream=stream,
    )


def _timed(resolved: ResolvedRun, placed: DeviceData, sent: Traffic) -> Timed | None:
    # what the clock of the run's fleet makes of it; None without one
    if resolved.fleet is None:
        return None
    method = (placed.algorithm, placed.sampling)
    return schedule_cohorts(resolved.fleet, *method, resolved.options, placed.key, resolved.steps, sent)


def _program(
    resolved: ResolvedRun, placed: DeviceData, sampling: Sampling, cohort: int, variants: int
) -> Program:
    # what is static in a round: how many clients train side by side, in which groups, on which devices
    task, options, work = resolved.task, resolved.options, resolved.work
    devices, counts = resolved.mesh.shape[CLIENT_AXIS], task.data.counts
    model = with_buffers(placed.params, task.buffers)
    step = LocalStep.of(task, model, jnp.dtype(options.dtype), options.local_work)
    side_by_side = partial(chunk_size, options.chunk, step, sampling, len(counts), devices)
    chunk = side_by_side()
    works = works_by_size(work, counts, resolved.steps)
    longest = min(resolved.eval_every, options.rounds, LONGEST_CALL)
    program = Program(
        work,
        chunk,
        longest,
        resolved.mesh,
        variants,
        group_clients(works, counts, cohort / devices, side_by_side),
        on_one_core=is_on_one_core(chunk, len(own_devices(resolved.mesh)), step, placed.state_bytes),
    )
    return replace(program, state_sharding=_state_sharding(program, placed, sampling))


def _state_sharding(program: Program, placed: DeviceData, sampling: Sampling) -> StateSharding | None:
    # which device keeps which client's state, where several share a cohort and none has to have clients by size
    ordered = bool(program.groups) or not (program.work.in_step or program.chunk == 1)
    alone = program.num_shards == 1 or program.is_sharded or several()
    if not placed.state_bytes or placed.population is not None or ordered or alone:
        return None
    clients = placed.clients.population
    ids, _ = jax.eval_shape(lambda key: sampling.draw(key, jnp.int32(0), clients), placed.key)
    always = sampling.expected(clients) == clients
    return StateSharding.of(clients, ids.shape[0], program.num_shards, placed.state_bytes, always)


# Fourth step: the memory that a run needs at least, compared with what is free before anything is compiled.


@dataclass(frozen=True)
class Budget:
    """Memory of a run: what it needs beside the `examples` that are on the first device already, in bytes."""

    # The states of `slots` clients lie on the devices; the remark is '' if it is little.

    needs: tuple[Need, ...]
    examples: int
    slots: int
    remark: str


def budget(placed: DeviceData, plan: Plan) -> Budget:
    stream = plan.stream
    slots = placed.clients.population if stream is None else stream.num_slots
    needed = _needs(placed, plan, slots)
    examples = trees.nbytes(placed.clients.examples) if stream is None else 0
    return Budget(needed, examples, slots, check_memory(needed, examples))


def _needs(placed: DeviceData, plan: Plan, slots: int) -> tuple[Need, ...]:
    # what a run needs beside the clients that lie on its first device
    program, method, stream = plan.program, plan.algorithm, plan.stream
    # CPU devices share one memory
    devices = len(own_devices(program.mesh)) if jax.default_backend() == "cpu" else 1
    parts = program.mesh.size // program.num_shards
    server = trees.nbytes(jax.eval_shape(method.init, placed.params))
    model, chunk = trees.nbytes(placed.params), max([program.chunk, *(g.chunk for g in program.groups)])
    smaller = "a smaller model, or one in parts on several devices (mesh)"
    if trees.dtype_of(placed.params) == np.float64:
        smaller += ", or dtype = 'float32'"
    side_by_side = devices * chunk * 2 * model // parts  # where each stands, and its gradient
    needs = [
        Need("the server's state and the model", devices * (server + model) // parts, smaller),
        Need(f"{chunk:,} clients side by side", side_by_side, "a smaller chunk" if chunk > 1 else smaller),
    ]
    if stream is None:
        rows = devices * slots if program.state_sharding is None else program.state_sharding.rows
        states = rows * placed.state_bytes // parts
        examples, sharing = trees.nbytes(placed.clients.examples), len(own_devices(program.mesh))
        on_others = (devices - 1) * examples
        if sharing > 1:
            on_others += devices * examples // sharing  # in parts for evaluation, of some models
        needs += [
            Need("clients' states", states, "residency = 'stream', or a method that keeps none"),
            Need("further devices' examples", on_others, "residency = 'stream', or devices = 1"),
        ]
    else:
        needs.append(Need("the clients of the next rounds", stream.needed, "fewer clients a round"))
    if method.traits.reduction is not None:
        what = f"the messages of {plan.cohort:,} clients, which {devices:,} devices keep"
        needs.append(Need(what, devices * plan.cohort * min(plan.traffic.up), "fewer clients a round"))
    return tuple(needs)
