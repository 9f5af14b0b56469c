"""What a client's loss must be, whichever framework computes it: each way in says what it saw, and is told the same.

The ways in are `fs.Task` and `JaxOracle` (JAX), `from_torch` and `TorchOracle` (PyTorch), and `SklearnOracle`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import numpy as np

from fedsolve.core.errors import ConfidentialError, InvalidInput

REMEMBERED = "keep in a buffer (register_buffer) what it remembers"


def first_line(error: BaseException) -> str:
    """An exception's type and the first line of what it says; the second, too, which a colon announces."""
    lines = [stripped for line in str(error).splitlines() if (stripped := line.strip())]
    return f"{type(error).__name__}: {' '.join(lines[: 1 + lines[0].endswith(':')] if lines else ())}"


def fails(name: str, given: str, error: Exception, more: str = "") -> InvalidInput:
    """That a function fails on a batch; what it raised may quote the batch, so that others are told its type alone."""
    # `given` says what it was called with, such as "on outputs of shape (4, 3) float32"; `more` what else was
    # seen
    line = f"{name} fails {given}: "
    return ConfidentialError(f"{line}{first_line(error)}{more}", f"{line}{type(error).__name__}")


def check_value(name: str, found: str, taken: bool, rows: int | None = None) -> None:
    """Raise `InvalidInput` unless the value of a batch is one number, or one for each of its `rows`."""
    # `found` says what it gave, such as "of shape (2, 5) and type float32", and `taken` whether that is taken
    if not taken:
        each = "for each example" if rows is None else f"for each of its {rows} examples"
        raise InvalidInput(
            f"{name} is {found}: it must be one real number, the mean over the batch, or one {each}"
        )


def check_mean(name: str, seen: str | None, remedy: str) -> None:
    """Raise `InvalidInput` if a loss mixes or adds examples: `seen` says how it differs from a mean, None if not."""
    if seen is not None:
        raise InvalidInput(f"{name} is not a mean over examples: {seen}; {remedy}")


def check_slope(name: str, depends: bool) -> None:
    if not depends:
        raise InvalidInput(
            f"{name} depends on no parameter, so it has no gradient: compute it from the model's outputs, without "
            "argmax, rounding, detach or stop_gradient between them"
        )


def check_again(name: str, first: float, again: float, rounding: float, remedy: str) -> None:
    # the two values may be `rounding` of the first apart
    if not (first == again or abs(first - again) <= rounding * abs(first) or math.isnan(first + again)):
        raise InvalidInput(
            f"{name} is {first:.6g} and, computed again with the same weights, buffers, batch and random numbers, "
            f"{again:.6g}: {remedy}"
        )


def check_wide(of: str, types: Iterable[tuple[str, str, int]], remedy: str) -> None:
    """Raise `InvalidInput`, naming the first, if a model has floating-point numbers of 16 bits or fewer."""
    # `types` are name, type, and bytes of a number of each floating-point leaf
    for name, kind, size in types:
        if size < 4:
            where = f" in {name}" if name else ""
            raise InvalidInput(
                f"{of} has {kind} numbers{where}: runs are in float32 or float64; {remedy}, and give matmul_dtype = "
                "'bfloat16' to a run for products of local training in bfloat16"
            )


def why_not_finite(loss: float, gradient_is_finite: bool, where: str = "") -> str | None:
    """What is not finite before any step (`where`, such as " on example 3"), so that no rate is at fault; else None."""
    if math.isfinite(loss) and gradient_is_finite:
        return None
    what = "gradient of the loss" if math.isfinite(loss) else "loss"  # no number: it may reach the server
    return (
        f"the {what} is not finite{where} at the model that the steps begin from: look at the data and the loss (a "
        "root, norm or logarithm of 0)"
    )


# Which examples of a data set show the most of a model and its loss.

_LOOK = 2**17  # rows of inputs that are looked at, evenly spaced; of targets 32 times as many


def informative_rows(x: Any, y: Any, least: int, most: int) -> np.ndarray:
    # which rows to try a module on, the most telling first, shape (least .. most,): those with each negative
    # target (ignored ones are), with the most and the fewest of them, with every value of integer targets,
    # the rarest first, with the greatest and smallest numbers, and the longest and shortest sequences as far
    # as zeros and negative numbers fill them up; then rows evenly spaced
    total = len(jax.tree.leaves((x, y))[0])
    found = dict.fromkeys(int(row) for row in _row_keys(x, y))
    chosen = list(found)[:most]
    spread = np.linspace(0, total - 1, least).astype(int)
    chosen += [int(row) for row in spread if row not in found]
    chosen = chosen[: max(least, min(len(found), most))]
    return np.resize(np.array(chosen), max(least, len(chosen)))


def _row_keys(x: Any, y: Any) -> Iterator[int]:
    # rows with every value of integer targets last, of which there may be many
    inputs = [_looked_at(leaf, _LOOK) for leaf in jax.tree.leaves(x)]
    targets = [_looked_at(leaf, 32 * _LOOK) for leaf in jax.tree.leaves(y)]
    whole = [(at, flat) for at, flat in targets if np.issubdtype(flat.dtype, np.integer)]
    for at, flat in whole:
        yield from at[_first_of_each(flat, flat < 0)]
    for at, flat in (*targets, *inputs):
        if flat.shape[1]:
            yield from at[_extremes(flat)]
    for at, flat in whole:
        yield from at[_first_of_each(flat, flat >= 0)]


def _looked_at(leaf: Any, look: int) -> tuple[np.ndarray, np.ndarray]:
    leaf = np.asarray(leaf)
    at = np.arange(len(leaf)) if len(leaf) <= look else np.linspace(0, len(leaf) - 1, look).astype(int)
    return at, leaf[at].reshape(len(at), -1)


def _extremes(flat: np.ndarray) -> list[np.intp]:
    high, low, filled = flat.max(1), flat.min(1), np.count_nonzero(flat, axis=1)
    if np.issubdtype(flat.dtype, np.integer):
        missing = np.sum(flat < 0, axis=1)
        found = [np.argmax(missing), np.argmin(missing), np.argmin(filled), np.argmax(filled)]
        return [*found, np.argmax(high), np.argmin(low)]
    if not np.issubdtype(flat.dtype, np.floating):
        return []
    # a norm, a deviation or a logarithm has no slope where all of a row is 0, or equal
    sizes = np.maximum(high, -low)
    spread = np.where(sizes > 0, high - low, np.inf)
    return [
        np.nanargmax(high),
        np.nanargmin(low),
        np.argmin(filled),
        np.nanargmin(sizes),
        np.nanargmin(spread),
    ]


def _first_of_each(flat: np.ndarray, where: np.ndarray) -> list[int]:
    # a row with each value, the rarest first, none for a value that such a row shows already
    rows, columns = np.nonzero(where)
    values, first, counts = np.unique(flat[rows, columns], return_index=True, return_counts=True)
    chosen: list[int] = []
    shown: set[int] = set()
    for i in np.argsort(counts, kind="stable"):
        if int(values[i]) not in shown:
            chosen.append(int(rows[first[i]]))
            shown |= set(flat[chosen[-1]].tolist())
    return chosen
