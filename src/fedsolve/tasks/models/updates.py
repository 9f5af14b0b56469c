"""Fine-tuning by updates: matrices W0 + D of a model that stays as it is, D any matrix or LoRA's product of two."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from fedsolve.core.errors import InvalidInput, check_integer
from fedsolve.core.trees import matching, named_leaves
from fedsolve.core.types import Params


class Factors(NamedTuple):
    """The low-rank factors of LoRA, D = up down (Hu et al. 2022, with alpha = r: no further scale).

    Attributes:
        up: their B, (out, rank), zeros at first.
        down: their A, (rank, in).
    """

    up: Any
    down: Any


class UpdatedParams(NamedTuple):
    """Parameters of `Updated`.

    Attributes:
        base: the model as it was given.
        updates: path of a matrix of `base` -> D, or `Factors`.
    """

    base: Any
    updates: Mapping[str, Any]


@dataclass(frozen=True)
class Updated:
    """A model with matrices W0 + D and trainable updates D, which start at zero.

    A mean of D over clients is what its product with an input needs: it averages exactly. A mean of factors is not: the
    product of means is not the mean of products.

    Attributes:
        model: (params, x) -> outputs.
        patterns: which matrices, by the ends of their paths as `fedsolve.geometry` takes them.
        rank: of LoRA's factors, at least 1; None for whole matrices D.

    Raises:
        InvalidInput: a rank that is no integer from 1.
    """

    model: Any
    patterns: tuple[str, ...]
    rank: int | None = None

    def __post_init__(self) -> None:
        check_integer("rank", self.rank, 1, none="whole matrices")

    def start(self, key: Array, base: Params) -> UpdatedParams:
        """Make the model with updates of 0: D = 0, or up = 0 and down uniform within 1 / sqrt(in).

        Args:
            key: for the factors' random halves.
            base: the model's own parameters, W0 among them.

        Returns:
            Parameters with `base` and `updates`.

        Raises:
            InvalidInput: a pattern that matches no leaf, or one that is no matrix.
        """
        paths, leaves = named_leaves(base)
        updates = {}
        for pattern in self.patterns:
            matched = matching(paths, pattern)
            if not matched:
                raise InvalidInput(
                    f"no leaf of the model is called '{pattern}'; it has {', '.join(paths[:5])} ..."
                )
            for i in matched:
                if jnp.ndim(leaves[i]) != 2:
                    raise InvalidInput(
                        f"{paths[i]} has shape {jnp.shape(leaves[i])}: updates are of matrices"
                    )
                updates[paths[i]] = self._zero(jax.random.fold_in(key, i), leaves[i])
        return UpdatedParams(base, updates)

    def _zero(self, key: Array, matrix: Any) -> Any:
        out, inputs = matrix.shape
        dtype = jax.dtypes.canonicalize_dtype(matrix.dtype)
        if self.rank is None:
            return jnp.zeros((out, inputs), dtype)
        bound = inputs**-0.5
        down = jax.random.uniform(key, (self.rank, inputs), dtype, -bound, bound)
        return Factors(jnp.zeros((out, self.rank), dtype), down)

    def merged(self, params: UpdatedParams) -> Any:
        """The model's parameters with W0 + D as matrices.

        Args:
            params: with `base` and `updates`.

        Returns:
            A pytree of the structure of `base`.
        """
        paths, leaves = named_leaves(params.base)
        for path, update in params.updates.items():
            i = paths.index(path)
            leaves[i] = leaves[i] + (update.up @ update.down if isinstance(update, Factors) else update)
        return jax.tree.structure(params.base).unflatten(leaves)

    def __call__(self, params: UpdatedParams, x: Any) -> Array:
        """The model's outputs at W0 + D."""
        return self.model(self.merged(params), x)
