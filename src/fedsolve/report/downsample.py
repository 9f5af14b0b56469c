"""Fewer points where a plot has no room for more: those that are kept span what the others did."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def rows_to_draw(columns: Sequence[np.ndarray], most: int) -> np.ndarray:
    """The rows to draw of columns of one length, shape (rows,), ascending: all, or about `most` where there are more.

    Of every stretch of rows each column keeps its least and its largest value, so that curves lose no peak.

    >>> rows_to_draw([np.array([0.0, 9.0, 1.0, 1.0, 1.0, -5.0, 1.0, 1.0])], 4).tolist()
    [0, 1, 4, 5, 7]
    """
    rows = len(columns[0])
    if rows <= most:
        return np.arange(rows)
    stretches = max(1, most // (2 * len(columns)))
    rows_drawn = {0, rows - 1}
    for stretch in np.array_split(np.arange(rows), stretches):
        for column in columns:
            numbers = stretch[np.isfinite(column[stretch])]
            if len(numbers):
                rows_drawn |= {int(numbers[column[numbers].argmin()]), int(numbers[column[numbers].argmax()])}
    return np.array(sorted(rows_drawn))
