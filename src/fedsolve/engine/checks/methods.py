"""Checks of a method and its run before anything is compiled, what travels, and why a run diverged, in words."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from fedsolve.core import wire
from fedsolve.core.algorithm import Algorithm, Cohort, check_shares, name_of
from fedsolve.core.buffers import WithBuffers
from fedsolve.core.errors import InvalidInput, shown, with_article
from fedsolve.core.introspect import ShapeOracle
from fedsolve.core.loss_checks import why_not_finite
from fedsolve.core.optax_bridge import Transformation
from fedsolve.core.oracle import Oracle
from fedsolve.core.schedules import FromOptax, Reacting, Schedule, as_count, rate_at
from fedsolve.core.trees import dtype_of
from fedsolve.core.types import Batch, Params, Scalar, check_weighting, is_module, module, static
from fedsolve.engine.checks.gathers import ROWS
from fedsolve.engine.checks.losses import of_call
from fedsolve.engine.compute.casting import argument_name
from fedsolve.engine.compute.clients import LocalWork, PackedClients, client_oracle, shapes_of_two
from fedsolve.engine.compute.train import reduce_stacked
from fedsolve.engine.identity import describe
from fedsolve.tasks.loss_arguments import asked
from fedsolve.tasks.task import Task

_REMEDY = "loss(params, batch, buffers) returns (value, new buffers), of the shapes and types of those that it is given"


@dataclass(frozen=True)
class Traffic:
    """Bytes of one client in a round, as `fedsolve.wire` encodes them; up those of each variant of its message."""

    up: tuple[int, ...]
    down: int


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
) -> tuple[Any, Any]:
    """The shapes of broadcast and message, by a round on shapes; nothing is computed, and equal ones are tried once."""
    # oracle: () -> an oracle of one client; a pytree
    _check_arrays(f"the server state of {name_of(algorithm)}", server)
    number = jax.ShapeDtypeStruct((), jnp.int32)
    return _one_round.eval_shape(algorithm, server, params, population, oracle, number)


def traffic(
    algorithm: Algorithm, work: LocalWork, packed: PackedClients, key: Any, server: Any, params: Params
) -> Traffic:
    """The traffic of a method on a task, which is checked on the way; nothing is computed."""
    first = _FirstClient(packed, key, _loss_type(work, packed, params), work)
    down, up = check_interface(algorithm, server, params, packed.population, first)
    return Traffic(wire.variants(up).sizes, wire.size(down))


@module
class _FirstClient:
    # makes the first client's oracle, of shapes alone where the type of the loss is given
    packed: PackedClients
    key: Any
    loss_type: Any = static()
    work: LocalWork = static()

    def __call__(self) -> Oracle:
        if self.loss_type is not None:
            # differentiating a network takes a third of a second, and the run's program does so again
            return ShapeOracle(self.work.max_steps, self.loss_type)
        bound, first = jnp.int32(self.work.max_steps), jnp.int32(0)
        return client_oracle(self.work, self.packed, self.key, self.packed.number(first), bound, first)


def _loss_type(work: LocalWork, packed: PackedClients, params: Params) -> Any:
    # the type of a loss, traced as checks of a task do; None where it has buffers, which only calling it writes
    if hasattr(work.loss, "training_loop"):
        return dtype_of(params)
    if "buffers" in asked(work.loss):
        return None
    batch = jax.tree.map(lambda a: jax.ShapeDtypeStruct((ROWS, *a.shape[1:]), a.dtype), packed.examples)
    return of_call.eval_shape(work.loss, packed.model(params), batch).dtype


@partial(jax.jit, static_argnames="population")
def _one_round(
    algorithm: Algorithm,
    server: Any,
    params: Params,
    population: int,
    oracle: Callable[[], Oracle],
    number: Scalar,
) -> tuple[Any, Any]:
    # the broadcast and a client's message; every result on the way is checked
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
    before, after = jax.tree.structure(old), jax.tree.structure(new)
    if before != after:
        raise InvalidInput(f"{what} from {shown(before)} to {shown(after)}: a round must keep its fields")
    if (change := _first_change(old, new)) is not None:
        path, words = change
        raise InvalidInput(f"{what}{jax.tree_util.keystr(path)} {words}: a round must keep shapes and types")


def _first_change(old: Any, new: Any) -> tuple[Any, str] | None:
    # the first leaf whose shape or type changes, by its path, and how; None if none does. Both have one
    # structure.
    pairs = zip(jax.tree_util.tree_leaves_with_path(old), jax.tree.leaves(new), strict=True)
    for (path, a), b in pairs:
        before, after = (
            f"{jnp.shape(x)} {x.dtype if hasattr(x, 'dtype') else jnp.result_type(x)}" for x in (a, b)
        )
        if before != after:
            return path, f"from shape {before} to {after}"
    return None


def _check_delta(name: str, message: Any, params: Params) -> None:
    # a client update of other shapes than the model's would be spread over it
    delta = getattr(message, "delta", None)
    if delta is None:
        return
    same = jax.tree.structure(delta) == jax.tree.structure(params)
    shapes, model = ([jnp.shape(x) for x in jax.tree.leaves(t)] for t in (delta, params))
    if (same and shapes != model) or (not same and shapes == [()]):
        raise InvalidInput(
            f"the message of {name} has delta of shape {shapes}, the model {model}: a client update has its shapes"
        )


def check_round(one_round: Callable[[Any], tuple[Any, Any]], state: Any) -> None:
    """A round must keep the shapes and types of everything that is carried to the next."""
    after = jax.eval_shape(one_round, state)[0]
    if jax.tree.structure(after) != jax.tree.structure(state):
        raise InvalidInput("the update changes the structure of the server or client state: keep its fields")
    if (change := _first_change(state, after)) is not None:
        path, words = change
        raise InvalidInput(
            f"the update changes {jax.tree_util.keystr(path)} {words}: a round must keep shapes and types"
        )


def check_buffers(task: Task, work: LocalWork, model: Any, examples: Batch) -> None:
    """A loss asks for buffers where the task has some, keeps their form, and can leave out padding."""
    # model: the first one as the loss takes it
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
    shapes = shapes_of_two(examples)
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


# The rates of a run's rounds, checked before they are used: negative, not a number, or 0 in every round.

_AT_ONCE = 2**16  # rounds


def check_rates(method: Any, rounds: int) -> None:
    """Evaluate every schedule of a method, compiled as in a run, over all rounds; those that react come later."""
    for path, node in jax.tree_util.tree_leaves_with_path(method, is_leaf=is_schedule):
        if is_schedule(node) and not isinstance(node, Reacting):
            check_schedule(path, node, 0, rounds)


def check_schedule(path: Any, schedule: Schedule, start: int, stop: int) -> None:
    """Raise `InvalidInput` unless a schedule gives rates in rounds start .. stop - 1."""
    # an argument of an optax function that is no learning rate may be negative. A rate that a run's evaluations
    # have made infinite ends it as `Diverged`, which tells it.
    # path: of the schedule in its method, as JAX gives it; start, stop: rounds, from 0
    names = [jax.tree_util.keystr((key,), simple=True) for key in path]
    least = 0.0 if "values" not in names or names[-1] == "learning_rate" else -np.inf
    length = min(_AT_ONCE, 1 << max(0, stop - start - 1).bit_length())  # powers of two: few programs
    for first in range(start, stop, length):
        rounds = np.minimum(np.arange(first, first + length), stop - 1)
        rates = np.asarray(_rates(schedule, as_count(rounds)))
        bad = ~(rates >= least) | (np.isinf(rates) & (not isinstance(schedule, Reacting)))
        if bad.any():
            place = int(bad.argmax())
            what = describe(schedule.function if isinstance(schedule, FromOptax) else schedule)
            raise InvalidInput(
                f"{argument_name(names)} = {what} is {rates[place]:g} in round {rounds[place]} (rounds count from 0): "
                f"a rate must be finite{' and at least 0' if least == 0 else ''}"
            )


def is_schedule(node: Any) -> bool:
    return isinstance(node, Schedule)


@jax.jit
def _rates(schedule: Schedule, rounds: Int[Array, " rounds"]) -> Array:
    return jax.vmap(lambda t: jnp.asarray(schedule(t), float))(rounds)


# Why a run diverged, in words: what the first evaluation, the method's rates and the data's sizes tell.

_RATES = ("client_lr", "server_lr", "lr", "eta", "eta_max")
_LARGE = 1e4  # beyond it squares and products of the data leave little room in float32


def divergence_hint(
    start: float, rates: Mapping[str, float], largest: float, method: str, no_slope: str | None = None
) -> str:
    """What to say after "... is not finite": why, and what to change.

    `start` is the training loss of the initial model, `largest` the largest absolute value of the data, `no_slope`
    where its gradient is not finite, None if nowhere.

    >>> divergence_hint(2.3, {"client_lr": 10.0, "server_lr": 1.0}, 1.0, "FedAvg")
    ' (client_lr 10, server_lr 1): lower the rates'
    >>> divergence_hint(float("nan"), {"client_lr": 0.1}, 1.0, "FedAvg")
    ': the training loss of the initial model is nan already: look at the data, the loss and the initial model'
    """
    if not math.isfinite(start):
        where = "look at the data, the loss and the initial model"
        reach = f", the data reach {largest:.2g}" if largest > _LARGE else ""
        return f": the training loss of the initial model is {start} already{reach}: {where}"
    why = why_not_finite(start, no_slope is None, no_slope or "")
    if why is not None:
        return f": {why}"
    values = ", ".join(f"{name} {value:g}" for name, value in rates.items())
    remedy = f"scale the data, which reach {largest:.2g}" if largest > _LARGE else ""
    if rates:
        return f" ({values}): {f'{remedy}, or ' if remedy else ''}lower the rates"
    return f": {method} has no rate of its own to lower: {remedy or 'look at the data and the loss'}"


def rates(part: Any, round: int, path: tuple[str, ...] = ()) -> dict[str, float]:
    """The rates of a method, its solver, its server optimiser and what it wraps, in a round (from 0)."""
    # part: the method, or what lies at `path` in it; path: names of the fields that lead to `part`
    # returns rates by the name of the argument that each comes from; of two of one name the first
    by_name: dict[str, float] = {}
    for field in dataclasses.fields(part):
        value, here = getattr(part, field.name), (*path, field.name)
        if field.name in _RATES:
            by_name.setdefault(argument_name(here), float(rate_at(value, round)))
        elif isinstance(value, Transformation) and "learning_rate" in value.values:
            name = argument_name((*here, "values", "learning_rate"))
            by_name.setdefault(name, float(rate_at(value.values["learning_rate"], round)))
        elif is_module(value):
            for name, rate in rates(value, round, here).items():
                by_name.setdefault(name, rate)
    return by_name


def largest_value(examples: Batch) -> float:
    """The largest absolute value of the floating-point data, 0 if there are none."""
    sizes = [jnp.max(jnp.abs(a)) for a in jax.tree.leaves(examples) if jnp.issubdtype(a.dtype, jnp.floating)]
    return max(map(float, sizes), default=0.0)
