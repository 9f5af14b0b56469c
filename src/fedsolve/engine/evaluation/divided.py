"""Evaluating on several devices: each has a part of the examples, and computes their values by itself.

That is faster where a model has convolutions or loops, whose operations XLA computes on one core of a CPU.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array

from fedsolve.core.types import Batch, Params
from fedsolve.core.xla.compiler import all_equations, compiled
from fedsolve.core.xla.direct import DIRECT
from fedsolve.engine.compute.clients import Loss
from fedsolve.engine.compute.mean_loss import per_example
from fedsolve.engine.compute.processes import own_devices
from fedsolve.engine.evaluation.example_metrics import Metrics, on_all
from fedsolve.engine.evaluation.iterates import both_iterates, of_each
from fedsolve.tasks.leaves import with_frozen

_EXAMPLES = "examples"  # the mesh's axis
_OF_ONE_CORE = (DIRECT, "conv_general_dilated", "scan", "while")
"""Operations that XLA computes on one core of a CPU; products use all by themselves."""


@dataclass(frozen=True)
class DividedExamples:
    """Examples that are evaluated, divided among devices.

    Attributes:
        mesh: the devices, in a row.
        frozen: leaves of the model that do not train, on every device.
        sets: by name, each device's rows behind those of the one before; the last rows may be padding.
    """

    mesh: Mesh
    frozen: Params
    sets: dict[str, Batch]

    @classmethod
    def of(cls, mesh: Mesh, frozen: Params, sets: dict[str, Batch]) -> DividedExamples:
        """The examples of some sets, by name, on this process's devices of a run's mesh."""
        own = Mesh(np.array(own_devices(mesh)), (_EXAMPLES,))
        sharding = NamedSharding(own, P(_EXAMPLES))

        def divided(x: Array) -> Array:
            rows = np.minimum(np.arange(len(x) + -len(x) % own.size), len(x) - 1)
            return jax.device_put(x if len(rows) == len(x) else x[rows], sharding)

        on_each = jax.device_put(frozen, NamedSharding(own, P()))
        return cls(own, on_each, jax.tree.map(divided, sets))

    def values(
        self, metrics: Metrics, names: Iterable[str], last: Params, previous: Params
    ) -> dict[str, dict[str, Array]]:
        """Every metric of both iterates on the examples of some sets, (2, examples and padding, ...), on one device."""
        both = jax.device_put((last, previous), NamedSharding(self.mesh, P()))
        found = _values(metrics, self.mesh, self.frozen, *both, {name: self.sets[name] for name in names})
        return jax.device_put(found, self.mesh.devices.flat[0])


def is_faster_divided(loss: Loss, model: Params, examples: Batch) -> bool:
    """Whether a model is evaluated faster in parts, by its operations (measured: benchmarks/FINDINGS.md).

    Args:
        loss: of the model, as a task has it.
        model: what the loss takes.
        examples: of which it is evaluated.
    """
    program = jax.make_jaxpr(lambda model, rows: per_example(loss, model, rows))
    rows = jax.tree.map(lambda a: jax.ShapeDtypeStruct((2, *a.shape[1:]), a.dtype), examples)
    return any(e.primitive.name in _OF_ONE_CORE for e in all_equations(program(model, rows)))


@partial(compiled, static_argnums=(0, 1))
def _values(
    metrics: Metrics, mesh: Mesh, frozen: Params, last: Params, previous: Params, sets: dict[str, Batch]
) -> dict[str, dict[str, Array]]:
    def own_rows(frozen: Params, both: Params, sets: dict[str, Batch]) -> Any:
        def of(rows: Batch) -> Any:
            return of_each(lambda p: on_all(metrics, with_frozen(p, frozen), rows), both)

        return {name: of(rows) for name, rows in sets.items()}

    each = jax.shard_map(
        own_rows, mesh=mesh, in_specs=(P(), P(), P(_EXAMPLES)), out_specs=P(None, _EXAMPLES), check_vma=False
    )
    return each(frozen, both_iterates(last, previous), sets)
