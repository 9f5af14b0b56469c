"""What can be checked of a task and a method before anything is compiled: clear words instead of a trace."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal

from fedsolve.core.errors import InvalidInput, of_type, shown
from fedsolve.core.loss_checks import check_mean, check_slope, check_value, fails, informative_rows
from fedsolve.core.trees import all_finite, dtype_of
from fedsolve.core.types import Batch, Params
from fedsolve.engine.checks.gathers import check_gathers
from fedsolve.engine.checks.losses import (
    built_in,
    check_frozen,
    compile_options,
    few_rows,
    not_means,
    of_call,
    renew,
)
from fedsolve.engine.compute.clients import Loss, PackedClients, on_device, shapes_of_two
from fedsolve.tasks.leaves import refuse_state
from fedsolve.tasks.loss_arguments import asked, call, mean_of
from fedsolve.tasks.losses.weights import DISTORTED
from fedsolve.tasks.task import Task


def check_task(
    task: Task, params: Params, packed: PackedClients, test: Batch | None
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Loss and metrics must be one real number, or one an example, on any batch; the loss a mean over examples."""
    # returns the metrics that are no means over examples, each with what was seen: they are computed on whole
    # sets. And what is to be said of labels that the loss or a metric looks up and that are not there
    refuse_state(params)
    params = packed.first_model(params, task.buffers)
    functions = {"loss": task.loss, **task.metrics}
    renew([f for f in functions.values() if not built_in(f)], params, shapes_of_two(packed.examples))
    for where, examples in (("a training batch", packed.examples), ("a test batch", test)):
        if examples is None:
            continue
        batch = shapes_of_two(examples)
        for name, function in functions.items():
            _check_value(f"{name} of {where} of task {task.name}", function, params, batch)
    name = f"the loss of task {task.name}"
    if not built_in(task.loss):
        check_frozen(name, task.loss, params, shapes_of_two(packed.examples))
        check_gradient(name, task.loss, params, shapes_of_two(packed.examples))
    rows = few_rows(task.data.examples, params)
    if test is not None:
        rows = _joined(rows, few_rows(task.test, params))
    seen = not_means(functions, params, rows)
    check_mean(name, seen.get("loss"), _ALONE)
    held_out = {"the test set": task.test, "the validation set": task.validation}
    unseen = None if task.unseen is None else task.unseen.examples
    sets = {"the training examples": task.data.examples, **held_out, "the unseen clients": unseen}
    notes = [*check_gathers(name, task.loss, params, sets)]
    notes += [DISTORTED] if len(set(getattr(task.loss, "class_weights", None) or ())) > 1 else []
    for metric, function in task.metrics.items():
        if not built_in(function):
            notes += check_gathers(f"metric {metric} of task {task.name}", function, params, sets)
    return seen, tuple(notes)


def check_loss(name: str, loss: Loss, params: Params, examples: Batch) -> None:
    """A loss must be a mean over examples, whatever the sizes of clients, and draw with no key of its own."""
    # loss: as `fedsolve.tasks.loss_arguments` has it; examples: some to try it on, as NumPy arrays
    if not built_in(loss):
        rows = few_rows(examples, params)
        batch = shapes_of_two(on_device(rows, dtype_of(params)))
        renew([loss], params, batch)
        _check_value(name, loss, params, batch)
        check_frozen(name, loss, params, batch)
        check_gradient(name, loss, params, batch)
        check_mean(name, not_means({"loss": loss}, params, rows).get("loss"), _ALONE)
    check_gathers(name, loss, params, {"the examples": examples})


def check_metrics(metrics: Mapping[str, Any], params: Params, examples: Batch) -> dict[str, str]:
    """Metrics must be one real number, or one an example, on any batch."""
    # metrics: functions of (params, batch) by name; examples: some to try them on, as NumPy arrays
    # returns those that are no means over examples, each with what was seen
    rows = few_rows(examples, params)
    batch = shapes_of_two(on_device(rows, dtype_of(params)))
    own = {name: f for name, f in metrics.items() if not built_in(f)}
    renew(list(own.values()), params, batch)
    for name, function in own.items():
        _check_value(f"metric {name}", function, params, batch)
        check_gathers(f"metric {name}", function, params, {"the examples": examples})
    return not_means(own, params, rows)


_ALONE = (
    "give the mean of a loss of each example alone (jnp.mean; LayerNorm or GroupNorm for BatchNorm; both views of a "
    "contrast in one example), or say couples_examples = True where the task or oracle is made"
)


def _check_value(what: str, function: Any, params: Params, batch: Batch) -> None:
    # a function's value is one real number or one an example: as training calls it, and as evaluation does
    count = jax.tree.leaves(batch)[0].shape[0]
    names = asked(function, what)
    key = jax.eval_shape(jax.random.key, 0) if "key" in names else None
    weights = jax.ShapeDtypeStruct((count,), dtype_of(params)) if "weights" in names else None
    for given in ((key, weights), (None, None)) if names else ((None, None),):
        out = _shape(what, function, params, batch, *given)
        typed = hasattr(out, "shape") and hasattr(out, "dtype")
        taken = typed and out.shape in ((), (count,)) and jnp.issubdtype(out.dtype, jnp.floating)
        check_value(
            what, f"of shape {out.shape} and type {out.dtype}" if typed else of_type(out), taken, count
        )


