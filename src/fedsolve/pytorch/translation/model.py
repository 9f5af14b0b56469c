"""A module of PyTorch and what is made of its outputs, as functions of JAX arrays."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from types import FunctionType
from typing import Any

import jax
import jax.numpy as jnp
import torch
import torch.utils._pytree as pytree
from jaxtyping import Array
from torch import Tensor, nn

from fedsolve.core.errors import InvalidInput
from fedsolve.pytorch.translation.arrays import as_array, buffer_tensors, check_weights, is_large, trainable
from fedsolve.pytorch.translation.export import LARGEST, exceeds_32_bits, export_module, is_same_in_both_modes
from fedsolve.pytorch.translation.registry import NotTranslatable, why_not_exported
from fedsolve.pytorch.translation.translate import Program

Values = Mapping[str, Any]


class Model:
    """A module in JAX: in training mode where a key is given, else in evaluation mode.

    Parameters have one floating-point type, `dtype`: `params` train (`requires_grad`), `frozen` do not, and it is
    called with both; `buffers` are what training writes to, such as running statistics. `asks` are its arguments beside
    parameters and inputs: a key, if training mode draws or differs from evaluation mode. `mixing` and
    `mixing_evaluated` tell whether an example's outputs depend on others of its batch, `wide` whether it computes in 64
    bits what a run in float32 has in 32. `x` is an example batch of at least 2 rows; `remat` and `largest` as `Program`
    has them.
    """

    def __init__(self, module: nn.Module, x: Any, remat: str | None = None, largest: float = LARGEST) -> None:
        check_weights(module)
        self.dtype = next(iter(trainable(module).values())).dtype
        everything = dict(module.named_parameters(remove_duplicate=False)) | dict(
            module.named_buffers(remove_duplicate=False)
        )
        first: dict[int, str] = {}
        # shared weights
        self._first = {name: first.setdefault(id(t), name) for name, t in everything.items()}
        exported = _exported(module, (x,), True)
        program = partial(
            Program, dtype=self.dtype, remat=remat, largest=largest, channels_last=is_large(module)
        )
        self._training = self._evaluation = program(exported)
        if not is_same_in_both_modes(module, x):
            evaluated = _exported(module, (x,), False)
            if _form(exported) != _form(evaluated):
                raise NotTranslatable("its outputs have another structure in training than in evaluation")
            self._evaluation = program(evaluated)
        if remat is not None and not (self._training.blocks and self._evaluation.blocks):
            raise InvalidInput(
                f"remat = {remat!r}: {type(module).__name__} has no blocks, several children of one class in an "
                "nn.ModuleList or nn.Sequential: leave remat out"
            )
        # parameters are in the module's memory, which nobody writes to meanwhile
        values = {name: as_array(t) for name, t in everything.items() if self._first[name] == name}
        held = list(values.values())
        written = {self._first[name] for name in self._training.written}
        for name in sorted(written - buffer_tensors(module).keys()):
            raise InvalidInput(f"the module writes to '{name}', which is not a buffer that it saves")
        self.params = {name: values.pop(name) for name in trainable(module)}
        self.buffers = {name: values.pop(name).copy() for name in sorted(written)}
        self.frozen = {name: values.pop(name) for name, p in module.named_parameters() if not p.requires_grad}
        self._constants = {name: value.copy() for name, value in values.items()}
        programs = self._training, self._evaluation
        draws = self._training.random or self._training.digest != self._evaluation.digest
        self.asks = ("key",) if draws else ()
        self.mixing, self.mixing_evaluated = self._training.mixing, self._evaluation.mixing
        self.wide = any(p.wide for p in programs) or any(map(exceeds_32_bits, held))
        self.digest = [p.digest for p in programs], sorted(values.items())

    def __call__(self, params: Values, x: Any, key: Array | None = None) -> Any:
        return self.apply(params, self.buffers, x, key)[0]

    def apply(
        self, params: Values, buffers: Values, x: Any, key: Array | None, weights: Array | None = None
    ) -> tuple[Any, dict[str, Array]]:
        # outputs and new buffers. weights: 0 or 1 for each example, shape (n,), or None where all count
        run = next(iter(params.values())).dtype
        kept = {**self._constants, **buffers}
        own = {name: _cast(value, run) for name, value in kept.items()} | dict(params)
        values = {name: own[first] for name, first in self._first.items()}
        if key is None and self._evaluation.random:
            return self._by_example(values, x), dict(buffers)
        program = self._evaluation if key is None else self._training
        outputs, written = program(values, jax.tree.leaves(x), key, weights)
        after = {
            first: written[name].astype(jnp.result_type(buffers[first]))
            for name, first in self._first.items()
            if name in written
        }
        return outputs[0] if len(outputs) == 1 else tuple(outputs), {**buffers, **after}

    def _by_example(self, values: Values, x: Any) -> Any:
        # of a module that draws in evaluation too: each example alone, by the same draws

        def alone(row: Any) -> list[Array]:
            return self._evaluation(values, [a[None] for a in jax.tree.leaves(row)])[0]

        outputs = [o[:, 0] if o.ndim > 1 else jnp.mean(o) for o in jax.vmap(alone)(x)]
        return outputs[0] if len(outputs) == 1 else tuple(outputs)


class OnRows:
    """A loss or a metric of PyTorch, (outputs, targets) -> tensor, as the value of each example.

    It is applied to one row of the outputs at a time (vmapped), whose mean it is for the batch (`check_mean`): so the
    model itself sees whole batches, and padding can be left out. The function is an `nn.Module` or a function; its
    value a scalar, the mean over the batch, or one for each row.
    """

    def __init__(
        self, name: str, function: Callable[..., Any], outputs: Any, targets: Any, dtype: torch.dtype
    ) -> None:
        wrapped = _Applied(function)
        program = _exported_loss(wrapped, outputs, targets)
        self.name, self.program = name, Program(program, dtype)
        if self.program.random:
            raise NotTranslatable(f"{name} draws random numbers")
        tensors = {**dict(wrapped.named_parameters()), **program.constants}
        for tensor, held in tensors.items():
            if isinstance(held, Tensor) and held.requires_grad:
                raise InvalidInput(
                    f"{name} has a parameter of its own ({tensor}), which would not be trained: move it into the module"
                )
        self._values = {n: as_array(t).copy() for n, t in wrapped.state_dict().items()}
        leaves = pytree.tree_leaves((outputs, targets))
        rows = _rows(outputs)
        self._axes = tuple(0 if isinstance(t, Tensor) and t.ndim and len(t) == rows else None for t in leaves)
        self.digest = self.program.digest, sorted(self._values.items())

    def __call__(self, outputs: Any, targets: Any) -> Array:
        def value(held: Values, batch: list[Any], run: Any) -> Array:
            return jnp.mean(self.program(held, batch)[0][0].astype(run))

        return self.by_row(value, outputs, targets)

    def by_row(
        self, function: Callable[[Values, list[Any], Any], Array], outputs: Any, targets: Any
    ) -> Array:
        # leading axis (n,). `function` takes what the loss holds (`held`), the flat outputs and targets of a
        # batch of one row, and the type of the run
        leaves, held, run = self._given(outputs, targets)

        def one(*row: Any) -> Array:
            batch = [x if axis is None else x[None] for x, axis in zip(row, self._axes, strict=True)]
            return function(held, batch, run)

        return jax.vmap(one, in_axes=self._axes)(*leaves)

    def of_batch(self, outputs: Any, targets: Any) -> Array:
        # the value of all rows together
        leaves, held, run = self._given(outputs, targets)
        return jnp.mean(self.program(held, leaves)[0][0].astype(run))

    def _given(self, outputs: Any, targets: Any) -> tuple[list[Any], Values, Any]:
        leaves = [*(outputs if isinstance(outputs, tuple) else (outputs,)), *jax.tree.leaves(targets)]
        run = next(x.dtype for x in leaves if hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jnp.floating))
        return leaves, self.held(run), run

    def held(self, run: Any) -> Values:
        # class weights and the like, by name
        return {name: _cast(v, run) for name, v in self._values.items()}


class _Applied(nn.Module):
    """A function of outputs and targets as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function, self.widens = function, False

    def forward(self, outputs: Any, targets: Any) -> Any:
        if self.widens:
            targets = pytree.tree_map_only(Tensor, lambda t: t.long() if _is_bytes(t) else t, targets)
        return self.function(outputs, targets)


