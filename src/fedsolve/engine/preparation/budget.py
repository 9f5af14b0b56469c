"""Fourth step: the memory that a run needs at least, compared with what is free before anything is compiled."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import numpy as np

from fedsolve.core import trees
from fedsolve.engine.checks.sizes import Need, check_memory
from fedsolve.engine.compute.processes import own_devices
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
    stream = plan.stream
    slots = placed.clients.population if stream is None else stream.num_slots
    needed = _needs(placed, plan, slots)
    examples = trees.nbytes(placed.clients.examples) if stream is None else 0
    return Budget(needed, examples, slots, check_memory(needed, examples))


def _needs(placed: Placed, plan: Plan, slots: int) -> tuple[Need, ...]:
    """What a run needs beside the clients that lie on its first device."""
    program, method, stream = plan.program, plan.algorithm, plan.stream
    # CPU devices share one memory
    devices = len(own_devices(program.mesh)) if jax.default_backend() == "cpu" else 1
    parts = program.mesh.size // program.num_shards
    server = trees.nbytes(jax.eval_shape(method.init, placed.params))
    model, chunk = trees.nbytes(placed.params), max([program.chunk, *(g.chunk for g in program.groups)])
    smaller = "a smaller model, or one in parts on several devices (mesh)"
    if trees.dtype_of(placed.params) == np.float64:
        smaller += ", or dtype = 'float32'"
    side_by_side = devices * chunk * 2 * model // parts  # where each stands, and its gradient
    needs = [
        Need("the server's state and the model", devices * (server + model) // parts, smaller),
        Need(f"{chunk:,} clients side by side", side_by_side, "a smaller chunk" if chunk > 1 else smaller),
    ]
    if stream is None:
        rows = devices * slots if program.state_sharding is None else program.state_sharding.rows
        states = rows * placed.state_bytes // parts
        examples, sharing = trees.nbytes(placed.clients.examples), len(own_devices(program.mesh))
        on_others = (devices - 1) * examples
        if sharing > 1:
            on_others += devices * examples // sharing  # in parts for evaluation, of some models
        needs += [
            Need("clients' states", states, "residency = 'stream', or a method that keeps none"),
            Need("further devices' examples", on_others, "residency = 'stream', or devices = 1"),
        ]
    else:
        needs.append(Need("the clients of the next rounds", stream.needed, "fewer clients a round"))
    if method.traits.reduction is not None:
        what = f"the messages of {plan.cohort:,} clients, which {devices:,} devices keep"
        needs.append(Need(what, devices * plan.cohort * min(plan.traffic.up), "fewer clients a round"))
    return tuple(needs)
