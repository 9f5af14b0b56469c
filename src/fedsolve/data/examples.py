"""Containers of examples, which tasks, losses and stored folders share."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np

from fedsolve.core.errors import InvalidInput, check_integer, check_number


class Examples(NamedTuple):
    """Inputs and targets of supervised examples: x of shape (n, ...), y of shape (n,) or (n, ...).

    Attributes:
        x: inputs, shape (n, ...).
        y: targets, shape (n,) or (n, ...).
    """

    x: Any
    y: Any

    def hold_out(self, share: float) -> tuple[Examples, Examples]:
        """Hold out a random fraction of the examples, of each class alike where `y` has integers or text.

        Args:
            share: of each class, in (0, 1), rounded to whole examples; one at least in both parts if it has two.

        Returns:
            The examples to train on, and those held out, as arrays; the same each time.

        Raises:
            InvalidInput: a share outside (0, 1), fields of different lengths, or no class with two examples.
        """
        check_number("share", share, above=0, below=1)
        if lengths := {np.shape(field)[0] for field in jax.tree.leaves(self.x)} - {len(self.y)}:
            raise InvalidInput(
                f"x has {min(lengths):,} examples and y {len(self.y):,}: give one label for each"
            )
        draw, y = np.random.default_rng(0), np.asarray(self.y)
        strata = np.zeros(len(y), int) if y.dtype.kind == "f" else np.unique(y, return_inverse=True)[1]
        held = np.zeros(len(y), bool)
        for label in range(strata.max(initial=-1) + 1):
            rows = draw.permutation(np.flatnonzero(strata == label))
            held[rows[: min(max(round(share * len(rows)), 1), len(rows) - 1)]] = True
        if not held.any():
            raise InvalidInput(f"{len(y)} examples have none to hold out: give a class two or more")
        return self._part(~held), self._part(held)

    def _part(self, rows: np.ndarray) -> Examples:
        return Examples(jax.tree.map(lambda field: np.asarray(field)[rows], self.x), np.asarray(self.y)[rows])


class SparseRows(NamedTuple):
    """Sparse rows: the non-zero entries of each row, padded with zeros to the same number of entries.

    They stand for x of `fedsolve.tasks.SparseLinear` and for y of tags, on disk as on the device.

    Attributes:
        indices: columns of the entries, shape (n, entries), integers from 0.
        values: their numbers, shape (n, entries).
    """

    indices: Any
    values: Any

    @classmethod
    def from_csr(cls, matrix: Any, entries: int) -> SparseRows:
        """Make sparse rows from a matrix in compressed form, such as SciPy's `csr_matrix`.

        Args:
            matrix: with `indptr`, `indices` and `data`; an index stands once in a row.
            entries: of a row, at least 1 and as many as the longest has.

        Returns:
            `indices` and `values` of shape (rows, entries); shorter rows are filled up with entries of value 0.

        Raises:
            InvalidInput: a longer row, or no such matrix.
        """
        check_integer("entries", entries, 1)
        if (kind := getattr(matrix, "format", "csr")) != "csr":
            raise InvalidInput(f"matrix is in SciPy's format {kind}: give matrix.tocsr()")
        try:
            indptr, columns, data = (np.asarray(getattr(matrix, n)) for n in ("indptr", "indices", "data"))
        except AttributeError as error:
            raise InvalidInput(f"matrix is not a CSR matrix ({error}): give SciPy's csr_matrix") from None
        if data.dtype.kind not in "biuf" or not np.isfinite(data).all():
            raise InvalidInput(
                f"matrix has entries of type {data.dtype} that are no finite numbers: clean them"
            )
        lengths = np.diff(indptr)
        if len(lengths) and lengths.max() > entries:
            row = int(np.argmax(lengths > entries))
            raise InvalidInput(
                f"row {row} has {lengths[row]} entries, more than entries = {entries}: give more"
            )
        is_entry = np.arange(entries) < lengths[:, None]
        indices, values = np.zeros(is_entry.shape, columns.dtype), np.zeros(is_entry.shape, data.dtype)
        indices[is_entry], values[is_entry] = columns, data
        return cls(indices, values)


def form_text(tree: Any) -> str:
    if isinstance(tree, dict):
        return f"a dictionary of {', '.join(map(str, tree))}"
    if isinstance(tree, SparseRows):
        return "fs.SparseRows"
    if isinstance(tree, tuple | list):
        return f"a {type(tree).__name__} of {len(tree)} fields"
    return "one array"
