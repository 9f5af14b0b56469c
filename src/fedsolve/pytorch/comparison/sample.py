"""Which examples of a data set show the most of a module and its loss."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

_LOOK = 2**17  # rows of inputs that are looked at, evenly spaced; of targets 32 times as many


def telling_rows(x: Any, y: Any, least: int, most: int) -> np.ndarray:
    """Numbers of the rows to try a module on, the most telling first, shape (least .. most,).

    Rows with each negative target (ignored ones are), with the most and the fewest of them, with every value of integer
    targets, the rarest first, with the greatest and smallest numbers, and the longest and shortest sequences as far as
    zeros and negative numbers fill them up; then rows evenly spaced. Of a few rows some come again.

    Args:
        x, y: inputs and targets, pytrees of arrays of shape (rows, ...).
        least, most: how many numbers to give; up to `most` only as long as rows tell something.
    """
    total = len(jax.tree.leaves(y)[0])
    found = dict.fromkeys(int(row) for row in _row_keys(x, y))
    chosen = list(found)[:most]
    spread = np.linspace(0, total - 1, least).astype(int)
    chosen += [int(row) for row in spread if row not in found]
    chosen = chosen[: max(least, min(len(found), most))]
    return np.resize(np.array(chosen), max(least, len(chosen)))


def _row_keys(x: Any, y: Any) -> Iterator[int]:
    for leaf in jax.tree.leaves(y):
        yield from _of_leaf(np.asarray(leaf), 32 * _LOOK, every=True)
    for leaf in jax.tree.leaves(x):
        yield from _of_leaf(np.asarray(leaf), _LOOK, every=False)


def _of_leaf(leaf: np.ndarray, look: int, every: bool) -> Iterator[int]:
    """Telling rows by one array; `every`: with every value of integers."""
    at = np.arange(len(leaf)) if len(leaf) <= look else np.linspace(0, len(leaf) - 1, look).astype(int)
    flat = np.asarray(leaf[at]).reshape(len(at), -1)
    if not flat.shape[1]:
        return
    if np.issubdtype(flat.dtype, np.integer):
        missing, zeros = np.sum(flat < 0, axis=1), np.sum(flat == 0, axis=1)
        if every:
            yield from at[_first_of_each(flat, flat < 0)]
        for count in (missing, zeros):
            yield from at[[np.argmax(count), np.argmin(count)]]
        yield from at[[np.argmax(flat.max(1)), np.argmin(flat.min(1))]]
        if every:
            yield from at[_first_of_each(flat, flat >= 0)]
    elif np.issubdtype(flat.dtype, np.floating):
        yield from at[[np.nanargmax(flat.max(1)), np.nanargmin(flat.min(1))]]


def _first_of_each(flat: np.ndarray, where: np.ndarray) -> list[int]:
    """A row with each value of those entries, the rarest first, none for what such a row shows already."""
    rows, columns = np.nonzero(where)
    values, first, counts = np.unique(flat[rows, columns], return_index=True, return_counts=True)
    chosen: list[int] = []
    shown: set[int] = set()
    for i in np.argsort(counts, kind="stable"):
        if int(values[i]) not in shown:
            chosen.append(int(rows[first[i]]))
            shown |= set(flat[chosen[-1]].tolist())
    return chosen
