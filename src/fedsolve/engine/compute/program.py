"""What is static in a compiled run."""

from __future__ import annotations

from dataclasses import dataclass

from jax.sharding import Mesh

from fedsolve.engine.compute.clients import LocalWork
from fedsolve.engine.compute.groups import Group
from fedsolve.engine.compute.sharding.state_sharding import CLIENT_AXIS, StateSharding

MODEL_AXIS = "model"
"""Name of a mesh's axis: what shares each model."""


@dataclass(frozen=True)
class Program:
    """All that is static in a compiled run; equal programs are compiled once.

    Attributes:
        work: local work.
        chunk: clients trained side by side (vmapped); 1 trains one after another.
        capacity: rounds of the longest call, the length of the logs.
        mesh: the devices that share each cohort, and those that share each model where it has that axis.
        variants: forms that a client's message may have (see `fedsolve.wire.variants`).
        groups: clients by size, from the longest to the shortest; none if all are trained alike.
        state_sharding: which device keeps which client's state; None where each keeps all.
        on_one_core: whether cores of a CPU do not share its loops (see `layout.is_on_one_core`).
    """

    work: LocalWork
    chunk: int
    capacity: int
    mesh: Mesh
    variants: int = 1
    groups: tuple[Group, ...] = ()
    state_sharding: StateSharding | None = None
    on_one_core: bool = False

    @property
    def num_shards(self) -> int:
        """How many share each cohort."""
        return self.mesh.shape[CLIENT_AXIS]

    @property
    def is_sharded(self) -> bool:
        """Whether models lie in parts on several devices."""
        return MODEL_AXIS in self.mesh.shape
