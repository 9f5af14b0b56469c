"""What about a method the engine and the messages could treat differently from another's: read from its verbs.

Methods of one signature go the same way through every branch of the engine (chunks, masks, sums, lanes of a sweep) and
of the messages. What holds for one of them there holds for the others, as long as each is run once.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import jaxprs_in_params

from conformance.properties import START, model
from fedsolve.core import introspect, trees
from fedsolve.core.algorithm import Algorithm, Cohort
from fedsolve.core.introspect import ShapeOracle
from fedsolve.core.types import reductions
from fedsolve.core.wire import OneOf


class Signature(NamedTuple):
    """The kind of a method.

    Attributes:
        weighting: how clients count in a mean.
        reduced: the kinds of reduction in its reduced message.
        own_reduction: whether it brings a reduction of its own.
        has_state: whether clients keep a state.
        forwarded: whether messages are reduced as they are sent.
        codes: "none" if messages are numbers, "codes" if whole numbers or bits are among them, "one of" if a client's
            message has one of several lengths.
        asks: what clients ask of their oracle: gradients, losses apart from them, whole sets.
        searches: whether a client's work has a loop that ends when the data say so.
    """

    weighting: str
    reduced: frozenset[str]
    own_reduction: bool
    has_state: bool
    forwarded: bool
    codes: str
    asks: frozenset[str]
    searches: bool


class _Asked(ShapeOracle):
    """Notes what it is asked."""

    def __init__(self) -> None:
        super().__init__(steps=2)
        self.asked: set[str] = set()

    def __call__(self, params: Any, step: Any) -> Any:
        self.asked.add("gradient")
        return super().__call__(params, step)

    def loss(self, params: Any, step: Any) -> Any:
        self.asked.add("loss")
        return super().loss(params, step)

    def full(self, params: Any) -> Any:
        self.asked.add("whole set")
        return ShapeOracle.__call__(self, params, 0)


def signature(algorithm: Algorithm) -> Signature:
    """The signature of a method; nothing is compiled."""
    start = jax.tree.map(jnp.asarray, model(START))
    server = jax.eval_shape(algorithm.init, start)
    down = jax.eval_shape(lambda s: algorithm.broadcast(s, Cohort(jnp.int32(0), jnp.int32(4), 6)), server)
    client = jax.eval_shape(algorithm.enrol, down, start)
    oracle = _Asked()
    work, sent = jax.make_jaxpr(lambda *x: algorithm.train(*x, oracle)[0], return_shape=True)(down, client)
    received = introspect.received_shape(algorithm, down, sent, client)
    several = any(isinstance(x, OneOf) for x in jax.tree.leaves(sent, is_leaf=lambda x: isinstance(x, OneOf)))
    return Signature(
        weighting=algorithm.weighting,
        reduced=frozenset(jax.tree.leaves(reductions(received))),
        own_reduction=algorithm.reduction is not None,
        has_state=bool(jax.tree.leaves(client)),
        forwarded=introspect.is_forwarded(algorithm, down, sent, client),
        codes="one of" if several else "codes" if trees.has_codes(sent) else "none",
        asks=frozenset(oracle.asked),
        searches=any(e.primitive.name == "while" for e in operations(work.jaxpr)),
    )


def traced(algorithm: Algorithm) -> tuple[Any, list[tuple[Any, Any]], Any]:
    """The verbs of a round with one client, traced: the operations, the shapes of what is kept (a server, a client)
    before and after it, and the model's. Floating numbers have JAX's widest type.
    """

    def cast(tree: Any) -> Any:  # as the engine has a method's own numbers
        wide = jnp.result_type(float)
        return jax.tree.map(
            lambda x: jnp.asarray(x, wide if jnp.issubdtype(jnp.result_type(x), jnp.floating) else None), tree
        )

    def one_round(algorithm: Algorithm, start: Any) -> Any:
        cohort = Cohort(jnp.int32(0), jnp.sum(jnp.ones(1, bool)), 6)  # as the engine counts
        server = algorithm.init(start)
        down = algorithm.broadcast(server, cohort)
        client = algorithm.enrol(down, start)
        message, kept = algorithm.train(down, client, ShapeOracle(steps=2))
        received, mirrored = algorithm.receive(down, message, client)
        if algorithm.reduction is not None:
            stacked = jax.tree.map(lambda x: jnp.stack([x, x]), received)
            received = algorithm.reduction(stacked, jnp.ones(2), jnp.ones(2, bool))
        after = algorithm.update(server, received, cohort)
        return (server, client, client), (after, kept, mirrored), algorithm.export(after)

    steps, (before, after, exported) = jax.make_jaxpr(one_round, return_shape=True)(
        cast(algorithm), cast(model(START))
    )
    return steps, list(zip(before, after, strict=True)), exported


def operations(jaxpr: Any) -> Any:
    """Every operation, inside others, too."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in jaxprs_in_params(equation.params):
            yield from operations(inner)
