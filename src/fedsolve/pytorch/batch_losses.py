"""A user's PyTorch loss on one batch: its tensors, its mean, and its random numbers from a key."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from hashlib import blake2b
from typing import Any

import jax
import numpy as np
import torch
import torch.utils._pytree as pytree
from torch import Tensor
from torch.utils.data import Dataset, Sampler

from fedsolve.core.errors import of_type
from fedsolve.core.loss_checks import check_value
from fedsolve.pytorch.translation.arrays import to_tensor


def are_classes(outputs: Any, y: Any) -> bool:
    # one class for each row of outputs of shape (n, classes, ...)
    return (
        isinstance(outputs, torch.Tensor)
        and isinstance(y, torch.Tensor)
        and y.dtype == torch.long
        and outputs.ndim >= 2
        and y.shape == (outputs.shape[0], *outputs.shape[2:])
    )


_ANY = 0.5  # outputs at which losses have values: logits, probabilities, numbers
_CLASSES = 2  # where outputs do not say


def value_or_zero(function: Callable[[Any, Any], Tensor], outputs: Any, targets: Any) -> Tensor:
    # 0, with a gradient of 0, where nothing in the batch counts: the value is then NaN whatever the outputs,
    # for these, which are finite, and for others, but not with other targets, of which some count
    value = function(outputs, targets)
    tensors = [t for t in pytree.tree_leaves(outputs) if isinstance(t, Tensor) and t.is_floating_point()]
    if (
        not isinstance(value, Tensor)
        or value.ndim
        or not torch.isnan(value)
        or not all(torch.isfinite(t).all() for t in tensors)
    ):
        return value
    with torch.no_grad():
        others = pytree.tree_map_only(
            Tensor, lambda t: torch.full_like(t, _ANY) if t.is_floating_point() else t, outputs
        )
        if not torch.isnan(function(others, targets)) or _partly_nan(targets):
            return value
        if not any(_is_number(function, others, part) for part in _other_targets(targets, outputs)):
            return value
    return torch.stack([t.sum() for t in tensors]).sum() * 0


def _other_targets(targets: Any, outputs: Any) -> list[Any]:
    # targets of which some count, if any do: classes of all kinds, ones where they may be a mask, and
    # numbers; on the CPU, since an index out of range would end all work on CUDA
    matrix = isinstance(outputs, Tensor) and outputs.ndim > 1
    classes = max(outputs.shape[1], 1) if matrix else _CLASSES

    def filled(t: Tensor, ones: bool) -> Tensor:
        if t.is_floating_point():
            return torch.full_like(t, 1 if ones else _ANY)
        every = torch.arange(t.numel()).reshape(t.shape) % classes
        return torch.ones_like(t) if ones or t.dtype == torch.bool else every.to(t.dtype)

    return [
        pytree.tree_map_only(Tensor, lambda t, o=ones: filled(t.cpu(), o), targets) for ones in (True, False)
    ]


def _is_number(function: Callable[[Any, Any], Tensor], outputs: Any, targets: Any) -> bool:
    outputs = pytree.tree_map_only(Tensor, Tensor.cpu, outputs)
    try:
        return bool(torch.isfinite(function(outputs, targets)).all())
    except Exception:  # whatever the user's code raises for other targets
        return True  # it cannot be told


def _partly_nan(targets: Any) -> bool:
    # then the loss does not leave NaN targets out
    nans = [t.isnan() for t in pytree.tree_leaves(targets) if isinstance(t, Tensor) and t.is_floating_point()]
    return any(bool(t.any()) and not bool(t.all()) for t in nans)


def tensors_of(batch: Any, dtype: torch.dtype) -> tuple[Any, Any]:
    x, y = batch
    return jax.tree.map(lambda a: to_tensor(a, dtype), (x, y))


def rows_of(tree: Any, chosen: Sequence[int] | np.ndarray, rows: int) -> Any:
    # some of so many rows, as a batch; what has no rows stays
    return pytree.tree_map(
        lambda t: t[list(chosen)] if isinstance(t, Tensor) and t.ndim and len(t) == rows else t, tree
    )


def evaluated(module: Callable[[Any], Any], x: Any) -> Any:
    # outputs in evaluation mode; a row alone is given twice, since `squeeze()` would drop the axis of examples
    if next(len(t) for t in pytree.tree_leaves(x) if isinstance(t, Tensor) and t.ndim) > 1:
        return module(x)
    return rows_of(module(rows_of(x, [0, 0], 1)), [0], 2)


def mean_of_rows(function: Callable[[Any, Any], Any], outputs: Any, targets: Any) -> Tensor:
    # as `mean_of`; a row alone, of which the function fails, is given twice
    try:
        return mean_of(function(outputs, targets))
    except Exception:  # whatever the user's code raises, which it raises again for more rows
        return mean_of(function(*rows_of((outputs, targets), [0, 0], 1)))


def mean_of(value: Any) -> Tensor:
    if not isinstance(value, Tensor):
        check_value("the loss of a batch", of_type(value), False)
    return value if value.is_floating_point() and value.ndim == 0 else value.double().mean()


# Random numbers of a client's PyTorch code: from a key, and gone without a trace.


def seed_of(key: bytes, *numbers: int) -> int:
    # a seed of 63 bits for PyTorch
    words = key + b"".join(n.to_bytes(8, "little") for n in numbers)
    return int.from_bytes(blake2b(words, digest_size=8).digest(), "little") >> 1


@contextmanager
def seed_torch(seed: int, device: torch.device | None = None) -> Iterator[None]:
    # afterwards PyTorch's generators go on where they were
    cuda = device if device is not None and device.type == "cuda" else None
    before = torch.default_generator.get_state()
    cuda_before = None if cuda is None else torch.cuda.get_rng_state(cuda)
    try:
        torch.default_generator.manual_seed(seed)  # `torch.manual_seed` looks for accelerators first
        if cuda is not None:
            torch.cuda.manual_seed(seed)
        yield
    finally:
        torch.default_generator.set_state(before)
        if cuda is not None and cuda_before is not None:
            torch.cuda.set_rng_state(cuda_before, cuda)


@contextmanager
def seed_all(seed: int, device: torch.device | None = None) -> Iterator[None]:
    # PyTorch, NumPy and Python, any of which a module or a loader's augmentation may draw from. NumPy's
    # generator is exchanged: far faster than to read its state out and to write it back
    python, legacy = random.getstate(), np.random.get_bit_generator()  # pyright: ignore[reportAttributeAccessIssue]
    try:
        random.seed(seed)
        np.random.set_bit_generator(_BITS)  # pyright: ignore[reportAttributeAccessIssue]
        np.random.seed(seed % 2**32)  # noqa: NPY002
        with seed_torch(seed, device):
            yield
    finally:
        random.setstate(python)
        np.random.set_bit_generator(legacy)  # pyright: ignore[reportAttributeAccessIssue]


def global_states() -> tuple[Any, ...]:
    # states of Python's and NumPy's generators, equal as long as nobody draws
    _, words, *rest = np.random.get_state()  # noqa: NPY002
    return random.getstate(), np.asarray(words).tobytes(), *rest


@contextmanager
def preserve_generators(loader: object) -> Iterator[None]:
    # afterwards generators that a loader, its samplers or its dataset hold as attributes go on where they
    # were
    restored = [_restoring(generator) for generator in _generators(loader, set())]
    try:
        yield
    finally:
        for restore in restored:
            restore()


def _generators(part: object, seen: set[int]) -> Iterator[Any]:
    for value in getattr(part, "__dict__", {}).values():
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, torch.Generator | np.random.Generator | np.random.RandomState | random.Random):
            yield value
        elif isinstance(value, Dataset | Sampler):
            yield from _generators(value, seen)


def _restoring(generator: Any) -> Callable[[], None]:
    # sets the state that it has now
    match generator:
        case np.random.Generator(bit_generator=bits):
            return partial(setattr, bits, "state", bits.state)
        case random.Random():
            return partial(generator.setstate, generator.getstate())
    return partial(generator.set_state, generator.get_state())


_BITS = np.random.MT19937(0)
