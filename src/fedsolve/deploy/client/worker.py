"""A client's side of a round: an order in, its own data and state, a reply out. No Flower here."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from fedsolve.core import trees, wire
from fedsolve.core.algorithm import Algorithm
from fedsolve.core.errors import InvalidInput
from fedsolve.core.oracle import Oracle
from fedsolve.core.xla.compiler import compiler_options
from fedsolve.deploy import verbs
from fedsolve.deploy.client.client_state import ClientState, StateLost, restarted_state
from fedsolve.deploy.client.ledger import Ledger, PrivacyBudget
from fedsolve.deploy.messages.fact_checks import check_buffers
from fedsolve.deploy.messages.message import TrainReply, TrainRequest
from fedsolve.deploy.messages.signature import compare_signatures, float_type, signature, signature_digest
from fedsolve.deploy.messages.spec import method_from_spec
from fedsolve.deploy.oracles.node_oracle import LocalProblem, check_needs
from fedsolve.deploy.secret_keys import secret_key
from fedsolve.engine.compute.cast import cast
from fedsolve.methods.wrappers.buffers import BesideBroadcast, KeepsBuffers


def train_client(
    request: TrainRequest,
    problem: LocalProblem,
    folder: Path,
    trusted: Collection[Any] = (),
    *,
    budget: PrivacyBudget | None = None,
    log: Callable[[str], None] = lambda line: None,
) -> TrainReply:
    """One client's part of a round: local work from the server's model and the client's own state.

    Args:
        request: what is asked.
        problem: the client's model and data.
        folder: where its states and its ledger are.
        trusted: classes and functions of its owner's that a method may consist of.
        budget: the most that it spends under local differential privacy; by default as much as it is asked.
        log: told in one line what its owner should know.

    Raises:
        InvalidInput: a model that is not the server's, a method that cannot be built or needs
            what the client cannot give, a state that is missing, a bound that is reached, or results that are not
            finite.
    """
    budget = budget or PrivacyBudget()
    dtype = float_type(problem.params)
    with jax.enable_x64(dtype == jnp.float64):
        compare_signatures(signature(problem.params), request.signature, request.client)
        method = method_from_spec(request.method, trusted)
        check_needs(method, problem)
        check_buffers(method, problem.buffers)
        budget.check(method)
        reply = partial(_reply, request, problem, cast(method, dtype), folder, log)
        if method.traits.privacy != "local":
            return reply()
        return Ledger(folder, request.client, budget).send(request, method.traits.gdp_mu, reply, log)


def _reply(
    request: TrainRequest,
    problem: LocalProblem,
    algorithm: Algorithm,
    folder: Path,
    log: Callable[[str], None],
) -> TrainReply:
    params = jax.tree.map(jnp.asarray, problem.params)
    like = verbs.broadcast_shape(algorithm, params, request.population)
    broadcast = wire.decode(request.broadcast, like)
    first = broadcast if request.first_broadcast is None else wire.decode(request.first_broadcast, like)
    initial = algorithm.enrol(first, params)
    is_stateful = bool(jax.tree.leaves(initial))
    states = ClientState(folder, request.experiment, request.client)
    before = initial
    if is_stateful:
        before = _state_before(
            request, states, initial, partial(restarted_state, algorithm, broadcast, params), log
        )
    if request.buffers:
        problem.load_buffers(request.buffers)
    message, after, is_finite = _train(problem, algorithm, broadcast, before, request)
    if not is_finite:
        raise InvalidInput(f"the update of client {request.client} is not finite: lower the client's rate")
    if is_stateful:
        states.save(request.round, after, request.last_used_round)
    return TrainReply(
        request.experiment,
        request.round,
        request.client,
        signature_digest(message),
        int(problem.num_examples) if algorithm.traits.weighting == "examples" else 1,
        wire.encode(message),
        dict(problem.buffers),
    )


def _state_before(
    request: TrainRequest,
    states: ClientState,
    initial: Any,
    restart: Callable[[StateLost, Callable[[str], None]], Any],
    log: Callable[[str], None],
) -> Any:
    """The state that an order goes on from: the client's own, or where that is lost what may take its place."""
    try:
        return states.load(request.last_used_round, initial)
    except StateLost as lost:
        if request.tracked_state is None:
            return restart(lost, log)
        log(f"{lost}: it goes on from the state that the server tracks")
        return wire.decode(request.tracked_state, initial)


def _train(
    problem: LocalProblem, algorithm: Algorithm, broadcast: Any, before: Any, request: TrainRequest
) -> tuple[Any, Any, Any]:
    """Local work as one compiled call, and whether all of it is finite; a method's noise is this machine's own."""
    key = jax.random.wrap_key_data(jnp.asarray(request.key, jnp.uint32))
    oracle = problem.begin(key, request.client, float_type(problem.params), secret_key())
    if problem.beside is None:
        with problem.failing_plainly():
            return jax.block_until_ready(_compiled_train()(algorithm, broadcast, before, oracle))
    around, down = KeepsBuffers(algorithm, problem.beside), BesideBroadcast(broadcast, problem.beside)
    message, after, is_finite = _compiled_train()(around, down, before, oracle)
    problem.beside = jax.device_get(message.buffers)
    return message.inner, after, is_finite


@cache
def _compiled_train() -> Any:
    def train(algorithm: Algorithm, broadcast: Any, before: Any, oracle: Oracle) -> tuple[Any, Any, Any]:
        message, after = algorithm.train(broadcast, before, oracle)
        return message, after, trees.all_finite((message, after))

    return jax.jit(train, compiler_options=compiler_options())
