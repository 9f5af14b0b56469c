"""An algorithm's methods as the server of a deployment calls them: compiled, with the same bits as in the simulation.

They are compiled one by one where the engine compiles a whole round; on one kind of machine both give the same
bits for clients that train one after another (`chunk=1`), which a test holds to.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedsolve.core import introspect
from fedsolve.core.algorithm import Algorithm, Cohort
from fedsolve.core.types import Params, is_module
from fedsolve.core.xla.compiler import compiler_options
from fedsolve.engine.compute.reduce import merge, reduce_stacked, sum_messages


def first_cohort(population: int) -> Cohort:
    """The cohort that the first broadcast is made for, as in the engine: all clients."""
    return Cohort(jnp.int32(0), jnp.int32(population), population)


def cohort_of(round: int, size: int, population: int, key: Any = None) -> Cohort:
    """A cohort of a round; the population is a plain number, part of the program."""
    return Cohort(jnp.int32(round), jnp.asarray(size), population, key)  # a count has the run's integer type


def init(algorithm: Algorithm, params: Params) -> Any:
    """`Algorithm.init`."""
    return _compiled_init()(algorithm, params)


def broadcast(algorithm: Algorithm, server: Any, cohort: Cohort) -> Any:
    """`Algorithm.broadcast`."""
    return _compiled_broadcast()(
        algorithm, server, cohort.round, cohort.size, cohort.key, population=cohort.population
    )


def receive(algorithm: Algorithm, broadcast: Any, message: Any, client: Any) -> tuple[Any, Any]:
    """`Algorithm.receive`: the message as it is reduced, and the client's next state as the server tracks it."""
    return _compiled_receive()(algorithm, broadcast, message, client)


def update(algorithm: Algorithm, server: Any, message: Any, cohort: Cohort) -> Any:
    """`Algorithm.update`."""
    return _compiled_update()(
        algorithm, server, message, cohort.round, cohort.size, cohort.key, population=cohort.population
    )


def _compiled(function: Callable[..., Any], **options: Any) -> Any:
    return jax.jit(function, compiler_options=compiler_options(), **options)


@cache
def _compiled_init() -> Any:
    return _compiled(lambda algorithm, params: algorithm.init(params))


@cache
def _compiled_broadcast() -> Any:
    def call(algorithm: Algorithm, server: Any, round: Any, size: Any, key: Any, population: int) -> Any:
        return algorithm.broadcast(server, Cohort(round, size, population, key))

    return _compiled(call, static_argnames="population")


@cache
def _compiled_receive() -> Any:
    return _compiled(
        lambda algorithm, broadcast, message, client: algorithm.receive(broadcast, message, client)
    )


@cache
def _compiled_update() -> Any:
    def call(
        algorithm: Algorithm, server: Any, message: Any, round: Any, size: Any, key: Any, population: int
    ) -> Any:
        return algorithm.update(server, message, Cohort(round, size, population, key))

    return _compiled(call, static_argnames="population")


def reduce(algorithm: Algorithm, messages: Iterable[Any], weights: Sequence[float], dtype: Any) -> Any:
    """Messages reduced over a cohort as their fields say, summed in the order given, or by the method's reduction.

    A sum needs one message at a time, a reduction of the method's own all of them.
    """
    if algorithm.traits.reduction is not None:
        messages = list(messages)
        stacked = jax.tree.map(lambda *x: np.stack(x), *messages)
        mask = np.ones(len(messages), bool)
        return _compiled_reduction()(algorithm, stacked, jnp.asarray(weights, dtype), mask)
    start, add, finish = _compiled_sum()
    totals = None
    for message, weight in zip(messages, weights, strict=True):
        term = start(message, jnp.asarray(weight, dtype))
        totals = term if totals is None else add(totals, term)
    return finish(totals)


@cache
def _compiled_sum() -> tuple[Any, Any, Any]:
    def start(message: Any, weight: Any) -> Any:
        stack_of_one = jax.tree.map(lambda x: jnp.asarray(x)[None], message)
        mask = jnp.ones(1, bool)
        return sum_messages(stack_of_one, weight[None], mask, mask[:, None], mask)

    return (
        _compiled(start),
        _compiled(merge, donate_argnums=0),
        _compiled(lambda totals: totals.reduce()),
    )


@cache
def _compiled_reduction() -> Any:
    return _compiled(reduce_stacked)


def zero_reduced(algorithm: Algorithm, broadcast: Any, message: Any, client: Any) -> Any:
    """The reduced message of a round in which nobody took part: zeros."""
    shapes = introspect.received_shape(algorithm, broadcast, message, client)
    return jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)


def reported_loss(message: Any) -> float | None:
    """The mean loss over local steps that a reduced message reports; None where a method reports none."""
    if not is_module(message):
        return None
    if hasattr(message, "loss"):
        return float(message.loss)
    losses = (reported_loss(getattr(message, field.name)) for field in dataclasses.fields(message))
    return next((loss for loss in losses if loss is not None), None)


def broadcast_shape(algorithm: Algorithm, params: Params, population: int) -> Any:
    """Shapes and types of a broadcast: both sides know them, so that numbers alone travel."""

    def first(params: Params) -> Any:
        return algorithm.broadcast(algorithm.init(params), first_cohort(population))

    return jax.eval_shape(first, jax.tree.map(jnp.asarray, params))


def zero_message(algorithm: Algorithm, broadcast: Any, client: Any) -> Any:
    """A client's message with zeros for numbers: what others are decoded by. Nothing is trained."""
    shapes = introspect.message_shape(algorithm, broadcast, client)
    return jax.tree.map(lambda s: np.zeros(s.shape, s.dtype), shapes)
