"""When the rows of sites leave observation, and the grid of times that sites have in common."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedsolve.core.errors import InvalidInput
from fedsolve.data.column_replies import merge_bins
from fedsolve.stats.design import Design, check_effective_rows
from fedsolve.stats.questions import Question, Sites, SiteTable, Sums

_MOST_TIMES = 2**16
_BITS, _BITS_OF_BINS, _SPLIT = 48, 24, 6  # of the numbers of times, and those asked for in a round
_ROUNDED = 16  # last bits of a float64: times that differ in these alone, to 1 in 10^11, are one

_OTHER = InvalidInput("the question is none that fedsolve asks")


@dataclass(frozen=True)
class Times(Question):
    """When rows leave, and whether with an event; as a question, how many rows do so, and when.

    Times have numbers, in order: of a bin, or the first bits of the time as a float64. A bin in which fewer than a
    site's `min_rows` of the rows that count leave joins the next.
    """

    design: Design  # whose rows count
    time: str  # time, event, weights: columns; '' for weights of 1
    event: str
    weights: str
    interval: float  # the width of bins, at whose ends rows leave; 0 for their own times
    counted: str  # the rows whose times sites tell, "all", "events" or ''
    # what the numbers of the times that are asked for begin with, before their last `shift` bits
    cells: tuple[int, ...] = ()
    shift: int = 0

    @property
    def ANALYSIS(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        # an owner who allows a model does not allow that times are told for a curve
        return "kaplan_meier" if self.counted == "all" else "cox"

    def sums(self, table: SiteTable) -> Sums:
        # numbers of rows, rows left out for each of `columns`, and how many leave in each part of each cell
        keys, event, weights, moved = self.of(table)
        found = {"rows": len(event), "events": event.sum(), "with_events": event.any(), "moved": moved}
        found |= {"weight": weights @ event, "at_zero": event @ (keys == 0.0)}
        found["left_out"] = self.design.rows(table)[1]
        if self.cells and not self.counted:
            raise _OTHER
        parts = (keys[event] if self.counted == "events" else keys) >> max(self.shift - _SPLIT, 0)
        parts = parts[np.isin(parts >> _SPLIT, self.cells)]
        place = (np.searchsorted(self.cells, parts >> _SPLIT) << _SPLIT) + parts % 2**_SPLIT
        found["leaving"] = np.bincount(place, minlength=len(self.cells) << _SPLIT)
        return {name: np.asarray(value, np.float64) for name, value in found.items()}

    def of(self, table: SiteTable) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
        """Each row's number of its time, whether it is an event, and weight, (rows,); how many leave later than so."""
        rows = replace(self.design, names=(), products=(), shift=(), scale=(), needed=self.columns)
        return table.cached(replace(self, design=rows, cells=(), shift=0), lambda: self._of(table))

    def _of(self, table: SiteTable) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
        rows = self.design.rows(table)[0]
        time, event = np.abs(table.numbers(self.time)[rows]), table.numbers(self.event)[rows]
        if wrong := int((~np.isfinite(time) | (table.numbers(self.time)[rows] < 0)).sum()):
            raise InvalidInput(f"column {self.time}: {wrong:,} times are negative or infinite")
        if wrong := int(((event != 0) & (event != 1)).sum()):
            raise InvalidInput(f"column {self.event}: {wrong:,} rows are not 0 or 1: recode an event as 1")
        check_effective_rows(table, "the event", event)
        weights = table.numbers(self.weights)[rows] if self.weights else np.ones(len(rows))
        if not ((weights > 0) & np.isfinite(weights)).all():
            raise InvalidInput(f"weights {self.weights} must be greater than 0 and finite")
        check_effective_rows(table, "the weight", weights)
        if not self.interval:
            if self.counted and table.min_rows > 1:
                raise InvalidInput(f"it tells no single times (min_rows {table.min_rows}): give an interval")
            return (time.view(np.int64) + (1 << _ROUNDED - 1)) >> _ROUNDED, event == 1, weights, 0
        if (time > self.interval * 2**_BITS_OF_BINS).any():
            raise InvalidInput(f"interval = {self.interval:g} is too short for times in column {self.time}")
        # an end that rounding has moved is in its bin
        bins = np.ceil(time / self.interval - 1e-9).astype(np.int64)
        joined = join_sparse(bins, event if self.counted == "events" else np.ones(len(bins)), table.min_rows)
        return joined, event == 1, weights, int((joined > bins).sum())

    def as_times(self, keys: np.ndarray) -> np.ndarray:
        times = keys * self.interval if self.interval else (keys << _ROUNDED).view(np.float64)
        return np.array([float(f"{time:.10g}") for time in times.tolist()])


@dataclass(frozen=True)
class OfTimes(Question):
    """A question about the rows of `times`, of one analysis with it."""

    times: Times

    def __post_init__(self) -> None:
        # more sums with powers of log time would tell single rows, as would those at times that a site tells to nobody
        if bool(getattr(self, "grid", ())) != bool(self.times.counted) or getattr(self, "powers", 0) > 2:
            raise _OTHER

    @property
    def design(self) -> Design:
        return self.times.design


def join_sparse(bins: np.ndarray, counted: np.ndarray, min_rows: int) -> np.ndarray:
    """Each row's bin after those with fewer than `min_rows` counted rows have joined the next, the rest the last.

    A row beside these bins is at risk as if it left in the one before, or at no time, -1: it tells no time of its own.

    >>> join_sparse(np.array([1, 1, 2, 4, 4, 5]), np.ones(6), 2)
    array([1, 1, 5, 5, 5, 5])
    """
    held, place = np.unique(bins, return_inverse=True)
    if min_rows <= 1 or not counted.any():
        return bins
    counts = np.bincount(place, counted).astype(np.int64)
    edges, rows = merge_bins(np.arange(len(held) + 1.0), counts, min_rows)
    ends, has_rows = np.asarray(edges).astype(np.int64), np.append(rows, 0) > 0
    last = held[ends[1:][has_rows[:-1]] - 1]
    inside = has_rows[np.searchsorted(ends, place, side="right") - 1]
    index = np.where(inside, np.searchsorted(last, bins), np.searchsorted(last, bins, side="right") - 1)
    return np.append(last, -1)[index]


def common_grid(sites: Sites, times: Times) -> np.ndarray:
    """The numbers of the times at which the rows that `times` counts leave over all sites, in order."""
    # Bit by bit: in each round sites say how many rows leave in each part of the cells in which some do.
    cells = np.zeros(1, np.int64)
    for shift in range(_BITS_OF_BINS + _SPLIT if times.interval else _BITS, 0, -_SPLIT):
        found = sites.sums(replace(times, cells=tuple(cells.tolist()), shift=shift))
        parts = np.flatnonzero(found["leaving"] > 0.5)
        cells = (cells[parts >> _SPLIT] << _SPLIT) + parts % 2**_SPLIT
        if not 0 < len(cells) <= _MOST_TIMES:
            raise InvalidInput(f"{len(cells):,} times are not 1 to {_MOST_TIMES:,}: give a longer interval")
    return cells


def at_or_after(counts: np.ndarray) -> np.ndarray:
    # along the first axis, over all who are at risk at each time
    return np.cumsum(counts[::-1], axis=0)[::-1]


def about(sites: Sites, times: Times, found: Sums) -> dict[str, Any]:
    moved = f"{found['moved']:,.0f} rows leave in a later bin than their own, which has too few (min_rows)"
    return sites.about(times.columns, found, (moved,) * bool(found["moved"] > 0.5))
