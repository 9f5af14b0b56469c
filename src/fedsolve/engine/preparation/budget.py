"""Fourth step: the memory that a run needs at least, compared with what is free before anything is compiled."""

from __future__ import annotations

from dataclasses import dataclass

import jax

from fedsolve.core import trees
from fedsolve.engine.checks.sizes import Need, check_memory, needs
from fedsolve.engine.preparation.placed import Placed
from fedsolve.engine.preparation.plan import Plan


@dataclass(frozen=True)
class Budget:
    """Memory of a run.

    Attributes:
        needs: what is not in memory yet.
        examples: bytes of the examples that are, on the first device.
        slots: clients whose states lie on the devices.
        remark: what is to be said of it, '' if it is little.
    """

    needs: tuple[Need, ...]
    examples: int
    slots: int
    remark: str


def budget(placed: Placed, plan: Plan) -> Budget:
    """The memory that a run needs at least.

    Raises:
        InvalidInput: less is free; the largest part is named with its remedy.
    """
    stream, method = plan.stream, plan.algorithm
    slots = placed.clients.population if stream is None else stream.num_slots
    server = jax.eval_shape(method.init, placed.params)
    needed = needs(
        plan.program,
        placed.clients,
        stream,
        trees.nbytes(server),
        slots * placed.state_bytes,
        placed.params,
        plan.cohort,
        None if method.traits.reduction is None else min(plan.traffic.up),
    )
    examples = trees.nbytes(placed.clients.examples) if stream is None else 0
    return Budget(needed, examples, slots, check_memory(needed, examples))
