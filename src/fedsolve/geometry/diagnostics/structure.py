"""How sparse or low in rank a model is, and how much of a known truth it has found."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array

from fedsolve.core.errors import InvalidInput, check_range
from fedsolve.core.trees import chosen_leaves
from fedsolve.core.types import Params, Scalar, module, static
from fedsolve.core.xla.products import singular_values
from fedsolve.geometry.diagnostics.diagnostic import Diagnostic, Point


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

    zero: Scalar = 1e-2
    on: str = static(default="*")

    def __post_init__(self) -> None:
        check_range("zero", self.zero, at_least=0)

    def __call__(self, point: Point) -> dict[str, Array]:
        """The density, in [0, 1]."""
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
    zero: Scalar = 1e-2
    on: str = static(default="*")

    def __post_init__(self) -> None:
        check_range("zero", self.zero, at_least=0)

    def __call__(self, point: Point) -> dict[str, Array]:
        """The three values, each in [0, 1]."""
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

    zero: Scalar = 1e-2
    on: str = static(default="*")

    def __post_init__(self) -> None:
        check_range("zero", self.zero, at_least=0)

    def __call__(self, point: Point) -> dict[str, Array]:
        """The rank, a whole number as a float."""
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
        """The error, in the units of the parameters."""
        pairs = zip(chosen_leaves(point.params, self.on), chosen_leaves(self.truth, self.on), strict=True)
        return {"recovery_error": jnp.sqrt(sum((jnp.sum((a - b) ** 2) for a, b in pairs), jnp.zeros(())))}
