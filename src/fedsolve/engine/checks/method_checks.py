"""A method, tried on shapes before anything is compiled: an author's slip is one line, not a trace."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedsolve.core.algorithm import Algorithm, Cohort, name_of
from fedsolve.core.errors import InvalidInput, shown, with_article
from fedsolve.core.oracle import Oracle
from fedsolve.core.types import Params, Scalar, check_weighting, is_module
from fedsolve.engine.compute.reduce import reduce_stacked


class Sent(NamedTuple):
    """The shapes of what travels: the broadcast and the message."""

    down: Any
    up: Any


def check_method(algorithm: Any) -> None:
    """Raise `InvalidInput` unless this is an algorithm whose class and weighting a run can use."""
    if not isinstance(algorithm, Algorithm):
        raise InvalidInput(f"algorithm must be one such as FedAvg(client_lr=0.1), not {shown(algorithm)}")
    if not is_module(algorithm):
        raise InvalidInput(
            f"the class {type(algorithm).__name__} is no module: put @module (fedsolve.core.types) above it"
        )
    check_weighting(getattr(algorithm, "weighting", None))


def check_verbs(
    algorithm: Algorithm, server: Any, params: Params, population: int, oracle: Callable[[], Oracle]
) -> Sent:
    """Try a round on shapes, and tell what travels; nothing is computed, and equal shapes are tried once.

    Args:
        algorithm: the method.
        server: its first server state.
        params: the initial model.
        population: clients in all.
        oracle: () -> an oracle of one client; a pytree.

    Raises:
        InvalidInput: what `broadcast` or `train` returns is not what the next step needs, with the remedy.
    """
    _check_arrays(f"the server state of {name_of(algorithm)}", server)
    number = jax.ShapeDtypeStruct((), jnp.int32)
    return Sent(*_one_round.eval_shape(algorithm, server, params, population, oracle, number))


@partial(jax.jit, static_argnames="population")
def _one_round(
    algorithm: Algorithm,
    server: Any,
    params: Params,
    population: int,
    oracle: Callable[[], Oracle],
    number: Scalar,
) -> tuple[Any, Any]:
    """The broadcast and a client's message; every result on the way is checked."""
    name = name_of(algorithm)
    # round and size are traced, as in a run: how many a cohort has is not known here
    cohort = Cohort(number, number, population, jax.random.key(0))
    broadcast = algorithm.broadcast(server, cohort)
    _check_arrays(f"the broadcast of {name}", broadcast)
    client = algorithm.enrol(broadcast, params)
    _check_arrays(f"the client state of {name}", client)
    trained = algorithm.train(broadcast, client, oracle())
    if not isinstance(trained, tuple) or len(trained) != 2 or hasattr(trained, "_fields"):
        raise InvalidInput(f"{name}.train returns {shown(trained)}: it must return (message, client state)")
    message, after = trained
    _check_arrays(f"the message of {name}", message)
    _check_arrays(f"the client state of {name}", after)
    _check_same(f"{name}.train changes the client state", client, after)
    if not algorithm.traits.personal:  # whose messages may be of some leaves alone
        _check_delta(name, message, params)
    received, _ = algorithm.receive(broadcast, message, client)
    alone = jax.tree.map(lambda x: jnp.asarray(x)[None], received)
    reduced = reduce_stacked(algorithm, alone, jnp.ones(1), jnp.ones(1, bool))
    new = algorithm.update(server, reduced, cohort)
    if new is None and server is not None:
        raise InvalidInput(f"{name}.update returns None: it must return the new server state")
    _check_arrays(f"the server state of {name}", new)
    _check_same(f"{name}.update changes the server state", server, new)
    return broadcast, message


def _check_arrays(what: str, tree: Any) -> None:
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if not hasattr(leaf, "dtype") or not hasattr(leaf, "shape"):
            kind = type(leaf).__name__
            remedy = (
                f"make it an array, such as jnp.asarray({kind}, dtype)"
                if isinstance(leaf, bool | int | float | complex)
                else f"put @module (fedsolve.core.types) above the class {kind}, or send arrays"
            )
            raise InvalidInput(
                f"{what} holds {with_article(kind)} {jax.tree_util.keystr(path)}".rstrip() + f": {remedy}"
            )


def _check_same(what: str, old: Any, new: Any) -> None:
    if jax.tree.structure(old) != jax.tree.structure(new):
        raise InvalidInput(f"{what} from {_form(old)} to {_form(new)}: a round must keep its fields")
    pairs = zip(jax.tree_util.tree_leaves_with_path(old), jax.tree.leaves(new), strict=True)
    for (path, a), b in pairs:
        if (jnp.shape(a), a.dtype) != (jnp.shape(b), b.dtype):
            raise InvalidInput(
                f"{what}{jax.tree_util.keystr(path)} from shape {a.shape} {a.dtype} to {b.shape} {b.dtype}: "
                "a round must keep shapes and types"
            )


def _check_delta(name: str, message: Any, params: Params) -> None:
    """A client update of other shapes than the model's would be spread over it."""
    delta = getattr(message, "delta", None)
    if delta is None:
        return
    same = jax.tree.structure(delta) == jax.tree.structure(params)
    shapes, model = ([jnp.shape(x) for x in jax.tree.leaves(t)] for t in (delta, params))
    if (same and shapes != model) or (not same and shapes == [()]):
        raise InvalidInput(
            f"the message of {name} has delta of shape {shapes}, the model {model}: a client update has its shapes"
        )


def _form(tree: Any) -> str:
    return shown(jax.tree.structure(tree))