def _form(program: Any) -> Any:
    # the structure of the outputs, and the shape of an example in each of them
    written = len(program.graph_signature.buffers_to_mutate)
    outputs = list(program.graph.output_node().args[0])[written:]
    return program.call_spec.out_spec, [_shape(getattr(o, "meta", {}).get("val")) for o in outputs]


def _shape(value: Any) -> Any:
    return tuple(value.shape[1:]) if isinstance(value, Tensor) else None


def _cast(value: Any, run: Any) -> Any:
    return jnp.asarray(value, run if jnp.issubdtype(value.dtype, jnp.floating) else None)


def _rows(outputs: Any) -> int:
    return next(len(t) for t in pytree.tree_leaves(outputs) if isinstance(t, Tensor) and t.ndim)


def _is_bytes(x: Any) -> bool:
    return isinstance(x, Tensor) and x.dtype == torch.uint8


_PROGRAMS: dict[bytes, tuple[Any, bool]] = {}  # with whether they widen bytes


def _exported_loss(applied: _Applied, outputs: Any, targets: Any) -> Any:
    # PyTorch's own losses and the package's are exported once for the same shapes and types
    kind = applied.function if isinstance(applied.function, FunctionType) else type(applied.function)
    leaves, form = pytree.tree_flatten((outputs, targets))
    shapes = [(t.shape, t.dtype) if isinstance(t, Tensor) else t for t in leaves]
    key = b""
    with suppress(Exception):  # a local function, a hook: whatever cannot be pickled
        key = pickle.dumps((applied.function, str(form), shapes))
    if not key or not kind.__module__.startswith(("torch.nn.modules.loss", "fedsolve.")):
        return _newly_exported(applied, outputs, targets)
    if key not in _PROGRAMS:
        _PROGRAMS[key] = _newly_exported(applied, outputs, targets), applied.widens
    program, applied.widens = _PROGRAMS[key]
    return program


def _newly_exported(applied: _Applied, outputs: Any, targets: Any) -> Any:
    # with int64 in place of bytes where `torch.export` knows no bytes, though PyTorch takes them as labels
    try:
        return _exported(applied, (outputs, targets), False)
    except NotTranslatable:
        if not any(map(_is_bytes, pytree.tree_leaves(targets))):
            raise
    applied.widens = True
    return _exported(applied, (outputs, targets), False)


def _exported(module: nn.Module, inputs: tuple[Any, ...], training: bool) -> Any:
    try:
        return export_module(module, inputs, training)
    except Exception as error:  # whatever `torch.export` says, and whatever the user's code raises
        raise NotTranslatable(why_not_exported(error)) from error
