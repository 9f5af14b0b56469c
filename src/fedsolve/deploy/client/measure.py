"""A client's side of an evaluation: a model in, its metrics on the client's own examples out. No Flower here.

Nothing is written: states, examples and buffers are afterwards what they were.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedsolve.core import trees, wire
from fedsolve.core.algorithm import Algorithm
from fedsolve.core.buffers import Memory
from fedsolve.core.errors import InvalidInput, of_type, unknown
from fedsolve.core.oracle import Oracle
from fedsolve.core.types import Params
from fedsolve.core.xla.compiler import compiler_options
from fedsolve.deploy import verbs
from fedsolve.deploy.client.client_state import ClientState
from fedsolve.deploy.client.ledger import PrivacyBudget
from fedsolve.deploy.messages.fact_checks import check_unprotected
from fedsolve.deploy.messages.message import EvaluateReply, EvaluateRequest, PartMetrics
from fedsolve.deploy.messages.sanitize import sanitize
from fedsolve.deploy.messages.signature import compare_signatures, float_type, signature
from fedsolve.deploy.messages.spec import from_spec, method_from_spec
from fedsolve.deploy.oracles.node_oracle import LocalProblem
from fedsolve.engine.compute.cast import cast
from fedsolve.methods.client.solver import LocalSolver


def measure_client(
    request: EvaluateRequest,
    problem: LocalProblem,
    folder: Path,
    trusted: Collection[Any] = (),
    *,
    budget: PrivacyBudget | None = None,
) -> EvaluateReply:
    """What a client finds of the server's model, or of its own where the method gives it one, as it is or after steps.

    Args:
        request: what is asked.
        problem: the client's model and data.
        folder: where its states are.
        trusted: classes and functions of its owner's that a method may consist of.
        budget: what it spends under local differential privacy; where that is bounded it answers nothing.

    Raises:
        InvalidInput: a model that is not the server's, a method that cannot be built or protects what clients send, a
            metric that there is not, a state that is missing, steps that make no finite model.
    """
    dtype = float_type(problem.params)
    with jax.enable_x64(dtype == jnp.float64):
        compare_signatures(signature(problem.params), request.signature, request.client)
        method = method_from_spec(request.method, trusted)
        check_unprotected(method)
        (budget or PrivacyBudget()).check(method)
        for name in request.metrics:
            if name not in problem.metrics:
                raise unknown(f"metric of client {request.client}", sanitize(name, 80), problem.metrics)
        solver = None if request.solver is None else from_spec(request.solver, trusted)
        if solver is not None and not isinstance(solver, LocalSolver):
            raise InvalidInput(f"the server described {of_type(solver)}, not a local solver")
        with _buffers_as_they_were(problem):
            if request.buffers:
                problem.load_buffers(request.buffers)
            model = _model(request, problem, cast(method, dtype), folder)
            if solver is not None:
                model = _tuned(model, request, problem, cast(solver, dtype))
            parts = problem.measure(model, request.metrics)
    in_order = {part: _in_order(metrics, request.metrics) for part, metrics in parts.items()}
    return EvaluateReply(request.experiment, request.round, request.client, request.steps, in_order)


def _in_order(metrics: PartMetrics, names: tuple[str, ...]) -> PartMetrics:
    """The metrics in the order in which they were asked for: their names do not travel back."""
    means, counts = ({name: kind[name] for name in names} for kind in (metrics.means, metrics.counts))
    return PartMetrics(metrics.examples, means, counts)


def _model(request: EvaluateRequest, problem: LocalProblem, algorithm: Algorithm, folder: Path) -> Params:
    """The model that this client is measured with."""
    params = jax.tree.map(jnp.asarray, problem.params)
    model = wire.decode(request.model, params)
    if not algorithm.traits.personal:
        return model
    like: Any = verbs.broadcast_shape(algorithm, params, request.population)
    if request.first_broadcast is not None:
        like = wire.decode(request.first_broadcast, like)
    elif request.last_used_round < 0:
        raise InvalidInput("it lacks the first broadcast, from which a client that never took part begins")
    else:
        like = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), like)
    initial = algorithm.enrol(like, params)
    states = ClientState(folder, request.experiment, request.client)
    return algorithm.own_model(model, states.load(request.last_used_round, initial))


def _tuned(model: Params, request: EvaluateRequest, problem: LocalProblem, solver: LocalSolver) -> Params:
    """The model after local steps from it; buffers are left as the steps leave them."""
    key = jax.random.wrap_key_data(jnp.asarray(request.key, jnp.uint32))
    oracle = problem.begin_steps(key, request.client, float_type(problem.params), request.steps)
    with problem.failing_plainly():
        tuned, buffers = jax.block_until_ready(_compiled_steps()(solver, model, problem.beside, oracle))
    if not trees.all_finite(tuned):
        raise InvalidInput(
            f"the model of client {request.client} is not finite after {request.steps} local steps: lower their rate"
        )
    if problem.beside is not None:
        problem.beside = jax.device_get(buffers)
    return tuned


@cache
def _compiled_steps() -> Callable[..., tuple[Params, Any]]:
    def steps(solver: LocalSolver, model: Params, buffers: Any, oracle: Oracle) -> tuple[Params, Any]:
        if buffers is None:
            return solver.solve(model, oracle, 0).params, None
        memory = Memory(jax.tree.map(jnp.asarray, buffers))
        return solver.solve(model, oracle.remembering(memory), 0).params, memory.read()

    return jax.jit(steps, compiler_options=compiler_options())


@contextmanager
def _buffers_as_they_were(problem: LocalProblem) -> Iterator[None]:
    before = {name: np.array(x) for name, x in problem.buffers.items()}
    try:
        yield
    finally:
        if before:
            problem.load_buffers(before)
