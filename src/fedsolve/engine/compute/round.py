"""Rounds as one compiled program: draw a cohort, train its clients in chunks, reduce, update; scanned."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array

from fedsolve.core import trees
from fedsolve.core.algorithm import Algorithm, Cohort
from fedsolve.core.errors import InvalidInput
from fedsolve.core.sampling import Sampling
from fedsolve.core.types import Params, Scalar, Traced, module, replace, reports
from fedsolve.core.xla.compiler import compiler_options, lazy
from fedsolve.engine.compute.clients import PackedClients
from fedsolve.engine.compute.layout import free_bytes
from fedsolve.engine.compute.sharding import (
    CLIENT_AXIS,
    MODEL_AXIS,
    Program,
    StateSharding,
    own_devices,
    put_sharded,
    replicate,
)
from fedsolve.engine.compute.train import train_cohort

TAG_SERVER = 0x5E4E0000  # beyond all counters at which cohorts are drawn from the round's key
SENT = "sent"
"""The column of messages sent by variant, shape (variants,) a round; the record turns it into bytes."""


@module
class RunState:
    """Everything that a run carries from round to round."""

    # `clients`: all clients' own states, first axis (clients,); `previous`: the exported model of the round before,
    # for the mean of the last two iterates; `failed`: the round in which no client returned a finite update, -1 if
    # none.

    server: Any
    clients: Any
    previous: Params
    round: Traced
    failed: Traced


def start(
    algorithm: Algorithm, params: Params, population: int, program: Program, slots: int | None = None
) -> RunState:
    """The state before the first round, on all devices; every client is enrolled, `slots` of them on the devices."""
    server, one = _first(algorithm, params, population)
    mesh, state_sharding = program.mesh, program.state_sharding
    # rows of clients' states: of the devices' blocks and spare rows, of all clients, or of a window of them
    slots = state_sharding.rows if state_sharding else population if slots is None else slots
    _check_room(trees.nbytes(one), slots, 1 if state_sharding else len(own_devices(mesh)))
    state = _enrolled(algorithm, server, one, slots)
    # buffers of its own, since they are donated; the clients' are new already, and may be most of the memory
    rest = jax.device_put(replace(state, clients=()), may_alias=False)
    return shard_state(replace(rest, clients=state.clients), mesh, state_sharding)


def shard_state(state: RunState, mesh: Mesh, state_sharding: StateSharding | None = None) -> RunState:
    """A state on all devices of a mesh; where that has an axis for the model, each array in parts along it."""
    # the dimension that is divided is the longest of those that can be, never that of clients; arrays without
    # one, and all where there is no such axis, lie on every device
    # state_sharding: which device keeps which client's state; `state` has them by client, or as rows of devices
    if state_sharding is not None:
        clients = put_sharded(
            state_sharding.by_device(state.clients), lambda x: NamedSharding(mesh, P(CLIENT_AXIS))
        )
        return replace(replicate(replace(state, clients=()), mesh), clients=clients)
    if MODEL_AXIS not in mesh.shape:
        return replicate(state, mesh)
    parts = mesh.shape[MODEL_AXIS]

    def spec(x: Array, first: int) -> P:
        dims = [d for d in range(first, x.ndim) if x.shape[d] % parts == 0 and x.shape[d]]
        if not dims:
            return P()
        longest = max(dims, key=lambda d: x.shape[d])
        return P(*(MODEL_AXIS if d == longest else None for d in range(x.ndim)))

    def put(tree: Any, first: int = 0) -> Any:
        return put_sharded(tree, lambda x: NamedSharding(mesh, spec(x, first)))

    return replace(put(replace(state, clients=())), clients=put(state.clients, 1))


def client_state_bytes(algorithm: Algorithm, params: Params, population: int) -> int:
    return trees.nbytes(jax.eval_shape(lambda p: _first(algorithm, p, population)[1], params))


def initial(algorithm: Algorithm, params: Params, population: int) -> RunState:
    """Initial state of server and clients, without placement."""
    return _enrolled(algorithm, *_first(algorithm, params, population), population)


def _first(algorithm: Algorithm, params: Params, population: int) -> tuple[Any, Any]:
    server = algorithm.init(params)
    first = Cohort(jnp.int32(0), jnp.int32(population), population)
    return server, algorithm.enrol(algorithm.broadcast(server, first), params)


def _check_room(state: int, population: int, devices: int) -> None:
    # refuse states of so many bytes a client that no memory holds, before the system ends the process for them
    copies = devices if jax.default_backend() == "cpu" else 1  # CPU devices share one memory
    needed, free = copies * state * population, free_bytes()
    if needed > free:
        raise InvalidInput(
            f"the states of {population:,} clients need {needed / 1e9:.1f} GB ({state:,} bytes each), and "
            f"{free / 1e9:.1f} GB are free: keep them on "
            "disk (residency = 'stream'), take a method that keeps none, a smaller model, fewer clients"
            + (", or devices = 1" if copies > 1 else "")
        )


def _enrolled(algorithm: Algorithm, server: Any, one: Any, population: int) -> RunState:
    clients = jax.tree.map(lambda x: jnp.broadcast_to(x, (population, *jnp.shape(x))), one)
    return RunState(server, clients, algorithm.export(server), jnp.int32(0), jnp.int32(-1))


def compiled_advance(on_one_core: bool) -> Any:
    """`simulate` on all devices, the compiled function of all such programs; it is made when the backend is known."""
    return _ADVANCE[on_one_core]()


def _advance(on_one_core: bool) -> Any:
    return jax.jit(
        partial(on_all_devices, simulate),
        static_argnums=0,
        donate_argnums=5,  # the state: clients' states are in memory once
        compiler_options=compiler_options(on_one_core),
    )


_ADVANCE = {on_one_core: lazy(partial(_advance, on_one_core)) for on_one_core in (False, True)}


def on_all_devices(body: Callable[..., Any], program: Program, *arguments: Any) -> Any:
    """`simulate` or `one_round` on every device of the program's mesh."""
    specs: list[Any] = [P()] * len(arguments)
    specs[2], specs[4] = _client_specs(arguments[2]), _state_specs(program, arguments[4])
    # within a device's share of a cohort the compiler splits what is done with a model that lies in parts
    share = jax.shard_map(
        partial(body, program),
        mesh=program.mesh,
        in_specs=tuple(specs),
        out_specs=(specs[4], P()),
        axis_names={CLIENT_AXIS},
        check_vma=False,
    )
    return share(*arguments)


