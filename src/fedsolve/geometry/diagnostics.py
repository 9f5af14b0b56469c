"""Diagnostics of a model beyond its metrics: optimality, feasibility, sparsity, rank and recovery."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import jax.numpy as jnp
from jaxtyping import Array

from fedsolve.core import trees
from fedsolve.core.building import number
from fedsolve.core.errors import InvalidInput
from fedsolve.core.trees import chosen_leaves
from fedsolve.core.types import Params, Scalar, converted, module, static
from fedsolve.core.xla.products import singular_values
from fedsolve.geometry.blocks import Blocks, as_blocks
from fedsolve.geometry.regularizer import any_geometry, require, with_lmo, with_prox

__all__ = [
    "Density",
    "Diagnostic",
    "Feasibility",
    "FrankWolfeGap",
    "Objective",
    "Point",
    "ProxGradient",
    "Rank",
    "RecoveryError",
    "Suboptimality",
    "Support",
]

# What a measure is: numbers from a model and from the full objective at it.


@module
class Point:
    """A model, with F = sum_i p_i f_i at it over the training examples that are evaluated.

    Attributes:
        params: the model.
        loss: F, shape ().
        gradient: grad F, shapes of the model; None unless a measure `needs_gradient`.
    """

    params: Params
    loss: Scalar
    gradient: Params


class Diagnostic(ABC):
    """Base class of diagnostics, which compute named numbers at a point.

    Diagnostics are modules: their numbers are leaves."""

    needs_gradient: ClassVar[bool] = False

    @abstractmethod
    def __call__(self, point: Point) -> dict[str, Array]:
        """Compute the diagnostic's values, each of shape ().

        Args:
            point: the model of an evaluation, its gradient and what else is known there.

        Returns:
            Name of a column -> value.
        """


# How far a model is from a solution of min F + psi, or of min F over a set.


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

    constraint: Any = converted(converter=with_lmo)
    needs_gradient = True

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "constraint", require("FrankWolfeGap", self.constraint, "lmo", "a set, such as L1Ball(1.0)")
        )

    def __call__(self, point: Point) -> dict[str, Array]:
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

    constraint: Any = converted(converter=any_geometry)

    def __post_init__(self) -> None:
        object.__setattr__(self, "constraint", as_blocks(self.constraint))

    def __call__(self, point: Point) -> dict[str, Array]:
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

    penalty: Any = converted(converter=any_geometry)

    def __post_init__(self) -> None:
        object.__setattr__(self, "penalty", as_blocks(self.penalty))

    def __call__(self, point: Point) -> dict[str, Array]:
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

    psi: Any = converted(converter=with_prox)
    step: Scalar = number(default=1.0, above=0, name="step of ProxGradient")
    needs_gradient = True

    def __post_init__(self) -> None:
        instead = "one with a prox, such as L1(0.1)"
        object.__setattr__(self, "psi", require("ProxGradient", self.psi, "prox", instead))

    def __call__(self, point: Point) -> dict[str, Array]:
        moved = self.psi.prox(trees.axpy(-self.step, point.gradient, point.params), self.step)
        return {"prox_gradient": trees.norm(trees.sub(point.params, moved)) / self.step}


@module
class Suboptimality(Diagnostic):
    """`suboptimality` = F(w) + psi(w) - optimum, with the optimum of a centralised solution.

    Attributes:
        psi: the penalty; None for none. A set counts nothing here: see `Feasibility`.
        optimum: the smallest value of F + psi.
    """

    psi: Any = converted(converter=any_geometry)
    optimum: Scalar

    def __post_init__(self) -> None:
        object.__setattr__(self, "psi", Blocks(()) if self.psi is None else as_blocks(self.psi))

    def __call__(self, point: Point) -> dict[str, Array]:
        return {"suboptimality": point.loss + self.psi.finite_value(point.params) - self.optimum}


def measures_of(psi: Blocks) -> tuple[Diagnostic, ...]:
    """The diagnostics of a problem min F + psi that the operations of psi allow."""
    sets = any(hasattr(part.psi, "violation") for part in psi.parts)
    diagnostics: list[Diagnostic] = [] if not psi.parts or sets else [Objective(psi)]
    if "prox" in psi.operations and psi.parts:
        diagnostics.append(ProxGradient(psi))
    return (*diagnostics, Feasibility(psi)) if sets else tuple(diagnostics)


# How sparse or low in rank a model is, and how much of a known truth it has found.


def _vector(tree: Params, on: str) -> Array:
    return jnp.concatenate([jnp.ravel(leaf) for leaf in chosen_leaves(tree, on)])


@module
class Density(Diagnostic):
    """`density`: the fraction of entries larger than `zero` in size, on the leaves that `on` matches.

    Attributes:
        zero: entries up to this size count as 0, at least 0.
        on: the end of the leaves' paths, such as `weight`; `*` is all.

    Raises:
        InvalidInput: a negative zero; when a run begins, a pattern that matches no leaf.
    """

    zero: Scalar = number(default=1e-2, at_least=0)
    on: str = static(default="*")

    def __call__(self, point: Point) -> dict[str, Array]:
        # the density, in [0, 1]
        w = _vector(point.params, self.on)
        return {"density": jnp.mean(jnp.abs(w) > self.zero, dtype=w.dtype)}


@module
class Support(Diagnostic):
    """`precision`, `recall` and `f1` of the entries larger than `zero`, against the non-zeros of the true parameters.

    precision = hits / found, recall = hits / true non-zeros, f1 their harmonic mean; 0 where nothing is found.

    Attributes:
        truth: parameters of the model's shapes.
        zero: entries up to this size count as 0; at least 0.
        on: leaves that are compared.

    Raises:
        InvalidInput: a negative zero; when a run begins, a pattern that matches no leaf.
    """

    truth: Params
    zero: Scalar = number(default=1e-2, at_least=0)
    on: str = static(default="*")

    def __call__(self, point: Point) -> dict[str, Array]:
        # the three values, each in [0, 1]
        w = _vector(point.params, self.on)
        selected, true = jnp.abs(w) > self.zero, _vector(self.truth, self.on) != 0
        hits = jnp.sum(selected & true, dtype=w.dtype)
        precision = hits / jnp.maximum(jnp.sum(selected), 1)
        recall = hits / jnp.maximum(jnp.sum(true), 1)
        f1 = 2 * precision * recall / jnp.maximum(precision + recall, 1e-30)
        return {"precision": precision, "recall": recall, "f1": f1.astype(w.dtype)}


@module
class Rank(Diagnostic):
    """`rank`: the number of singular values larger than `zero`, of the one matrix that `on` matches.

    Attributes:
        zero: singular values up to this size count as 0; at least 0.
        on: the end of the matrix's path, such as `weight`.

    Raises:
        InvalidInput: a negative zero; when a run begins, a pattern that does not match one matrix.
    """

    zero: Scalar = number(default=1e-2, at_least=0)
    on: str = static(default="*")

    def __call__(self, point: Point) -> dict[str, Array]:
        matrices = [leaf for leaf in chosen_leaves(point.params, self.on) if leaf.ndim == 2]
        if len(matrices) != 1:
            raise InvalidInput(f"Rank on '{self.on}' matches {len(matrices)} matrices: name one leaf")
        values = singular_values(matrices[0])
        return {"rank": jnp.sum(values > self.zero).astype(values.dtype)}


@module
class RecoveryError(Diagnostic):
    """`recovery_error` = |w - truth| over the leaves that `on` matches (Euclidean).

    Attributes:
        truth: parameters of the model's shapes.
        on: the end of the leaves' paths; `*` is all.
    """

    truth: Params
    on: str = static(default="*")

    def __call__(self, point: Point) -> dict[str, Array]:
        pairs = zip(chosen_leaves(point.params, self.on), chosen_leaves(self.truth, self.on), strict=True)
        return {"recovery_error": jnp.sqrt(sum((jnp.sum((a - b) ** 2) for a, b in pairs), jnp.zeros(())))}
