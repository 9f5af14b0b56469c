"""A client's local work as one compiled call: that of a round, and steps of a solver before a model is measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp

from fedsolve.core import trees
from fedsolve.core.buffers import Memory
from fedsolve.core.errors import InvalidInput
from fedsolve.core.loss_checks import why_not_finite
from fedsolve.core.oracle import WrappedOracle
from fedsolve.core.xla.compiler import compiler_options
from fedsolve.deploy.messages.message import EvaluateRequest, TrainRequest
from fedsolve.deploy.messages.signature import float_type
from fedsolve.deploy.oracles.node_oracle import LocalProblem
from fedsolve.deploy.secret_keys import secret_key
from fedsolve.methods.wrappers.buffers import BesideBroadcast, KeepsBuffers


def train(
    problem: LocalProblem, algorithm: Any, broadcast: Any, before: Any, request: TrainRequest
) -> tuple[Any, Any]:
    """The message and the next state of a client; a method's noise is this machine's own.

    Raises:
        InvalidInput: they are not finite.
    """
    key = jax.random.wrap_key_data(jnp.asarray(request.key, jnp.uint32))
    oracle = problem.begin(key, request.client, float_type(problem.params), secret_key())
    algorithm.with_steps(int(oracle.steps))  # a method that was told another number refuses
    around, down = algorithm, broadcast
    if problem.beside is not None:
        around, down = KeepsBuffers(algorithm, problem.beside), BesideBroadcast(broadcast, problem.beside)
    with problem.failing_plainly():
        message, after, is_finite = jax.block_until_ready(_compiled(_train)(around, down, before, oracle))
        if not is_finite:
            why = _at_start(around, down, before, oracle, problem.beside)
            remedy = why or "lower the client's rate"
            raise InvalidInput(f"the update of client {request.client} is not finite: {remedy}")
    if problem.beside is not None:
        problem.beside, message = jax.device_get(message.buffers), message.inner
    return message, after


def tune(problem: LocalProblem, solver: Any, model: Any, request: EvaluateRequest) -> Any:
    """The model after local steps from it; buffers are left as the steps leave them.

    Raises:
        InvalidInput: it is not finite.
    """
    key = jax.random.wrap_key_data(jnp.asarray(request.key, jnp.uint32))
    oracle = problem.begin_steps(key, request.client, float_type(problem.params), request.steps)
    with problem.failing_plainly():
        tuned, buffers = jax.block_until_ready(_compiled(_steps)(solver, model, problem.beside, oracle))
    if not trees.all_finite(tuned):
        raise InvalidInput(
            f"the model of client {request.client} is not finite after {request.steps} local steps: lower their rate"
        )
    if problem.beside is not None:
        problem.beside = jax.device_get(buffers)
    return tuned


@cache
def _compiled(function: Callable[..., Any]) -> Any:
    return jax.jit(function, compiler_options=compiler_options())


@dataclass(frozen=True)
class _WithoutNoise(WrappedOracle):
    """An oracle whose method adds no noise in the program: its share is added afterwards, outside."""

    key = None  # pyright: ignore[reportIncompatibleVariableOverride, reportAssignmentType]

    def change(self, params: Any, gradient: Any) -> Any:
        return gradient


class _Began(Exception):
    """Raised by the first gradient that local work asks for: at which model, of which step."""


@dataclass(frozen=True)
class _Beginning(WrappedOracle):
    """An oracle that ends local work where it begins."""

    def __call__(self, params: Any, step: Any) -> Any:
        raise _Began(params, step)

    def remembering(self, memory: Any) -> _Beginning:
        return self


def _at_start(algorithm: Any, broadcast: Any, before: Any, oracle: Any, buffers: Any) -> str | None:
    """What is not finite at the model that local work begins from; None where all is, or it begins otherwise."""
    try:
        with jax.disable_jit():  # the model is then an array, also inside a loop
            algorithm.train(broadcast, before, _Beginning(oracle))
    except _Began as began:
        loss, gradient = _compiled(_first)(oracle, buffers, *began.args)
        return why_not_finite(float(loss), bool(trees.all_finite(gradient)))
    return None


def _first(oracle: Any, buffers: Any, params: Any, step: Any) -> Any:
    if buffers is not None:
        oracle = oracle.remembering(Memory(jax.tree.map(jnp.asarray, buffers)))
    return oracle(params, step)


def _train(algorithm: Any, broadcast: Any, before: Any, oracle: Any) -> tuple[Any, Any, Any]:
    if algorithm.traits.privacy == "distributed":
        oracle = _WithoutNoise(oracle)
    message, after = algorithm.train(broadcast, before, oracle)
    return message, after, trees.all_finite((message, after))


def _steps(solver: Any, model: Any, buffers: Any, oracle: Any) -> tuple[Any, Any]:
    if buffers is None:
        return solver.solve(model, oracle, 0).params, None
    memory = Memory(jax.tree.map(jnp.asarray, buffers))
    return solver.solve(model, oracle.remembering(memory), 0).params, memory.read()
