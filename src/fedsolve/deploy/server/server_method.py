"""A method as a server runs it: cast to the run's type, compiled, with what its messages look like.

Its methods are compiled one by one where the engine compiles a whole round; on one kind of machine both give the same
bits for clients that train one after another (`chunk=1`), which a test holds to.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedsolve.core import introspect, wire
from fedsolve.core.algorithm import Algorithm, Cohort
from fedsolve.core.types import Params
from fedsolve.core.xla.compiler import compiler_options
from fedsolve.deploy.secret_keys import secret_key
from fedsolve.deploy.signature import float_type
from fedsolve.engine.compute.casting import cast
from fedsolve.engine.compute.train import Totals, merge, reduce_stacked, sum_messages
from fedsolve.methods.robust.wrapper import fewest_messages


@dataclass(frozen=True)
class ServerMethod:
    """A method on the server, and the shapes that follow from it and from the model."""

    algorithm: Algorithm  # the method, its numbers of the run's floating-point type
    dtype: Any  # that type, float32 or float64
    population: int
    # the broadcast of the first round, from which every client's state starts; its shapes where clients keep none
    first_broadcast: Any
    initial_state: Any  # a client's state before it ever takes part, `()` if the method keeps none
    zero_message: Any  # a client's message with zeros for numbers: what others are decoded by
    tracks_clients: bool  # whether the server tracks the clients' states to read their messages
    is_forwarded: bool  # whether messages are reduced as they are sent
    fewest: int  # messages that its own reduction is meant for, at least; 1 for a mean

    @classmethod
    def prepare(cls, algorithm: Algorithm, params: Params, population: int) -> tuple[ServerMethod, Any]:
        """The method for this model and so many clients, and its server's first state."""
        dtype, fewest = float_type(params), math.ceil(float(fewest_messages(algorithm)))
        with jax.enable_x64(dtype == jnp.float64):
            tracks_clients = introspect.tracks_clients(algorithm)
            algorithm = cast(algorithm, dtype)
            params = jax.tree.map(jnp.asarray, params)
            server = compiled_method("init")(algorithm, params)
            # As the engine's first round has it: clients' states begin with the same broadcast there.
            first = introspect.first_cohort(population)
            broadcast = compiled_method("broadcast", population)(
                algorithm, server, first.round, first.size, first.key
            )
            client = algorithm.enrol(broadcast, params)
            shapes = introspect.message_shape(algorithm, broadcast, client)
            message = jax.tree.map(lambda s: np.zeros(s.shape, s.dtype), shapes)
            is_forwarded = introspect.is_forwarded(algorithm, broadcast, message, client)
            if not jax.tree.leaves(client) and not algorithm.traits.personal:  # nobody is sent it again
                broadcast = jax.eval_shape(lambda: broadcast)
        return cls(
            algorithm, dtype, population, broadcast, client, message, tracks_clients, is_forwarded, fewest
        ), server

    def precision(self) -> Any:
        """The context in which the run's floating-point type exists."""
        return jax.enable_x64(self.dtype == jnp.float64)

    @property
    def max_message_bytes(self) -> int:
        return max(wire.variants(self.zero_message).sizes)

    @property
    def is_stateful(self) -> bool:
        return bool(jax.tree.leaves(self.initial_state))

    def counts_clients(self, server: Any) -> bool:
        """Whether what the server computes depends on the number of all clients, as a mean over all of them does."""

        def part(server: Any, message: Any, population: Any) -> Any:
            cohort = Cohort(jnp.int32(0), jnp.int32(1), population, secret_key())
            return self.algorithm.broadcast(server, cohort), self.algorithm.update(server, message, cohort)

        try:
            traced = jax.make_jaxpr(part)(server, self.reduce((), ()), jnp.int32(self.population)).jaxpr
        except TypeError:  # it decides in Python by that number
            return True
        used = [*traced.outvars, *(x for step in traced.eqns for x in step.invars)]
        return any(x is traced.invars[-1] for x in used)

    def broadcast(self, server: Any, round: int, size: int) -> Any:
        return self._with_cohort("broadcast", round, size, None, server)

    def receive(self, broadcast: Any, message: Any, tracked_state: Any) -> tuple[Any, Any]:
        """A message as it is reduced, and the client's next state where the server tracks it, else `()`."""
        if self.is_forwarded and not self.tracks_clients:
            return message, ()
        before = tracked_state if self.tracks_clients else self.initial_state
        received, after = compiled_method("receive")(self.algorithm, broadcast, message, before)
        return jax.device_get((received, after if self.tracks_clients else ()))

    def reduce(self, messages: Iterable[Any], weights: Sequence[float]) -> Any:
        """Messages reduced over a cohort as their fields say, summed in the order given, or by the method's reduction.

        A sum needs one message at a time, a reduction of the method's own all of them. Of an empty cohort, zeros.
        """
        if not weights:
            sent = self.algorithm, self.first_broadcast, self.zero_message, self.initial_state
            return jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), introspect.received_shape(*sent))
        if self.algorithm.traits.reduction is not None:
            messages = list(messages)
            stacked = jax.tree.map(lambda *x: np.stack(x), *messages)
            mask = np.ones(len(messages), bool)
            return _jit(reduce_stacked)(self.algorithm, stacked, jnp.asarray(weights, self.dtype), mask)
        totals, messages = None, iter(messages)
        for weight in weights:  # one message at a time: `zip` would keep the one before
            term = _jit(_term, donate_argnums=0)(next(messages), jnp.asarray(weight, self.dtype))
            # The sum so far is given to the program, which may write over it.
            totals = term if totals is None else _jit(merge, donate_argnums=0)(totals, term)
            del term
        return _jit(Totals.reduce)(totals)

    def update(self, server: Any, message: Any, round: int, size: int) -> Any:
        """The next server state, from a message reduced over so many clients; its noise is nobody else's."""
        return self._with_cohort("update", round, size, secret_key(), server, message)

    def _with_cohort(self, name: str, round: int, size: int, key: Any, *arguments: Any) -> Any:
        # a count has the run's integer type
        cohort = jnp.int32(round), jnp.asarray(size), key
        return compiled_method(name, self.population)(self.algorithm, *arguments, *cohort)


@cache
def _jit(function: Callable[..., Any], **options: Any) -> Any:
    return jax.jit(function, compiler_options=compiler_options(), **options)


@cache
def compiled_method(name: str, population: int = 0) -> Any:
    # A method of the interface as a program.
    #
    # Of one that takes a cohort, the last arguments are its round, size and key; the population is part of the program.
    def call(algorithm: Algorithm, *arguments: Any) -> Any:
        if population:
            *others, round, size, key = arguments
            arguments = *others, Cohort(round, size, population, key)
        return getattr(algorithm, name)(*arguments)

    return _jit(call)


def _term(message: Any, weight: Any) -> Totals:
    # One message's part of the sums over a cohort.
    stack_of_one = jax.tree.map(lambda x: jnp.asarray(x)[None], message)
    mask = jnp.ones(1, bool)
    return sum_messages(stack_of_one, weight[None], mask, mask[:, None], mask)
