"""Estimates with their standard errors, as a table in a terminal, a notebook and LaTeX, and as a data frame."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import chdtrc, ndtr, ndtri, stdtr, stdtrit

from fedsolve.core.errors import InvalidInput, check_known, check_number, check_path
from fedsolve.folders.sealed import LARGEST, unsealed_values
from fedsolve.folders.untrusted import MALFORMED, read_bytes
from fedsolve.report.style import show_number
from fedsolve.report.table import Cell, ResultTable
from fedsolve.results.columns import frame
from fedsolve.results.record_files import ANALYSIS_FILE
from fedsolve.stats.questions import Stored


@dataclass(frozen=True, repr=False)
class Summary(ResultTable):
    """A table that shows itself in a terminal and a notebook; the note below says what the rows are of."""

    def __repr__(self) -> str:
        first, *others = zip(self.head, *self.texts, strict=True)
        columns = [[text.ljust(max(map(len, first))) for text in first]]
        columns += [[text.rjust(max(map(len, column))) for text in column] for column in others]
        return "\n".join([self.caption, *map("  ".join, zip(*columns, strict=True)), self.note])

    def _repr_html_(self) -> str:
        note = "".join(f"<p>{line}</p>" for line in self.note.splitlines())
        return self.notebook(self.caption) + note


def p_text(p: float) -> str:
    """A p-value.

    >>> p_text(0.03217), p_text(1e-9)
    ('0.032', '<0.001')
    """
    return "-" if math.isnan(p) else "<0.001" if p < 0.001 else f"{p:.3f}" if p < 0.01 else f"{p:.2g}"


def number_text(value: float) -> str:
    return "-" if math.isnan(value) else str(value) if math.isinf(value) else show_number(value)


def chi_square_p(statistic: float, degrees: int) -> float:
    return float(chdtrc(degrees, statistic)) if degrees > 0 else math.nan


@dataclass(frozen=True, kw_only=True, repr=False)
class Result(Stored):
    """What an analysis found.

    Attributes:
        rows: that were used.
        left_out: rows without a value, by the first column that has none.
        sites: that took part.
        notes: what should be known about the result.
    """

    rows: int
    left_out: Mapping[str, int]
    sites: tuple[str, ...]
    notes: tuple[str, ...]

    def summary(self) -> Summary:
        raise NotImplementedError

    def __repr__(self) -> str:
        return repr(self.summary())

    def _table(
        self, title: str, head: Sequence[str], rows: Sequence[Sequence[Any]], facts: Sequence[str]
    ) -> Summary:
        # with lines of a kind of model below it, and what it is of
        gone = sum(self.left_out.values())
        which = ", ".join(f"{name} {count:,}" for name, count in self.left_out.items() if count)
        rest = f"; {gone:,} left out without a value or of a rare category ({which})" if gone else ""
        about = f"{self.rows:,} rows of {len(self.sites)} sites{rest}"
        notes = [f"note: {note}" for note in self.notes]
        return Summary(title, head, rows, "\n".join([*facts, about, *notes]))


def load(path: str | Path) -> Any:
    """Read a result that `fedsolve federate glm`, `cox` or `km` left.

    Args:
        path: the folder of the command, or its file `analysis.json`.

    Returns:
        The same as of `fedsolve.stats.glm`, `cox` or `kaplan_meier`.

    Raises:
        InvalidInput: there is no such file, or it is none of a result, or damaged.
    """
    file = check_path("path", path)
    file = file / ANALYSIS_FILE if file.is_dir() else file
    try:
        return Result.read(unsealed_values(file, read_bytes(file, LARGEST, follow=False))[0])
    except OSError as error:
        raise InvalidInput(f"cannot read {file}: {error.strerror}: give the folder of an analysis") from None
    except MALFORMED as error:
        why = str(error)
        raise InvalidInput(why if str(file) in why else f"{file} is no result, or damaged: {why}") from None


@dataclass(frozen=True, kw_only=True, repr=False)
class Estimates(Result):
    """Coefficients of a model over all sites.

    Attributes:
        model: what was fitted, in words.
        names: of the columns.
        coefficients: shape (columns,).
        covariance: of the coefficients, shape (columns, columns).
        degrees: of Student's t; infinite where the normal distribution is used.
        rows: that were used.
        left_out: rows without a value, by the first column that has none.
        sites: that took part.
        notes: what should be known about the result.
    """

    model: str
    names: tuple[str, ...]
    coefficients: np.ndarray
    covariance: np.ndarray
    degrees: float

    @property
    def standard_errors(self) -> np.ndarray:
        """Shape (columns,)."""
        return np.sqrt(np.diag(self.covariance))

    @property
    def statistics(self) -> np.ndarray:
        """Coefficient divided by standard error, shape (columns,): z, or t if a dispersion was estimated."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return self.coefficients / self.standard_errors

    @property
    def p_values(self) -> np.ndarray:
        """Two-sided, of each coefficient being 0, shape (columns,)."""
        size = -np.abs(self.statistics)
        return 2 * (ndtr(size) if math.isinf(self.degrees) else stdtr(self.degrees, size))

    def intervals(self, level: float = 0.95) -> np.ndarray:
        """Wald's confidence intervals.

        Args:
            level: in (0, 1).

        Returns:
            Their ends, shape (columns, 2).

        Raises:
            InvalidInput: a level outside (0, 1).
        """
        check_number("level", level, above=0, below=1)
        tail = (1 + level) / 2
        half = float(ndtri(tail) if math.isinf(self.degrees) else stdtrit(self.degrees, tail))
        reach = half * self.standard_errors
        return np.stack([self.coefficients - reach, self.coefficients + reach], axis=1)

    def __getitem__(self, name: str) -> float:
        """A coefficient by its column's name."""
        check_known("column", name, self.names)
        return float(self.coefficients[self.names.index(name)])

    def frame(self, level: float = 0.95) -> Any:
        """Give the estimates as a data frame.

        Args:
            level: of the confidence intervals, in (0, 1).

        Returns:
            A row for each column, of pandas, or of polars; `InvalidInput` if neither is installed.
        """
        low, high = self.intervals(level).T
        columns = {"coefficient": self.coefficients, "standard_error": self.standard_errors}
        columns |= {"statistic": self.statistics, "p": self.p_values, "low": low, "high": high}
        return frame({"column": np.array(self.names), **columns})

    def summary(self, level: float = 0.95, ratios: bool = False) -> Summary:
        """The table that one prints.

        Args:
            level: of the confidence intervals, in (0, 1).
            ratios: whether coefficients and intervals are shown as exp(coefficient): odds, rate or hazard ratios.

        Returns:
            A row for each column, and below them what the rows are of.
        """
        shown = np.exp if ratios else np.asarray
        test, percent = "z" if math.isinf(self.degrees) else "t", f"{100 * level:g} %"
        # an error stays that of the coefficient, as in the tables of R
        heads = ("exp(coefficient)", "error of coefficient") if ratios else ("coefficient", "standard error")
        numbers = (shown(self.coefficients), self.standard_errors, self.statistics, self.p_values)
        rows = []
        for name, *of in zip(self.names, *numbers, *shown(self.intervals(level)).T, strict=True):
            texts = [*map(number_text, of[:2]), f"{of[2]:.2f}", p_text(of[3]), *map(number_text, of[4:])]
            rows.append([name, *map(Cell, texts, map(float, of))])
        return self._table(self.model, ["", *heads, test, "p", f"{percent} from", "to"], rows, self._facts())

    def to_latex(self, level: float = 0.95, ratios: bool = False) -> str:
        """Give the table for LaTeX.

        Args:
            level, ratios: as of `summary`.

        Returns:
            Text for a preamble with `\\usepackage{booktabs}`.
        """
        table = self.summary(level, ratios)
        return replace(table, note=" ".join(table.note.splitlines())).latex()

    def _facts(self) -> Sequence[str]:
        return ()


def check_not_collinear(information: np.ndarray, names: Sequence[str], where: str = "") -> None:
    """Raise `InvalidInput` that names a column which is a combination of those before it, if there is one."""
    # The information is X' W X of standardised columns; `where` says what these are of, if not of all rows.
    size = np.sqrt(np.diag(information))
    if (size <= 0).any():
        name = names[int(np.argmin(size))]
        raise InvalidInput(f"column {name} says nothing about the outcome{where}: leave it out")
    scaled = information / np.outer(size, size)
    for i in range(1, len(size)):
        weights, *_ = np.linalg.lstsq(scaled[:i, :i], scaled[:i, i], rcond=None)
        if scaled[i, i] - weights @ scaled[:i, i] < 1e-10:
            of = ", ".join(names[j] for j in np.flatnonzero(np.abs(weights) > 1e-6).tolist())
            raise InvalidInput(
                f"column {names[i]} is a combination of {of} over all rows{where}: leave one out"
            )