def _client_specs(packed: PackedClients) -> Any:
    # how clients lie on the devices: all on each, or of a window on each the examples of those that it trains
    if packed.window is None:
        return P()
    whole = jax.tree.map(lambda _: P(), packed)
    return replace(
        whole, examples=jax.tree.map(lambda _: P(CLIENT_AXIS), packed.examples), offsets=P(CLIENT_AXIS)
    )


def _state_specs(program: Program, state: RunState) -> Any:
    # how a state lies on the devices: whole on each, but for clients' states that are sharded
    if program.state_sharding is None:
        return P()
    whole = jax.tree.map(lambda _: P(), replace(state, clients=()))
    return replace(whole, clients=jax.tree.map(lambda _: P(CLIENT_AXIS), state.clients))


def simulate(
    program: Program,
    algorithm: Algorithm,
    sampling: Sampling,
    packed: PackedClients,
    key: Array,
    state: RunState,
    rounds: Scalar,
) -> tuple[RunState, dict[str, Array]]:
    """`rounds` rounds (at most `program.capacity`) on one device, with logs; stops if all clients fail."""
    one = partial(one_round, program, algorithm, sampling, packed, key)
    # the logs' shapes are those of one entry, with an axis (capacity,) for rounds: rows after `rounds` stay zeros
    entry = log_entry(state.server, 0, 0, jnp.zeros(program.variants, jnp.int32))
    logs = jax.tree.map(lambda x: jnp.zeros((program.capacity, *x.shape), x.dtype), entry)
    first = state.round

    def body(carry: tuple[RunState, Any]) -> tuple[RunState, Any]:
        state, logs = carry
        row = state.round - first
        state, entry = one(state)
        return state, jax.tree.map(lambda log, x: log.at[row].set(x), logs, entry)

    def unfinished(carry: tuple[RunState, Any]) -> Traced:
        state, _ = carry
        return (state.round - first < rounds) & (state.failed < 0)

    # a loop with a traced number of rounds: calls of every length share one program
    return lax.while_loop(unfinished, body, (state, logs))


def one_round(
    program: Program,
    algorithm: Algorithm,
    sampling: Sampling,
    packed: PackedClients,
    key: Array,
    state: RunState,
) -> tuple[RunState, dict[str, Array]]:
    """One round: all randomness follows from the run's key and the round's number."""
    population = packed.population
    # keys follow from the round's number, not from the rounds before: a resumed run draws the same
    key = jax.random.fold_in(key, state.round)
    # (capacity,) both: places among the packed clients, and whether somebody is there
    slots, present = packed.cohort(sampling, key, state.round)
    drawn = jnp.sum(present)
    own = jax.random.fold_in(key, TAG_SERVER)
    started = sampling.started(state.round)
    broadcast = algorithm.broadcast(state.server, Cohort(state.round, drawn, population, own, started))
    # `totals` are of all devices: what follows is computed on each of them, with the same bits
    totals, clients = train_cohort(program, algorithm, packed, key, broadcast, state.clients, slots, present)
    size = totals.size
    # the server counts the clients whose results are used, which the broadcast could not know
    cohort = Cohort(state.round, size, population, own, started)
    server = algorithm.update(state.server, totals.reduce(), cohort)
    some = size > 0
    if not (sampling.never_empty or algorithm.traits.updates_when_empty):  # nobody there leaves all as it was
        server = trees.where(some, server, state.server)
    # an empty round is no failure; one whose clients all gave what is not finite is
    failed = jnp.where((drawn > 0) & ~some, state.round, state.failed)
    failed = failed.astype(jnp.int32)
    new = RunState(server, clients, algorithm.export(state.server), state.round + 1, failed)
    return new, log_entry(new.server, drawn, drawn - size, totals.sent)


def log_entry(server: Any, participants: Scalar, dropped: Scalar, sent: Array) -> dict[str, Array]:
    """The log of one round: who took part, who was left out, what was sent, and what the server reports."""
    counts = {
        "participants": jnp.asarray(participants, jnp.int32),
        "dropped": jnp.asarray(dropped, jnp.int32),
        SENT: sent,
    }
    return counts | {name: value for name, (value, _) in reports(server).items()}
