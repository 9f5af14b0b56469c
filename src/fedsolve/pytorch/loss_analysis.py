"""What a loss or a metric of PyTorch is: a mean over examples, what follows from sums over them, or of whole sets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
import torch.utils._pytree as pytree
from torch import Tensor

from fedsolve.core.errors import InvalidInput, of_type, shown
from fedsolve.core.loss_checks import REMEMBERED, check_again, check_mean, check_value, fails, first_line
from fedsolve.pytorch.batch_losses import mean_of, row_of, seed_all
from fedsolve.pytorch.preserved_state import preserve_state
from fedsolve.pytorch.reference import fixed_draws
from fedsolve.pytorch.translation.batch_sums import NoMean, OnSums, to_float64
from fedsolve.pytorch.translation.model import OnRows
from fedsolve.pytorch.translation.registry import NotTranslatable

INSTEAD = (
    "give a mean over examples, or one sum over them divided by another, such as (values * mask).sum() / mask.sum(); "
    "or each example's own value, such as lambda outputs, y: F.cross_entropy(outputs, y, reduction='none'); from_torch "
    "takes couples_examples = True for others"
)


@dataclass(frozen=True)
class LossAnalysis:
    """A loss or a metric of PyTorch."""

    function: Callable[[Any, Any], Any]  # (outputs, targets) -> tensor
    rows: OnRows | None = None  # it by single rows; None where it cannot be exported
    # it by sums over rows; None where it is a mean over examples, whatever these are, or one cannot tell
    sums: OnSums | None = None
    not_translated_because: str = ""  # why it is not translated; "" where it is
    not_a_mean_because: str = (
        ""  # what was seen of a metric that is neither: it is computed on whole sets; else ""
    )
    couples_examples: bool = False  # it is computed on whole batches, as its user says


def analyse(
    name: str,
    function: Any,
    outputs: Any,
    targets: Any,
    dtype: torch.dtype,
    only_means: bool,
    couples_examples: bool = False,
) -> LossAnalysis:
    # decided by the function's program and by its values on a sample batch; with `only_means` one that needs
    # whole sets is refused, as a loss is, unless its user says that it couples examples
    with fixed_draws():
        whole = value_of(name, function, outputs, targets)
    rows, sums, not_translated_because = None, None, ""
    try:
        rows = OnRows(name, function, outputs, targets, dtype)
        if couples_examples:
            return LossAnalysis(function, rows, couples_examples=True)
        sums = OnSums(rows, outputs, targets)
        seen = None if sums.is_mean else _sums_difference(sums, function, outputs, targets)
    except NotTranslatable as error:
        if couples_examples:
            raise InvalidInput(f"couples_examples = True and {name} is not translated: {error}") from error
        seen, not_translated_because = None, str(error)
    except NoMean as error:
        seen = str(error)
    if seen is None and (sums is None or sums.is_mean):
        with fixed_draws():
            seen = _mean_difference(function, outputs, targets, whole)
    if seen is None:
        own = sums if sums is not None and not sums.is_mean else None
        return LossAnalysis(function, rows, own, not_translated_because if rows is None else "")
    if only_means or not _has_rows(outputs, targets):
        check_mean(name, f"of {_rows(outputs)} examples it is {seen}", INSTEAD)
    return LossAnalysis(function, rows, not_a_mean_because=seen)


def value_of(name: str, function: Any, outputs: Any, targets: Any) -> Tensor:
    if not callable(function):
        raise InvalidInput(
            f"{name} = {shown(function)} must be a function (outputs, targets) -> tensor, such as nn.CrossEntropyLoss()"
        )
    try:
        value, again = (_once(function, outputs, targets) for _ in range(2))
    except Exception as error:  # whatever the user's code raises
        raise failure(name, error, outputs, targets) from error
    check_form(name, value, _rows(outputs))
    check_again(name, float(value.double().mean()), float(again.double().mean()), 1e-5, REMEMBERED)
    return value


def _once(function: Any, outputs: Any, targets: Any) -> Any:
    # the function's buffers are afterwards as before
    with preserve_state((function,)), torch.no_grad():
        return _drawn(function, outputs, targets)


def check_form(name: str, value: Any, rows: int) -> None:
    # a scalar, or a value for each example
    is_tensor = isinstance(value, Tensor)
    found = f"of shape {tuple(value.shape)}" if is_tensor else of_type(value)
    taken = is_tensor and not value.is_complex() and (not value.ndim or len(value) == rows)
    check_value(f"{name} of a batch", found, taken, rows)


def failure(name: str, error: Exception, outputs: Any, targets: Any) -> InvalidInput:
    # names the shapes and types that the function was given
    labels = [t for t in pytree.tree_leaves(targets) if isinstance(t, Tensor) and _counts(t)]
    ranges = "".join(f"; the targets are {int(t.min())} to {int(t.max())}" for t in labels if t.numel())
    if isinstance(outputs, dict):  # as Hugging Face's models give them
        ranges = f": wrap the module in one that returns a tensor of the {type(outputs).__name__}, such as its logits"
    return fails(name, f"on outputs {_described(outputs)} and targets {_described(targets)}", error, ranges)


def refuse_other_forms(loss: Any, outputs: Any, targets: Any) -> None:
    # of a loss that broadcasts outputs against targets, or adds examples up; one row tells nothing
    if not isinstance(outputs, Tensor) or not isinstance(targets, Tensor):
        return
    if not outputs.ndim or len(outputs) < 2:
        return
    with torch.no_grad():
        value = value_or_none(loss, outputs, targets)
        if value is None or not torch.isfinite(value) or value == 0:
            return
        if _may_broadcast(outputs, targets):
            # a mean over all pairs could by chance be that over rows, but not of other values too
            probes = [
                (value_or_none(loss, x, targets), value_or_none(loss, x.reshape(targets.shape), targets))
                for x in (outputs, outputs.flip(0), _as_outputs(outputs, targets))
            ]
            if any(a is not None and b is not None and not torch.isclose(a, b, rtol=1e-5) for a, b in probes):
                raise InvalidInput(
                    f"the loss broadcasts outputs of shape {tuple(outputs.shape)} against targets of shape "
                    f"{tuple(targets.shape)}: give both one shape, such as outputs.squeeze(1)"
                )
        twice = value_or_none(loss, torch.cat([outputs, outputs]), torch.cat([targets, targets]))
        if twice is not None and torch.isclose(twice, 2 * value, rtol=1e-4):
            check_mean("the loss", f"of a batch of {len(outputs)} it is the sum of their own values", INSTEAD)


def value_or_none(loss: Any, outputs: Any, targets: Any) -> Any:
    # by the same random numbers in each call; None where the loss fails
    try:
        return mean_of(_drawn(loss, outputs, targets))
    except Exception:  # whatever the user's code raises for another shape
        return None


def _drawn(function: Any, outputs: Any, targets: Any) -> Any:
    with seed_all(0):
        return function(outputs, targets)


def _counts(t: Tensor) -> bool:
    return not t.is_floating_point() and not t.is_complex() and t.dtype != torch.bool


def _described(tree: Any) -> str:
    parts = [
        f"of shape {tuple(t.shape)} {str(t.dtype)[6:]}" if isinstance(t, Tensor) else of_type(t)
        for t in pytree.tree_leaves(tree)
    ]
    return " and ".join(parts)


def _mean_difference(function: Any, outputs: Any, targets: Any, whole: Tensor) -> str | None:
    # None if the value of the batch is the mean of its rows' values
    seen = _apart(function, outputs, targets, whole)
    if seen is None and _may_broadcast(outputs, targets) and targets.is_floating_point():
        other = _as_outputs(outputs, targets)
        value = value_or_none(function, other, targets)
        if value is not None and value_or_none(function, other[:1], targets[:1]) is not None:
            seen = _apart(function, other, targets, value)
    return seen


def _may_broadcast(outputs: Any, targets: Any) -> bool:
    # as many numbers in other shapes, such as (n, 1) and (n,)
    both = isinstance(outputs, Tensor) and isinstance(targets, Tensor)
    return both and outputs.shape != targets.shape and outputs.numel() == targets.numel()


def _as_outputs(outputs: Tensor, targets: Tensor) -> Tensor:
    # the targets reversed: a mean over all pairs whose outputs lie above their targets is by chance that over
    # rows
    return targets.flip(0).reshape(outputs.shape).to(outputs.dtype)


def _apart(function: Any, outputs: Any, targets: Any, whole: Tensor) -> str | None:
    rows = _rows(outputs)
    try:
        with torch.no_grad():
            lone = (row_of((outputs, targets), i, rows) for i in range(rows))
            each = [_drawn(function, *row).double().mean() for row in lone]
    except Exception as error:  # whatever the user's code raises
        return f"{float(whole.double().mean()):.6g}, and on one of them alone it fails ({first_line(error)})"
    mean, value = float(torch.stack(each).mean()), float(whole.double().mean())
    if not np.isfinite(value) or abs(mean - value) <= 1e-3 * max(abs(value), 1e-3):
        return None
    return f"{value:.6g}, the mean of its values on each of them {mean:.6g}"


def _sums_difference(sums: OnSums, function: Any, outputs: Any, targets: Any) -> str | None:
    # None if PyTorch's value of subsets of rows follows from the sums
    rows = _rows(outputs)
    with jax.enable_x64(True):
        each = np.asarray(sums(*to_float64(outputs, targets)))
        for chosen in (np.arange(rows), np.arange(0, rows, 2), np.arange(1, rows, 3)):
            with torch.no_grad():
                some = pytree.tree_map(lambda t, c=chosen: _some(t, c, rows), (outputs, targets))
                value = float(_drawn(function, *some))
            own = float(sums.of_sums(jnp.asarray(each[chosen].sum(0))))
            if np.isfinite(value) and not abs(own - value) <= 1e-3 * max(abs(value), 1e-3):
                return f"{value:.6g} where the sums over {len(chosen)} examples make {own:.6g}"
    return None


def _has_rows(outputs: Any, targets: Any) -> bool:
    rows = _rows(outputs)
    return all(
        isinstance(t, Tensor) and t.ndim and len(t) == rows for t in pytree.tree_leaves((outputs, targets))
    )


def _rows(outputs: Any) -> int:
    return next(len(t) for t in pytree.tree_leaves(outputs) if isinstance(t, Tensor) and t.ndim)


def _some(t: Any, chosen: np.ndarray, rows: int) -> Any:
    return t[torch.from_numpy(chosen)] if isinstance(t, Tensor) and t.ndim and len(t) == rows else t


# Which examples of a data set show the most of a module and its loss.

_LOOK = 2**17  # rows of inputs that are looked at, evenly spaced; of targets 32 times as many


def informative_rows(x: Any, y: Any, least: int, most: int) -> np.ndarray:
    # which rows to try a module on, the most telling first, shape (least .. most,): those with each negative
    # target (ignored ones are), with the most and the fewest of them, with every value of integer targets,
    # the rarest first, with the greatest and smallest numbers, and the longest and shortest sequences as far
    # as zeros and negative numbers fill them up; then rows evenly spaced
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
    # `every`: rows with every value of integers, too
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
