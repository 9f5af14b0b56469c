"""The columns of a regression: a formula, its columns over all sites, and their rows at one site."""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from fedsolve.core.errors import InvalidInput, shown
from fedsolve.stats.questions import Question, Sites, SiteTable, Sums

Factor = tuple[str, tuple[str, ...], str]
"""An expression of `x0`, `x1`, ..., the columns that these are, and ''; or '', a column, and one of its categories."""

# Expressions of columns, which a site evaluates: nothing but arithmetic of numbers.

_OPERATIONS: dict[type, Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}
_FUNCTIONS = {name: getattr(np, name) for name in ("log", "log2", "log10", "log1p", "exp", "sqrt", "abs")}
_BLOCK = 1024  # rows: a product of so few takes one thread, and stays in its cache
_LONGEST = 500  # characters of an expression
_LEVERAGE = 0.9  # of one row, at most: it is 1 for a row that a direction of the columns singles out


def evaluate(expression: str, values: Sequence[np.ndarray]) -> np.ndarray:
    """An expression of `x0`, `x1`, ...; `InvalidInput` for anything but arithmetic and `log`, `exp`, `sqrt`, `abs`.

    >>> evaluate("log(x0) + 1", [np.array([1.0])])
    array([1.])
    """
    named = {f"x{i}": value for i, value in enumerate(values)}

    def of(node: ast.AST) -> Any:
        match node:
            case ast.Expression():
                return of(node.body)
            case ast.Name() if node.id in named:
                return named[node.id]
            case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
                return np.float64(number)
            case ast.BinOp() if type(node.op) in _OPERATIONS:
                return _OPERATIONS[type(node.op)](of(node.left), of(node.right))
            case ast.UnaryOp() if type(node.op) in _OPERATIONS:
                return _OPERATIONS[type(node.op)](of(node.operand))
            case ast.Call(func=ast.Name(id=name), args=[argument], keywords=[]) if name in _FUNCTIONS:
                return _FUNCTIONS[name](of(argument))
        raise InvalidInput(f"{shown(expression)} is no arithmetic of columns: +, -, *, /, ** and functions")

    if len(expression) > _LONGEST:
        raise InvalidInput(f"an expression has {len(expression)} characters: write at most {_LONGEST}")
    try:
        with np.errstate(all="ignore"):  # what is not finite is found where it is used
            return of(ast.parse(expression, mode="eval"))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise InvalidInput(f"{shown(expression)} is no expression") from None


# Columns of the design, as sites are told.


