"""What a method asks of a penalty or a set: the operations that it needs, and a start that lies in the set."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import jax
from jax.core import Tracer

from fedsolve.core.errors import InvalidInput
from fedsolve.core.types import Params
from fedsolve.geometry.blocks import Blocks, Geometry, as_blocks

if TYPE_CHECKING:  # a type checker cannot know the operations of blocks: those that all parts have

    class WithProx(Protocol):
        """A penalty or a set with a prox."""

        def prox(self, w: Any, step: Any, /) -> Any:
            """argmin_u step psi(u) + |u - w|^2 / 2."""

    class WithLmo(Protocol):
        """A set with a linear minimisation oracle."""

        def lmo(self, g: Any, /) -> Any:
            """A minimiser of <g, s> over the set."""

    class WithSubgradient(Protocol):
        """A penalty with a subgradient."""

        def subgradient(self, w: Any, /) -> Any:
            """One subgradient at w."""
else:
    WithProx = WithLmo = WithSubgradient = Geometry


# What fields take (`given(converter=...)`): type checkers refuse other arguments, and know what is kept as `Any`.
def with_prox(psi: WithProx) -> Any:
    """A penalty or set with a prox, as it is."""
    return psi


def with_lmo(psi: WithLmo) -> Any:
    """A set with a linear minimisation oracle, as it is."""
    return psi


def with_subgradient(psi: WithSubgradient) -> Any:
    """A penalty with a subgradient, as it is."""
    return psi


def any_geometry(psi: Geometry | None) -> Any:
    """Any penalty or set, as it is."""
    return psi


def require(who: str, psi: Any, operation: str, instead: str) -> Blocks:
    """Blocks that support an operation.

    Raises:
        InvalidInput: they lack it; names the part, what it has and what would work instead.
    """
    blocks = as_blocks(psi)
    for part in blocks.parts:
        if operation not in part.psi.operations:
            raise InvalidInput(
                f"{who} needs the operation '{operation}', which {type(part.psi).__name__} lacks (it has "
                f"{', '.join(part.psi.operations)}): use {instead}"
            )
    return blocks


def check_start(who: str, constraint: Blocks, params: Params) -> None:
    """Whether a method can start from a model: it must lie in the set.

    Raises:
        InvalidInput: it does not; offers the projection where there is one.
    """
    if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves((params, constraint))):
        return
    outside = float(constraint.violation(params))
    if outside > 1e-6:
        remedy = (
            "start='projected' begins at the nearest point of the set"
            if "project" in constraint.operations
            else "begin at a point of it, such as constraint.lmo(params)"
        )
        raise InvalidInput(f"{who}: the initial model lies outside the set by {outside:.3g}: {remedy}")
