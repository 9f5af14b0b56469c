"""How far a model is from a solution of min F + psi, or of min F over a set."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

from fedsolve.core import trees
from fedsolve.core.errors import check_range
from fedsolve.core.types import Scalar, given, module
from fedsolve.geometry.blocks import Blocks, as_blocks
from fedsolve.geometry.diagnostics.diagnostic import Diagnostic, Point
from fedsolve.geometry.requirements import any_geometry, require, with_lmo, with_prox


@module
class FrankWolfeGap(Diagnostic):
    """`gap` = max over the set of <grad F(w), w - s> (Jaggi 2013).

    A certificate: for a convex F and a feasible w, F(w) - min F <= gap. For any F it is 0 at a feasible w
    only where w is stationary. Outside the set it can be negative and certifies nothing.

    Attributes:
        constraint: the set, with a linear minimisation (`lmo`).

    Raises:
        InvalidInput: a set without one.
    """

    constraint: Any = given(converter=with_lmo)
    needs_gradient = True

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "constraint", require("FrankWolfeGap", self.constraint, "lmo", "a set, such as L1Ball(1.0)")
        )

    def __call__(self, point: Point) -> dict[str, Array]:
        """The gap at w."""
        return {"gap": self.constraint.gap(point.params, point.gradient)}


@module
class Feasibility(Diagnostic):
    """`infeasibility`: by how much w violates the set, in the units of its bound; with a projection also
    `distance`, the Euclidean distance to the set.

    Attributes:
        constraint: the set, or sets on leaves.

    Raises:
        InvalidInput: it is no set of `fedsolve.geometry`.
    """

    constraint: Any = given(converter=any_geometry)

    def __post_init__(self) -> None:
        object.__setattr__(self, "constraint", as_blocks(self.constraint))

    def __call__(self, point: Point) -> dict[str, Array]:
        """The values, 0 inside the set."""
        w = point.params
        measures = {"infeasibility": jnp.asarray(self.constraint.violation(w))}
        if "project" in self.constraint.operations:
            measures["distance"] = trees.norm(trees.sub(w, self.constraint.project(w)))
        return measures


@module
class Objective(Diagnostic):
    """`objective` = F(w) + psi(w).

    Attributes:
        penalty: psi, or penalties on leaves; a set counts 0 inside and infinity outside.

    Raises:
        InvalidInput: it is no penalty of `fedsolve.geometry`.
    """

    penalty: Any = given(converter=any_geometry)

    def __post_init__(self) -> None:
        object.__setattr__(self, "penalty", as_blocks(self.penalty))

    def __call__(self, point: Point) -> dict[str, Array]:
        """The value at w."""
        return {"objective": point.loss + self.penalty.value(point.params)}


@module
class ProxGradient(Diagnostic):
    """`prox_gradient` = |w - prox_{t psi}(w - t grad F(w))| / t: 0 exactly at the minimisers of convex F + psi.

    Attributes:
        psi: the penalty or set.
        step: t, > 0.

    Raises:
        InvalidInput: a psi without a prox, a step that is not positive.
    """

    psi: Any = given(converter=with_prox)
    step: Scalar = 1.0
    needs_gradient = True

    def __post_init__(self) -> None:
        check_range("step of ProxGradient", self.step, above=0)
        instead = "one with a prox, such as L1(0.1)"
        object.__setattr__(self, "psi", require("ProxGradient", self.psi, "prox", instead))

    def __call__(self, point: Point) -> dict[str, Array]:
        """The norm over the whole vector."""
        moved = self.psi.prox(trees.axpy(-self.step, point.gradient, point.params), self.step)
        return {"prox_gradient": trees.norm(trees.sub(point.params, moved)) / self.step}


@module
class Suboptimality(Diagnostic):
    """`suboptimality` = F(w) + psi(w) - optimum, with the optimum of a centralised solution.

    Attributes:
        psi: the penalty; None for none. A set counts nothing here: see `Feasibility`.
        optimum: the smallest value of F + psi.
    """

    psi: Any = given(converter=any_geometry)
    optimum: Scalar

    def __post_init__(self) -> None:
        object.__setattr__(self, "psi", Blocks(()) if self.psi is None else as_blocks(self.psi))

    def __call__(self, point: Point) -> dict[str, Array]:
        """The difference at w."""
        return {"suboptimality": point.loss + self.psi.finite_value(point.params) - self.optimum}


def measures_of(psi: Blocks) -> tuple[Diagnostic, ...]:
    """The diagnostics of a problem min F + psi that the operations of psi allow."""
    sets = any(hasattr(part.psi, "violation") for part in psi.parts)
    diagnostics: list[Diagnostic] = [] if not psi.parts or sets else [Objective(psi)]
    if "prox" in psi.operations and psi.parts:
        diagnostics.append(ProxGradient(psi))
    return (*diagnostics, Feasibility(psi)) if sets else tuple(diagnostics)