def _shape(what: str, function: Any, params: Params, batch: Batch, key: Any, weights: Any) -> Any:
    def value(params: Params, batch: Batch, key: Any, weights: Any) -> Any:
        out = call(function, params, batch, key=key, weights=weights)[0]
        check_value(what, shown(out), not isinstance(out, str | bytes) and out is not None)
        return out

    try:
        if built_in(function):  # whose trace is kept for the next method of a comparison
            return of_call.eval_shape(function, params, batch, key, weights)
        return jax.eval_shape(value, params, batch, key, weights)
    except jax.errors.TracerArrayConversionError as error:
        raise InvalidInput(
            f"{what} needs NumPy arrays, which it cannot have inside the compiled program: give a metric like this "
            f"as whole={{'name': fs.tasks.Whole(outputs, score)}}, a loss in jax.numpy"
        ) from error
    except InvalidInput:
        raise
    except Exception as error:  # whatever the user's code raises
        if key is None and "key" in asked(function):
            given, more = "with key=None, as evaluation calls it", "; draw nothing where key is None"
        else:
            given, more = f"on {described(batch)}", ""
        raise fails(what, given, error, more) from error


def _joined(train: Batch, test: Batch) -> Batch:
    # the rows of both, where they have one shape, else those of training alone
    pairs = zip(jax.tree.leaves(train), jax.tree.leaves(test), strict=True)
    if any(a.shape[1:] != b.shape[1:] for a, b in pairs):
        return train
    return jax.tree.map(lambda a, b: np.concatenate([a, b]), train, test)


Function = Callable[..., Any]
_MOST_LOOKED_AT = 32  # examples


def check_gradient(name: str, loss: Function, params: Params, batch: Batch) -> None:
    """A loss must have a gradient, of which some part is not 0 whatever the model and the batch."""
    leaves, structure = jax.tree.flatten((params, batch))
    try:
        depends = _depends(loss, structure, tuple((np.shape(a), a.dtype) for a in leaves))
    except Exception as error:  # whatever the user's code raises
        raise fails(f"the gradient of {name}", f"on {described(batch)}", error) from error
    check_slope(name, depends)


@lru_cache(maxsize=64)
def _depends(loss: Function, structure: Any, shapes: tuple[Any, ...]) -> bool:
    # whether the gradient depends on anything, or is another constant than 0; kept, since tracing takes long
    given = structure.unflatten([jax.ShapeDtypeStruct(*one) for one in shapes])
    floating, rest = _parts(given[0])
    gradient, key = _gradient(loss), jax.eval_shape(jax.random.key, 0)
    program = jax.make_jaxpr(gradient)(floating, rest, given[1], key).jaxpr
    known = {variable for variable in program.invars}
    for equation in program.eqns:
        if any(not isinstance(v, Literal) and v in known for v in equation.invars):
            known.update(equation.outvars)
    if any(not isinstance(v, Literal) and v in known for v in program.outvars):
        return True
    zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), (floating, rest, given[1]))
    return any(np.any(np.asarray(g)) for g in jax.tree.leaves(gradient(*zeros, jax.random.key(0))))


def where_no_slope(task: Task, packed: PackedClients) -> str | None:
    """On which of the most telling examples the gradient of a task's loss is not finite at its initial model."""
    # None if it is on all; "" if it is on none. The numbers of examples are no data
    if hasattr(task.loss, "training_loop") or hasattr(task.loss, "rows_together"):
        return None  # no loss of one example
    params = packed.first_model(task.init(jax.random.key(0)), task.buffers)
    floating, rest = _parts(params)
    rows, found = informative_rows(task.data.examples, (), 1, _MOST_LOOKED_AT), []
    slope = jax.jit(_gradient(task.loss), compiler_options=compile_options())
    for row in rows:
        batch = on_device(jax.tree.map(lambda a, i=row: a[i : i + 1], task.data.examples), dtype_of(params))
        if not all_finite(slope(floating, rest, batch, jax.random.key(0))):
            found.append(row)
    if not found or len(found) == len(rows):
        return "" if found else None
    client = int(np.searchsorted(task.data.offsets, found[0], side="right")) - 1
    return f" on example {found[0] - task.data.offsets[client]} of {task.data.names[client]}"


def described(batch: Batch) -> str:
    return "a batch " + " and ".join(f"of shape {a.shape} {a.dtype}" for a in jax.tree.leaves(batch))


def _gradient(loss: Function) -> Callable[..., Params]:
    # (what is differentiated, other leaves, batch, key) -> the gradient of the mean over the batch
    def value(floating: Params, rest: Params, batch: Batch, key: Any) -> Any:
        leaf = lambda a, b: b if a is None else a  # noqa: E731
        params = jax.tree.map(leaf, floating, rest, is_leaf=lambda a: a is None)
        return mean_of(call(loss, params, batch, key=key)[0])

    return jax.grad(value)


def _parts(params: Params) -> tuple[Params, Params]:
    # floating-point leaves, and the others; None in their places
    trains = lambda a: bool(jnp.issubdtype(a.dtype, jnp.floating))  # noqa: E731
    floating = jax.tree.map(lambda a: a if trains(a) else None, params)
    return floating, jax.tree.map(lambda a: None if trains(a) else a, params)


def on_solvers(algorithm: Any, params: Params, steps: int, rounds: int) -> Iterator[str]:
    """What is to be said of a method, of its clients' solver and its server optimiser."""
    ask = getattr(getattr(algorithm, "local", None), "why_it_stands_still", None)
    if ask is not None and (why := ask(params, steps, rounds)):
        yield f"the clients' solver {why}"
    said = []
    while algorithm is not None:
        for part in (
            algorithm,
            getattr(algorithm, "local", None),
            getattr(algorithm, "server_optimizer", None),
        ):
            ask = getattr(part, "on_leaves", None)
            said.append(ask(params) if ask else "")
        algorithm = getattr(algorithm, "inner", None)
    yield from filter(None, dict.fromkeys(said))
