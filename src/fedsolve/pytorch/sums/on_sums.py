"""A loss or a metric of PyTorch that follows from sums over rows, such as a mean with weights or without padding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch.utils._pytree as pytree
from jaxtyping import Array
from torch import Tensor

from fedsolve.pytorch.sums.additive import Additive
from fedsolve.pytorch.translation.dtypes import array_of
from fedsolve.pytorch.translation.model import OnRows

_SETS = 8  # pairs of weighted sets of rows on which averages are compared
_ALIKE = 1e-6  # relative: denominators such as sum + 1e-8 are taken for sums


class NoMean(Exception):
    """A value that changes when every example is given twice, such as a sum."""


class OnSums:
    """A loss or a metric, (outputs, targets) -> tensor, as what each example adds and what the sums make.

    Args:
        rows: the function by rows.
        outputs, targets: an example batch, as tensors.

    Attributes:
        is_mean: whether the value is the mean of the rows' own values: then `rows` is enough.
        size: sums -> how much a set of examples counts for where the values of several sets are averaged; None where
            no such average is the value of all.

    Raises:
        NotTranslatable: a value that does not follow from sums over the rows.
        NoMean: one that changes when every example is given twice.
    """

    def __init__(self, rows: OnRows, outputs: Any, targets: Any) -> None:
        self._rows, self._additive = rows, Additive(rows.program)
        self.digest = "sums", *rows.digest
        self.is_mean, self.size = self._additive.is_mean, None
        if not self.is_mean:
            with jax.enable_x64(True):
                self.size = self._compared(*wide(outputs, targets))

    def __call__(self, outputs: Any, targets: Any) -> Array:
        """What each example adds, shape (n, k)."""
        return self._rows.by_row(self._additive.row, outputs, targets)

    def of_sums(self, sums: Array) -> Array:
        """The value, shape (), from the sums of what examples add, shape (k,); NaN where nothing counts."""
        return self._additive.value(self._rows.held(sums.dtype), sums)

    def _compared(self, outputs: Any, targets: Any) -> Callable[[Array], Array] | None:
        """What `size` is, by the values of weighted sets of rows."""
        each, of_sums = self(outputs, targets), jax.jit(jax.vmap(self.of_sums))
        whole = each.sum(0)
        once, twice = np.asarray(of_sums(jnp.stack([whole, 2 * whole])))
        if np.isfinite(once) and abs(twice - once) > 1e-3 * max(abs(once), 1e-3):
            raise NoMean(f"{once:.6g}, with each of them twice {twice:.6g}")
        weights = np.random.default_rng(0).uniform(size=(2, _SETS, len(each)))
        sums = weights @ np.asarray(each)
        one, other, both = (np.asarray(of_sums(jnp.asarray(s))) for s in (*sums, sums.sum(0)))
        columns = [c for c in (*range(1, each.shape[1]), 0) if _averages(one, other, both, sums[:, :, c])]
        return _Column(columns[0]) if columns else None


class _Column:
    """One of the sums."""

    def __init__(self, place: int) -> None:
        self.place = place

    def __call__(self, sums: Array) -> Array:
        return sums[..., self.place]


def _averages(one: np.ndarray, other: np.ndarray, both: np.ndarray, sizes: np.ndarray) -> bool:
    """Whether the values of sets together are the averages of theirs, each counting for its size."""
    total = sizes.sum(0)
    if not (np.isfinite(both).all() and (total > 0).all()):
        return False
    return np.allclose((one * sizes[0] + other * sizes[1]) / total, both, rtol=_ALIKE, atol=_ALIKE)


def wide(outputs: Any, targets: Any) -> tuple[Any, Any]:
    """Outputs, flat, and targets as arrays, of floating numbers in float64; one output alone without a tuple."""

    def array(tensor: Tensor) -> np.ndarray:
        own = array_of(tensor)
        return own.astype(np.float64) if np.issubdtype(own.dtype, np.floating) else own

    flat, targets = pytree.tree_map_only(Tensor, array, (pytree.tree_leaves(outputs), targets))
    return flat[0] if len(flat) == 1 else tuple(flat), targets