@dataclass(frozen=True)
class Design(Question):
    """The columns of a regression, and which rows it has: those with a value in each column that it needs.

    As a question it asks for the number of rows, those left out, and the moments of the columns.
    """

    names: tuple[str, ...]  # of the columns
    # of each column the factors whose product it is; none for the intercept
    products: tuple[tuple[Factor, ...], ...]
    categories: tuple[tuple[str, tuple[str, ...]], ...]  # of each column of categories those that count
    needed: tuple[str, ...]  # further columns without which a row is left out, such as the outcome's
    # shift, scale: of each column; what is used is (product - shift) / scale
    shift: tuple[float, ...]
    scale: tuple[float, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        of = [column for product in self.products for _, columns, _ in product for column in columns]
        return tuple(dict.fromkeys([*self.needed, *of]))

    @property
    def size(self) -> int:
        return len(self.names)

    def sums(self, table: SiteTable) -> Sums:
        # rows, rows left out for each of `columns`, and sums of each column of the design and of its square
        matrix, (rows, left_out) = self.matrix(table), self.rows(table)
        moments = {"sum": matrix.sum(axis=0), "squares": np.einsum("ij,ij->j", matrix, matrix)}
        return {"rows": np.array(float(len(rows))), "left_out": left_out, **moments}

    def rows(self, table: SiteTable) -> tuple[np.ndarray, np.ndarray]:
        """The rows that count, and how many are left out for each column, of the first that has no value there."""
        return table.cached(("rows", self.columns, self.categories), lambda: self._rows(table))

    def _rows(self, table: SiteTable) -> tuple[np.ndarray, np.ndarray]:
        known, left_out, kept = dict(self.categories), list[float](), np.zeros(0, bool)
        for name in self.columns:
            categories = known.get(name)
            values = table.numbers(name) if categories is None else table.texts(name)
            has_value = ~np.isnan(values) if categories is None else np.isin(values, categories)
            before = kept if left_out else np.ones(len(has_value), bool)
            if len(has_value) != len(before):
                raise InvalidInput(f"column {name} has {len(has_value)} rows, the others {len(before)}")
            kept = before & has_value
            left_out.append(float(before.sum() - kept.sum()))
        rows = np.flatnonzero(kept)
        if len(rows) < table.min_rows:
            raise InvalidInput(f"fewer than {table.min_rows} rows have a value in each column (min_rows)")
        return rows, np.array(left_out)

    def matrix(self, table: SiteTable) -> np.ndarray:
        """The columns at a site, shape (rows, columns); `InvalidInput` for one that would reveal single rows."""
        held, matrix = table.cache.get("matrix", (None, None))
        if held == self._unscaled != self:  # nobody needs the columns as they are any more
            table.cache["matrix"] = self, self._scaled(table, matrix)
        return table.last("matrix", self, lambda: self._matrix(table))

    @cached_property
    def _unscaled(self) -> Design:
        return replace(self, shift=(0.0,) * self.size, scale=(1.0,) * self.size)

    def _matrix(self, table: SiteTable) -> np.ndarray:
        rows, _ = self.rows(table)
        if table.min_rows > 1 and self.size * 5 > len(rows):
            raise InvalidInput(f"{self.size} columns are more than a fifth of its rows: leave terms out")
        matrix = np.empty((len(rows), self.size))
        checked = ("checked", self.products, self.columns, self.categories)
        for i, product in enumerate(self.products):
            matrix[:, i] = column = math.prod(self.values(table, factor) for factor in product)
            if product and checked not in table.cache:
                check_effective_rows(table, f"column {self.names[i]}", np.asarray(column))
        if checked not in table.cache:
            check_leverage(table, matrix, np.ones(len(matrix)), matrix.T @ matrix)
            table.cache[checked] = True
        return self._scaled(table, matrix)

    def _scaled(self, table: SiteTable, matrix: np.ndarray) -> np.ndarray:
        table.cache.pop("squares", None)  # of this matrix, which is changed in place
        matrix -= np.array(self.shift)
        matrix /= np.array(self.scale)
        return matrix

    def values(self, table: SiteTable, factor: Factor) -> np.ndarray:
        """A factor in the rows that count, shape (rows,); `InvalidInput` where it is not finite."""
        rows, (expression, columns, level) = self.rows(table)[0], factor
        if level:
            return (table.texts(columns[0])[rows] == level).astype(float)
        values = evaluate(expression, [table.numbers(name)[rows] for name in columns])
        values = np.broadcast_to(values, len(rows))
        if not np.isfinite(values).all():
            why = "an infinite number, or one without that logarithm, root or quotient"
            raise InvalidInput(f"{title(factor)} is not finite in some rows: {why}")
        return values

    def standardised(self, sites: Sites) -> tuple[Design, Sums]:
        """The same columns with mean 0 and deviation 1 over all sites, and the moments of the columns as they are."""
        # Sums of squares of such columns lose no digits, and say which columns are alike. Without an intercept no
        # mean is subtracted. `InvalidInput` for a column with the same value in all rows.
        first = sums = sites.sums(self)
        rows, fixed = float(first["rows"]), np.array([not product for product in self.products])
        mean, shift = first["sum"] / rows, np.zeros(self.size)
        few_digits = sums["squares"] / rows - mean**2 < 1e-6 * mean**2  # the difference has lost six
        if few_digits[~fixed].any():
            shift = mean
            sums = sites.sums(replace(self, shift=tuple(mean.tolist())))
        rest = sums["sum"] / rows
        deviation = np.sqrt(np.maximum(sums["squares"] / rows - rest**2, 0))
        size = np.hypot(deviation, mean)
        same = ~fixed & (deviation <= 1e-12 * size) if fixed.any() else size == 0
        if same.any():
            name = self.names[int(np.argmax(same))]
            raise InvalidInput(f"column {name} has the same value in all rows of all sites: leave it out")
        shift = np.where(fixed, 0.0, shift + rest) if fixed.any() else np.zeros(self.size)
        scale = np.where(fixed, 1.0, deviation if fixed.any() else size)
        return replace(self, shift=tuple(shift.tolist()), scale=tuple(scale.tolist())), first

    def unscaled(self, coefficients: np.ndarray, covariance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Coefficients and their covariance for the columns as they are, from those for standardised ones."""
        back = np.diag(1 / np.array(self.scale))
        for i, product in enumerate(self.products):
            if not product:
                back[i] -= np.array(self.shift) / np.array(self.scale)
        return back @ coefficients, back @ covariance @ back.T


def title(factor: Factor) -> str:
    """A factor as a formula has it.

    >>> title(("log(x0)", ("age",), ""))
    'log(age)'
    """
    expression, columns, level = factor
    if level:
        return f"{columns[0]}[{level}]"
    return re.sub(r"\bx(\d+)\b", lambda m: columns[int(m[1])], expression)


# What a site refuses: numbers that are of few rows.


def effective_rows(column: np.ndarray, middle: float) -> float:
    """How many rows a column tells from the others: of one with two values, those that have the rarer one.

    With d the distance from the middle, the median, it is (sum of d)^2 / sum of d^2, and 0 for a constant.

    >>> effective_rows(np.array([0.0, 0.0, 0.0, 1.0, 1.0]), 0.0)
    2.0
    """
    distance = np.abs(column - middle)
    squares = float(distance @ distance)
    if not 1e-200 < squares < 1e200 and (largest := distance.max(initial=0.0)) > 0:  # it under- or overflows
        return effective_rows(distance / largest, 0.0)
    return float(distance.sum()) ** 2 / squares if squares else 0.0


def check_effective_rows(table: SiteTable, what: str, column: np.ndarray) -> None:
    """Raise `InvalidInput` if a column has more than one value and tells fewer than `min_rows` rows from the others."""
    if table.min_rows <= 1 or not len(column):
        return
    if effective_rows(column, float(column.mean())) >= 100 * table.min_rows:
        return  # it is about 4 times that from the median
    if 0 < effective_rows(column, float(np.median(column))) < table.min_rows:
        few = f"fewer than {table.min_rows} rows from the others (min_rows)"
        raise InvalidInput(f"{what} tells {few}: merge categories, or leave it out")


def weighted_squares(matrix: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """X' W X, shape (columns, columns), by blocks of rows that fit into a processor's cache."""
    total = np.zeros((matrix.shape[1],) * 2)
    for start in range(0, len(matrix), _BLOCK):
        block = matrix[start : start + _BLOCK]
        total += block.T @ (block * weights[start : start + _BLOCK, None])
    return total


def check_leverage(
    table: SiteTable, matrix: np.ndarray, weights: np.ndarray, information: np.ndarray
) -> None:
    """Raise `InvalidInput` where weighted sums over a site's rows would be those of single rows."""
    # X has shape (rows, columns), the weights >= 0 (rows,), the information X' W X (columns, columns).
    if table.min_rows <= 1:
        return
    size = np.sqrt(np.diag(information))
    size = np.where(size > 0, size, 1.0)
    values, vectors = np.linalg.eigh(information / np.outer(size, size))
    kept = values > 1e-10 * len(size)
    directions = vectors[:, kept] / np.sqrt(values[kept]) / size[:, None]
    largest = np.linalg.norm(directions, 2) ** 2 if kept.any() else 0.0
    if table.cache.get("squares", (None,))[0] is not matrix:
        table.cache["squares"] = matrix, np.einsum("ij,ij->i", matrix, matrix)
    squares = table.cache["squares"][1]
    suspects = np.flatnonzero(weights * squares * largest > _LEVERAGE)
    leverage = weights[suspects] * ((matrix[suspects] @ directions) ** 2).sum(axis=1)
    if (leverage > _LEVERAGE).any():
        raise InvalidInput("a single row decides on a coefficient: leave out its term, or clip the column")
