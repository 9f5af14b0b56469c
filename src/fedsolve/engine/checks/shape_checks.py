"""A method, and what a loss makes of buffers, tried on shapes before anything is compiled: a slip is one line."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedsolve.core.algorithm import Algorithm, Cohort, check_shares, name_of
from fedsolve.core.buffers import WithBuffers
from fedsolve.core.errors import InvalidInput, shown, with_article
from fedsolve.core.oracle import Oracle
from fedsolve.core.trees import dtype_of
from fedsolve.core.types import Batch, Params, Scalar, check_weighting, is_module
from fedsolve.engine.compute.clients import LocalWork
from fedsolve.engine.compute.reduce import reduce_stacked
from fedsolve.tasks.loss_arguments import asked
from fedsolve.tasks.task import Task

_REMEDY = "loss(params, batch, buffers) returns (value, new buffers), of the shapes and types of those that it is given"


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
            f"the class {type(algorithm).__name__} is not a module: put @module (fedsolve.core.types) above it"
        )
    weighting = getattr(algorithm, "weighting", None)
    if weighting is None:
        raise InvalidInput(
            f"the class {type(algorithm).__name__} declares no weighting: set weighting = 'examples' in it, "
            "or 'uniform' if all clients count alike"
        )
    check_weighting(weighting)
    check_shares(algorithm.traits)


def check_interface(
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
    if (change := _first_change(old, new)) is not None:
        path, words = change
        raise InvalidInput(f"{what}{jax.tree_util.keystr(path)} {words}: a round must keep shapes and types")


def _first_change(old: Any, new: Any) -> tuple[Any, str] | None:
    """The first leaf whose shape or type changes, by its path, and how; None if none does. Both have one structure."""
    pairs = zip(jax.tree_util.tree_leaves_with_path(old), jax.tree.leaves(new), strict=True)
    for (path, a), b in pairs:
        before, after = (
            f"{jnp.shape(x)} {x.dtype if hasattr(x, 'dtype') else jnp.result_type(x)}" for x in (a, b)
        )
        if before != after:
            return path, f"from shape {before} to {after}"
    return None


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


def check_round(one_round: Callable[[Any], tuple[Any, Any]], state: Any) -> None:
    """A round must keep the shapes and types of everything that is carried to the next.

    Raises:
        InvalidInput: the first leaf that would change, with both shapes.
    """
    after = jax.eval_shape(one_round, state)[0]
    if jax.tree.structure(after) != jax.tree.structure(state):
        raise InvalidInput("the update changes the structure of the server or client state: keep its fields")
    if (change := _first_change(state, after)) is not None:
        path, words = change
        raise InvalidInput(
            f"the update changes {jax.tree_util.keystr(path)} {words}: a round must keep shapes and types"
        )


def check_buffers(task: Task, work: LocalWork, model: Any, examples: Batch) -> None:
    """A loss asks for buffers where the task has some, keeps their form, and can leave out padding.

    Args:
        task: loss, metrics and buffers.
        work: of the clients.
        model: the first one as the loss takes it.
        examples: of the clients, or some of them.

    Raises:
        InvalidInput: it does not, with the first leaf that differs.
    """
    for what, function in {"the loss": task.loss, **task.metrics}.items():
        if task.buffers is None and "buffers" in asked(function, what):
            raise InvalidInput(f"{what} of task {task.name} asks for buffers: give the task buffers=...")
    if not isinstance(model, WithBuffers):
        return
    name = f"the loss of task {task.name}"
    names = asked(task.loss)
    if "buffers" not in names:
        raise InvalidInput(f"{name} does not ask for the task's buffers: {_REMEDY}")
    if not work.even and "weights" not in names:
        raise InvalidInput(
            f"{name} has buffers, and clients have unequal sizes: padding would enter the buffers; give the loss an "
            "argument `weights`, 0 for padding, or give clients and minibatches of one size"
        )
    shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct((2, *a.shape[1:]), a.dtype), examples)
    given = jax.eval_shape(model.buffers.given)
    more = {
        "key": jax.eval_shape(jax.random.key, 0),
        "weights": jax.ShapeDtypeStruct((2,), dtype_of(model)),
        "buffers": given,
    }
    # functions of arrays alone: what a loss returns besides may be no array
    results: list[Any] = []

    def traced(params: Any, batch: Any, more: Any) -> int:
        results.append(task.loss(params, batch, **more))
        return 0

    jax.eval_shape(traced, model.params, shapes, {k: v for k, v in more.items() if k in names})
    if not isinstance(results[0], tuple) or len(results[0]) != 2:
        raise InvalidInput(f"{name} returns {shown(type(results[0]).__name__)} alone: {_REMEDY}")
    new = results[0][1]
    if jax.tree.structure(given) != jax.tree.structure(new):
        raise InvalidInput(
            f"{name} returns buffers {shown(jax.tree.structure(new))} for {shown(jax.tree.structure(given))}: {_REMEDY}"
        )
    if (change := _first_change(given, new)) is not None:
        path, words = change
        where = jax.tree_util.keystr(path, simple=True, separator=".") or "the buffer"
        raise InvalidInput(f"{name} changes {where} of its buffers {words}: {_REMEDY}")
