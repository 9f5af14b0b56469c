"""What a loss or a metric of PyTorch is: a mean over examples, what follows from sums over them, or of whole sets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np
import torch
import torch.utils._pytree as pytree
from torch import Tensor

from fedsolve.core.errors import InvalidInput, of_type, shown
from fedsolve.core.loss_checks import REMEMBERED, check_again, check_mean, check_value, fails, first_line
from fedsolve.pytorch.batch_losses import mean_of, mean_of_rows, rows_of, seed_all
from fedsolve.pytorch.preserved_state import preserve_state
from fedsolve.pytorch.reference import fixed_draws
from fedsolve.pytorch.translation.arrays import preserve_attributes
from fedsolve.pytorch.translation.batch_sums import NoMean, OnSums, to_float64
from fedsolve.pytorch.translation.export import call_module, silence
from fedsolve.pytorch.translation.model import OnRows
from fedsolve.pytorch.translation.registry import NotTranslatable

INSTEAD = (
    "give a mean over examples, or one sum over them divided by another, such as (values * mask).sum() / mask.sum(); "
    "or each example's own value, such as lambda outputs, y: F.cross_entropy(outputs, y, reduction='none'); or say "
    "couples_examples = True of others"
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
    with fixed_draws() as draws:
        whole = value_of(name, function, outputs, targets)
    rounding = _rounding(draws.coarsest, whole, outputs)
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
        with fixed_draws():
            if rounding > _CLOSE and _is_average(function, outputs, targets, rounding):
                raise InvalidInput(
                    f"{name} is computed in 16 bits, whose rounding hides whether it is a mean over examples: {seen}; "
                    "convert the outputs first, such as outputs.float()"
                )
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


def refuse_coupled(loss: Any, outputs: Any, targets: Any, dtype: torch.dtype) -> None:
    # of a client with batches of its own: differences by rounding are none. One that is an average of its
    # values on parts of the batch, which few losses are not, needs no program
    sized = lambda tree: [t for t in pytree.tree_leaves(tree) if isinstance(t, Tensor) and t.ndim]  # noqa: E731
    rows = len(sized(outputs)[0]) if sized(outputs) else 0
    if rows < 2 or any(len(t) != rows for t in sized(targets)):
        return  # one cannot tell
    outputs, targets = rows_of((outputs, targets), range(min(rows, _MOST_ROWS)), rows)
    with silence(), fixed_draws() as draws:
        whole = _once(loss, outputs, targets)
        close = _rounding(draws.coarsest, whole, outputs)
        others = [_as_outputs(outputs, targets)] if _may_broadcast(outputs, targets) else []
        known = [_is_average(loss, x, targets, close) for x in (outputs, _beside(outputs), *others)]
    if all(known):
        return
    if others and value_or_none(loss, outputs.reshape(targets.shape), targets) is not None:
        raise InvalidInput(
            f"the loss broadcasts outputs of shape {tuple(outputs.shape)} against targets of shape "
            f"{tuple(targets.shape)}: give both one shape, such as outputs.squeeze(1)"
        )
    outputs, targets = pytree.tree_map_only(Tensor, Tensor.cpu, (outputs, targets))
    if value_or_none(loss, outputs, targets) is None:
        return  # it holds tensors of another device
    kind = analyse("the loss", loss, outputs, targets, dtype, only_means=False)
    if kind.not_a_mean_because and (kind.rows is not None or False in known):
        check_mean("the loss", f"of a batch of {_rows(outputs)} it is {kind.not_a_mean_because}", INSTEAD)


def _is_average(loss: Any, outputs: Any, targets: Any, close: float) -> bool | None:
    # of its values on parts of the batch, each with one weight whatever stands beside it; None: one cannot tell
    rows = _rows(outputs)

    def value(*parts: np.ndarray) -> float:
        chosen = np.sort(np.concatenate(parts))
        found = value_or_none(partial(_once, loss), *rows_of((outputs, targets), chosen, rows))
        return float("nan") if found is None else float(found)

    every, parts = np.arange(rows), np.array_split(range(rows), rows // 2 if rows > 3 else rows)
    whole, each = value(every), np.array([value(part) for part in parts])
    near = lambda a, b: bool(abs(a - b) <= close * max(abs(b), np.abs(each).mean()))  # noqa: E731
    if not np.isfinite(whole) or near(np.average(each, weights=[len(part) for part in parts]), whole):
        return True
    sets = (0,), (1,), (2,), (0, 1), (0, 2), (1, 2)
    a, b, c, ab, ac, bc = np.array([value(*(every[i::3] for i in some)) for some in sets])
    if rows < 6 or not np.isfinite([a, b, c]).all():
        return None
    with np.errstate(all="ignore"):  # the weights that the first two pairs have make the others
        weights, own = np.array([1, (a - ab) / (ab - b), (a - ac) / (ac - c)]), np.array([a, b, c])
        means = [weights[i:] @ own[i:] / weights[i:].sum() for i in (0, 1)]
    return bool((weights > 0).all()) and near(means[0], whole) and near(means[1], bc)


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


_CLOSE = 1e-3  # relative difference of two values that is none
_MOST_ROWS = 31  # on which a loss of an oracle is tried
_UNITS = 8  # rounding units of a type of 16 bits by which they may differ


def _rounding(coarsest: float, value: Tensor, outputs: Any) -> float:
    # relative; `coarsest` of the types that numbers are converted to
    tensors = [
        t for t in (value, *pytree.tree_leaves(outputs)) if isinstance(t, Tensor) and t.is_floating_point()
    ]
    return max(_CLOSE, _UNITS * max(coarsest, *(torch.finfo(t.dtype).eps for t in tensors)))


def check_size(module: Any, loss: Any, x: Any, y: Any, size: int, where: str, remedy: str) -> None:
    # a batch of so many of the rows of x and y in training mode (BatchNorm refuses one); buffers may change
    rows = next(len(t) for t in pytree.tree_leaves(y) if isinstance(t, Tensor) and t.ndim)
    inputs, targets = rows_of((x, y), np.arange(size) % rows, rows)
    try:
        with torch.enable_grad(), seed_all(0), preserve_attributes(module):
            outputs = pytree.tree_map_only(Tensor, Tensor.detach, call_module(module, inputs, "training"))
            value_of("the loss", loss, outputs, targets)
    except InvalidInput as error:
        examples = "one example" if size == 1 else f"{size} examples"
        raise InvalidInput(f"{where} has {examples}: {error}: {remedy}") from error


def _mean_difference(function: Any, outputs: Any, targets: Any, whole: Tensor) -> str | None:
    # None if the value of the batch is the mean of its rows' values, also at other outputs
    others = [_beside(outputs)]
    if _may_broadcast(outputs, targets) and targets.is_floating_point():
        others.append(_as_outputs(outputs, targets))
    seen = _apart(function, outputs, targets, whole)
    for other in others:
        value = value_or_none(function, other, targets)
        first = rows_of((other, targets), [0], _rows(outputs))
        if seen is None and value is not None and value_or_none(function, *first) is not None:
            seen = _apart(function, other, targets, value)
    return seen


def _beside(outputs: Any) -> Any:
    # numbers near them, and not all equal, as those of a layer that begins with zeros are
    draw = torch.Generator().manual_seed(0)

    def leaf(t: Tensor) -> Tensor:
        by = 0.2 * torch.rand(t.shape, generator=draw).to(t) - 0.1
        return torch.where(t == 0, by, t * (1 + by))

    return pytree.tree_map_only(Tensor, lambda t: leaf(t) if t.is_floating_point() else t, outputs)


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
        lone = (rows_of((outputs, targets), [i], rows) for i in range(rows))
        each = [_once(partial(mean_of_rows, function), *row).double() for row in lone]
    except Exception as error:  # whatever the user's code raises
        return f"{float(whole.double().mean()):.6g}, and on one of them alone it fails ({first_line(error)})"
    mean, value = float(torch.stack(each).mean()), float(whole.double().mean())
    if not np.isfinite(value) or abs(mean - value) <= _CLOSE * max(abs(value), 1e-3):
        return None
    return f"{value:.6g}, the mean of its values on each of them {mean:.6g}"


def _sums_difference(sums: OnSums, function: Any, outputs: Any, targets: Any) -> str | None:
    # None if PyTorch's value of subsets of rows follows from the sums
    rows, of_sums = _rows(outputs), jax.jit(sums.of_sums)
    with jax.enable_x64(True):
        each = np.asarray(jax.jit(sums.__call__)(*to_float64(outputs, targets)))
        for chosen in (np.arange(rows), np.arange(0, rows, 2), np.arange(1, rows, 3)):
            with torch.no_grad():
                some = rows_of((outputs, targets), chosen, rows)
                value = float(_drawn(function, *some))
            own = float(of_sums(each[chosen].sum(0)))
            if np.isfinite(value) and not abs(own - value) <= _CLOSE * max(abs(value), 1e-3):
                return f"{value:.6g} where the sums over {len(chosen)} examples make {own:.6g}"
    return None


def _has_rows(outputs: Any, targets: Any) -> bool:
    rows = _rows(outputs)
    return all(
        isinstance(t, Tensor) and t.ndim and len(t) == rows for t in pytree.tree_leaves((outputs, targets))
    )


def _rows(outputs: Any) -> int:
    return next(len(t) for t in pytree.tree_leaves(outputs) if isinstance(t, Tensor) and t.ndim)
