"""Third step: the program of a round, the cohorts that it is given, and the bytes that travel."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from fedsolve.core.algorithm import Algorithm
from fedsolve.core.buffers import with_buffers
from fedsolve.core.sampling import Sampling
from fedsolve.engine.compute.groups import group_clients, works_by_size
from fedsolve.engine.compute.layout import chunk_size, cohort_size, is_on_one_core
from fedsolve.engine.compute.processes import own_devices, several
from fedsolve.engine.compute.program import CLIENT_AXIS, Program
from fedsolve.engine.compute.sharding.state_sharding import StateSharding
from fedsolve.engine.preparation.placed import Placed
from fedsolve.engine.preparation.requested import Requested
from fedsolve.engine.records.message_sizes import Traffic, traffic
from fedsolve.engine.simulated_time import Timed, schedule_cohorts, with_versions
from fedsolve.engine.streaming.stream import Stream

LONGEST_CALL = 2**16
"""Rounds of one compiled call at most: its logs have a row for each."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a run's rounds are.

    Attributes:
        algorithm: the method, with the last broadcasts around it where clients are late.
        sampling: who counts in each round.
        cohort: clients of a round.
        program: what is static in it.
        traffic: bytes of a broadcast and of a message.
        timed: what the clock of the run's fleet makes of it; None without one.
        stream: reads the clients that come next; None if all are on the device.
    """

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


def plan(requested: Requested, placed: Placed) -> Plan:
    """The rounds of a run.

    Raises:
        InvalidInput: methods of an algorithm that do not fit each other, a clock on which it cannot run, a chunk below
            1, cohorts that no memory holds.
    """
    options = requested.options
    server = jax.eval_shape(placed.algorithm.init, placed.params)
    sent = traffic(placed.algorithm, requested.work, placed.clients, placed.key, server, placed.params)
    timed = _timed(requested, placed, sent)
    sampling = placed.sampling if timed is None else timed.sampling
    cohort = cohort_size(sampling, requested.task.data.num_clients)
    program = _program(requested, placed, sampling, cohort, len(sent.up))
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


def _timed(requested: Requested, placed: Placed, sent: Traffic) -> Timed | None:
    """What the clock of the run's fleet makes of it; None without one."""
    if requested.fleet is None:
        return None
    method = (placed.algorithm, placed.sampling)
    return schedule_cohorts(requested.fleet, *method, requested.options, placed.key, requested.steps, sent)


def _program(requested: Requested, placed: Placed, sampling: Sampling, cohort: int, variants: int) -> Program:
    """What is static in a round: how many clients train side by side, in which groups, on which devices."""
    task, options, work = requested.task, requested.options, requested.work
    devices, counts = requested.mesh.shape[CLIENT_AXIS], task.data.counts
    batch_size = options.local_work["batch_size"]
    model = (task, with_buffers(placed.params, task.buffers), jnp.dtype(options.dtype))
    side_by_side = partial(
        chunk_size, options.chunk, *model, batch_size=batch_size, sampling=sampling, devices=devices
    )
    chunk = side_by_side()
    works = works_by_size(work, counts, requested.steps)
    longest = min(requested.eval_every, options.rounds, LONGEST_CALL)
    program = Program(
        work,
        chunk,
        longest,
        requested.mesh,
        variants,
        group_clients(works, counts, cohort / devices, side_by_side),
        on_one_core=is_on_one_core(
            chunk,
            len(own_devices(requested.mesh)),
            *model,
            batch_size=batch_size,
            state_bytes=placed.state_bytes,
        ),
    )
    return replace(program, state_sharding=_state_sharding(program, placed, sampling))


def _state_sharding(program: Program, placed: Placed, sampling: Sampling) -> StateSharding | None:
    """Which device keeps which client's state, where several share a cohort and none has to have clients by size."""
    ordered = bool(program.groups) or not (program.work.in_step or program.chunk == 1)
    alone = program.num_shards == 1 or program.is_sharded or several()
    if not placed.state_bytes or placed.population is not None or ordered or alone:
        return None
    clients = placed.clients.population
    ids, _ = jax.eval_shape(lambda key: sampling.draw(key, jnp.int32(0), clients), placed.key)
    always = sampling.expected(clients) == clients
    return StateSharding.of(clients, ids.shape[0], program.num_shards, placed.state_bytes, always)
