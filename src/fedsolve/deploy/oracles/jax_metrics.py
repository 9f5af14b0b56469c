"""What one client with a loss in JAX measures of a model, on what it trains on and on what it holds out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedsolve.data.federated import FederatedData
from fedsolve.deploy.measured import Measured
from fedsolve.engine.clients import Loss, PackedClients, on_device
from fedsolve.engine.evaluate import Metrics
from fedsolve.engine.evaluate_blocks import means_of
from fedsolve.engine.own_models import Owned
from fedsolve.engine.preflight import check_metrics
from fedsolve.errors import InvalidInput, shown
from fedsolve.tasks.task import Task
from fedsolve.types import Batch, Params

Functions = Mapping[str, Callable[..., Any]]


def packed(examples: Batch, frozen: Params, dtype: Any) -> PackedClients:
    """One client's examples on the device; how many steps it takes is put in where it takes any."""
    count = len(jax.tree.leaves(examples)[0])
    offset, counts, steps = (jnp.asarray(np.full(1, n, np.int32)) for n in (0, count, 0))
    return PackedClients(on_device(examples, dtype), offset, counts, steps, on_device(frozen, dtype))


def measured(
    loss: Loss,
    functions: Functions,
    sets: Mapping[str, PackedClients],
    model: Params,
    metrics: Collection[str],
) -> dict[str, Measured]:
    """A model's metrics on one client's sets of examples, by the engine's program.

    Args:
        loss: the client's.
        functions: its further metrics that are asked for.
        sets: its examples by part.
        model: with its buffers where the loss has some.
        metrics: names that are asked for, `loss` perhaps.
    """
    judged = Metrics(loss, tuple(functions.items()))
    places = {name: k for k, name in enumerate(judged.all) if name in metrics}
    found = {}
    for part, examples in sets.items():
        count, means, counts = means_of(judged, Owned.of(examples, np.zeros(1, int)), model, None)
        found[part] = Measured(
            int(count[0]),
            {name: float(means[0, k]) for name, k in places.items()},
            {name: round(float(counts[0, k])) for name, k in places.items()},
        )
    return found


def check_means(functions: Functions, model: Any, examples: Batch) -> None:
    """Raise `InvalidInput` if a metric is no mean over examples: it has no value for one client."""
    for name, seen in check_metrics(functions, model, examples).items():
        raise InvalidInput(
            f"metric {name} is no mean over examples ({seen}), and clients measure means alone: leave it out"
        )


def held_out(validation: Batch, examples: Batch) -> Batch:
    """Validation examples as arrays, of the fields of the training examples."""
    found = FederatedData.from_clients([validation], ["the validation examples"]).examples
    shapes = [jax.tree.map(lambda a: (a.shape[1:], a.dtype.kind), x) for x in (found, examples)]
    if shapes[0] != shapes[1]:
        raise InvalidInput(
            f"the validation examples have fields {shown(shapes[0])}, the training examples {shown(shapes[1])} "
            "(shape of one, kind): give both the same"
        )
    return found


def own_validation(task: Task, client: int) -> Batch | None:
    """The validation examples of a task that are this client's; None if it has none."""
    if task.validation is None or task.validation_clients is None:
        return None
    rows = np.flatnonzero(task.validation_clients == client)
    return jax.tree.map(lambda a: np.asarray(a)[rows], task.validation) if len(rows) else None
