"""A module that stays in PyTorch: the compiled program calls it, one client after another."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from numbers import Number
from threading import RLock
from typing import Any
from weakref import WeakKeyDictionary

import jax
import jax.numpy as jnp
import numpy as np
import torch
import torch.utils._pytree as pytree
from jaxtyping import Array
from torch import Tensor, nn
from torch.utils.data import default_collate

from fedsolve.core.errors import InvalidInput, of_type
from fedsolve.core.xla.host_calls import call_host
from fedsolve.pytorch.batch_losses import (
    evaluated,
    mean_of,
    mean_of_rows,
    rows_of,
    seed_all,
    seed_of,
    tensors_of,
    value_or_zero,
)
from fedsolve.pytorch.reference import are_fixed, fails, gradients, refuse_late_hooks
from fedsolve.pytorch.translation.arrays import (
    as_tensor,
    buffer_tensors,
    check_weights,
    copy_module,
    mode_setter,
    preserve_attributes,
    substitute_tensors,
    tensor_to_array,
    trainable,
)
from fedsolve.pytorch.translation.registry import NotTranslatable

Function = Callable[[Any, Any], Any]

# one for each module, whatever tasks it is in
_LOCKS: WeakKeyDictionary[nn.Module, Any] = WeakKeyDictionary()


class Module:
    """A module in PyTorch, called with parameters (those that train) and buffers from outside.

    `copied`: a copy of it runs, so that it may change afterwards. A copy loses the hooks of its parameters, and a
    loss that refers to the module's parameters does not mean the copy's. `alone`: in evaluation each example is a
    batch of its own, with draws from seed 0, for a module that mixes examples or draws then too.
    """

    def __init__(self, module: nn.Module, copied: bool = True, alone: bool = False) -> None:
        check_weights(module)
        refuse_late_hooks(module)
        self._alone = alone
        self._module = copy_module(module) if copied else module
        self._set_mode = mode_setter(self._module)
        self._lock = _LOCKS.setdefault(self._module, RLock())
        self._params, self._buffers = trainable(self._module), buffer_tensors(self._module)
        self._still = {n: p for n, p in self._module.named_parameters() if not p.requires_grad}
        self._kept = {n: p.detach().clone() for n, p in self._still.items()}
        self.params = {name: tensor_to_array(p) for name, p in self._params.items()}
        self.buffers = {name: tensor_to_array(b) for name, b in self._buffers.items()}

    def values(self, function: Function, params: Any, buffers: Any, batch: Any) -> np.ndarray:
        # the value of each example alone, shape (n,), in evaluation mode
        with self._with(params, buffers, training=False, seed=0) as dtype, torch.no_grad():
            x, y = tensors_of(batch, dtype)
            function = _in_type(function, dtype)
            rows = len(next(t for t in jax.tree.leaves(y) if t.ndim))
            outputs = None if self._alone else evaluated(self._module, x)
            each = []
            for i in range(rows):
                with seed_all(0) if self._alone else nullcontext():
                    own = self._module(rows_of(x, [i], rows)) if self._alone else rows_of(outputs, [i], rows)
                    each.append(mean_of_rows(function, own, rows_of(y, [i], rows)))
            return torch.stack(each).to(dtype).numpy()

    def outputs(self, params: Any, buffers: Any, batch: Any) -> list[np.ndarray]:
        with self._with(params, buffers, training=False, seed=0) as dtype, torch.no_grad():
            return [t.numpy() for t in pytree.tree_leaves(self._evaluated(tensors_of(batch, dtype)[0]))]

    def _evaluated(self, x: Any) -> Any:
        # examples that run alone: their rows are concatenated, what has no rows is averaged
        if not self._alone:
            return evaluated(self._module, x)
        rows = len(next(t for t in pytree.tree_leaves(x) if t.ndim))
        each = []
        for i in range(rows):
            with seed_all(0):
                each.append(self._module(rows_of(x, [i], rows)))
        return pytree.tree_map(lambda *t: torch.cat(t) if t[0].ndim else torch.stack(t).mean(), *each)

    def loss(
        self,
        function: Function,
        params: Any,
        buffers: Any,
        batch: Any,
        words: np.ndarray | None,
        gradient: bool,
    ) -> tuple[np.ndarray, dict[str, np.ndarray], dict[str, np.ndarray]]:
        # the loss, its gradient ({} if not wanted) and the new buffers; `words` of a key mean training mode
        seed = 0 if words is None else seed_of(words.tobytes())
        with self._with(params, buffers, words is not None, seed) as dtype, torch.set_grad_enabled(gradient):
            x, y = tensors_of(batch, dtype)
            function = _in_type(function, dtype)
            if words is not None:
                value = value_or_zero(lambda *given: mean_of(function(*given)), self._module(x), y)
            else:
                value = value_or_zero(partial(mean_of_rows, function), self._evaluated(x), y)
            slope = {}
            if gradient:
                slope = {n: g.numpy() for n, g in gradients(value, self._params).items()}
            after = {n: np.array(self._module.get_buffer(n).detach().numpy()) for n in self._buffers}
            return np.asarray(value.detach().to(dtype).numpy()), slope, after

    @contextmanager
    def _with(self, params: Any, buffers: Any, training: bool, seed: int) -> Iterator[torch.dtype]:
        # other values and seeded draws; one thread at a time. Yields the type of the values.
        values = {n: torch.tensor(np.asarray(v)) for n, v in params.items()}
        dtype = next(iter(values.values())).dtype
        values |= {n: p.to(dtype) for n, p in self._kept.items()}
        for name, own in self._buffers.items():
            kind = dtype if own.is_floating_point() else own.dtype
            values[name] = as_tensor(buffers.get(name, self.buffers[name]), own.new_empty(0, dtype=kind))
        tensors = self._params | self._buffers | self._still
        kept = preserve_attributes(self._module)
        seed = 0 if are_fixed() else seed  # 0: what a comparison draws
        with self._lock, kept, substitute_tensors(self._module, tensors, values), seed_all(seed):
            self._set_mode(training)
            try:
                yield dtype
            except Exception as error:  # whatever the user's code raises
                raise fails(self._module, error) from error


@dataclass(frozen=True, eq=False)
class HostLoss:
    """A loss of a module that stays in PyTorch."""

    module: Module  # the module
    function: Function  # (outputs, targets) -> scalar tensor, the mean over the batch
    buffered: bool  # whether it takes and returns buffers

    @property
    def asks(self) -> tuple[str, ...]:
        return ("key", "weights", "buffers") if self.buffered else ("key", "weights")

    def __call__(
        self,
        params: Any,
        batch: Any,
        key: Array | None = None,
        weights: Array | None = None,
        buffers: Any = None,
    ) -> Any:
        words = None if key is None else _words(key)
        value, after = _value(self, params, (tuple(batch), words, weights, buffers or {}))  # pyright: ignore
        return (value, after) if self.buffered else value

    def host(self, gradient: bool, params: Any, rest: Any) -> tuple[Any, Any, Any]:
        # padding never reaches the module
        batch, words, weights, buffers = rest
        if weights is not None:
            rows = np.asarray(weights) > 0
            rows[0] |= not rows.any()  # a step that is not taken
            batch = jax.tree.map(lambda a: np.asarray(a)[rows], batch)
        return self.module.loss(self.function, params, buffers, batch, words, gradient)

    def each(self, params: Any, batch: Any, key: Array | None = None, buffers: Any = None) -> Any:
        found = HostValues(self.module, self.function, self.buffered)(params, batch, buffers)
        return (found, buffers) if self.buffered else found


class _Evaluated:
    """What takes buffers where its module keeps some."""

    buffered: bool

    @property
    def asks(self) -> tuple[str, ...]:
        return ("buffers",) if self.buffered else ()


@dataclass(frozen=True)
class Outputs(_Evaluated):
    """The outputs of a module that stays in PyTorch."""

    module: Module  # the module
    # shapes without the first axis (None: an output without rows) and types of its outputs, flat; None for
    # the parameters' type
    sample: tuple[tuple[tuple[int, ...] | None, Any], ...]
    buffered: bool  # whether it takes buffers

    @classmethod
    def of(cls, module: Module, outputs: Any, rows: int) -> Outputs:
        # shapes and types are read off the outputs of a sample batch of `rows` rows
        found = []
        for t in pytree.tree_leaves(outputs):
            if not isinstance(t, Tensor):
                raise InvalidInput(f"an output is {of_type(t)} in evaluation: give tensors alone")
            shape = tuple(t.shape[1:]) if t.ndim and len(t) == rows else None
            if shape is None and t.ndim:
                raise NotTranslatable(
                    f"an output of shape {tuple(t.shape)} has no row for each of {rows} examples"
                )
            found.append((shape, None if t.is_floating_point() else tensor_to_array(t).dtype))
        return cls(module, tuple(found), bool(module.buffers))

    def __call__(self, params: Any, batch: Any, buffers: Any = None) -> Any:
        run, rows = next(iter(params.values())).dtype, len(jax.tree.leaves(batch)[0])
        shapes = [
            jax.ShapeDtypeStruct(() if shape is None else (rows, *shape), run if dtype is None else dtype)
            for shape, dtype in self.sample
        ]

        def host(params: Any, batch: Any, buffers: Any) -> list[np.ndarray]:
            return self.module.outputs(params, buffers, batch)

        found = call_host(host, shapes, params, tuple(batch), buffers or {})
        return found[0] if len(found) == 1 else tuple(found)


@dataclass(frozen=True)
class HostValues(_Evaluated):
    """A metric of a module that stays in PyTorch, as the value of each example; fields as in `HostLoss`."""

    module: Module
    function: Function
    buffered: bool

    def __call__(self, params: Any, batch: Any, buffers: Any = None) -> Array:
        run = next(iter(params.values())).dtype
        rows = len(jax.tree.leaves(batch)[0])

        def host(params: Any, batch: Any, buffers: Any) -> np.ndarray:
            return self.module.values(self.function, params, buffers, batch)

        return call_host(host, jax.ShapeDtypeStruct((rows,), run), params, tuple(batch), buffers or {})


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _value(loss: HostLoss, params: Any, rest: Any) -> tuple[Any, Any]:
    value, _, after = _evaluate(loss, False, params, rest)
    return value, after


def _forward(loss: HostLoss, params: Any, rest: Any) -> Any:
    value, slope, after = _evaluate(loss, True, params, rest)
    return (value, after), slope


def _backward(loss: HostLoss, slope: Any, cotangent: Any) -> Any:
    return jax.tree.map(lambda g: cotangent[0].astype(g.dtype) * g, slope), None


_value.defvjp(_forward, _backward)


def _evaluate(loss: HostLoss, gradient: bool, params: Any, rest: Any) -> Any:
    run, buffers = next(iter(params.values())).dtype, rest[3]
    shape = lambda a: jax.ShapeDtypeStruct(jnp.shape(a), jnp.result_type(a))  # noqa: E731
    slope = jax.tree.map(shape, params) if gradient else {}
    results = jax.ShapeDtypeStruct((), run), slope, jax.tree.map(shape, buffers)

    def host(params: Any, rest: Any) -> Any:
        value, slope, after = loss.host(gradient, params, rest)
        kept = {n: after[n].astype(s.dtype) for n, s in results[2].items()}
        return value, slope, kept

    return call_host(host, results, params, rest)


def _in_type(function: Function, dtype: torch.dtype) -> Function:
    # a loss that holds tensors, such as class weights, converted to a type
    if not isinstance(function, nn.Module) or all(
        t.dtype == dtype for t in function.state_dict().values() if t.is_floating_point()
    ):
        return function
    return copy.deepcopy(function).to(dtype)


def _words(key: Array) -> Array:
    return jax.random.key_data(key) if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else key


# Items of a data set put together to a batch, and why they cannot be.


def collate(who: str, items: Sequence[Any]) -> Any:
    # `who` is what errors call the data set
    try:
        return default_collate(list(items))
    except Exception as error:  # whatever a user's class raises too
        raise InvalidInput(
            f"{who}: {_first_odd(items) or f'its items make no batch ({type(error).__name__})'}"
        ) from error


def no_batch(error: Exception) -> InvalidInput | None:
    # why a loader's own collating failed; None if something else did
    text = str(error)
    if "stack expects each tensor to be equal size" not in text and "default_collate: " not in text:
        return None
    last = text.strip().splitlines()[-1]
    return InvalidInput(
        f"the loader cannot put the items of a batch together ({last}): give all one shape and type in the dataset's "
        "transform, or give the DataLoader a collate_fn that pads them"
    )


def _first_odd(items: Sequence[Any]) -> str:
    first = pytree.tree_leaves(items[0])
    for i, item in enumerate(items):
        parts = pytree.tree_leaves(item)
        for part in parts:
            if not isinstance(part, Tensor | np.ndarray | np.generic | Number | str | bytes):
                return f"item {i} holds {of_type(part)}: make tensors in the dataset's transform, such as ToTensor()"
        for shape, wanted in zip(map(np.shape, parts), map(np.shape, first), strict=False):
            if shape != wanted:
                return (
                    f"item {i} has a part of shape {tuple(shape)}, item 0 {tuple(wanted)}: pad or crop them to one "
                    "shape in the dataset's transform"
                )
    return ""
