"""A module run once in each mode, before anything is made of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import is_dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn

from fedsolve.core.errors import InvalidInput, of_type
from fedsolve.core.loss_checks import first_line
from fedsolve.pytorch.callback.batch_losses import row_of
from fedsolve.pytorch.callback.seeds import all_seeded, global_states
from fedsolve.pytorch.translation.arrays import check_weights, copied, mode_setter
from fedsolve.pytorch.translation.failures import where_raised


def outputs_of(module: nn.Module, x: Any) -> Any:
    """What a copy of the module gives in evaluation mode.

    Raises:
        InvalidInput: it fails in evaluation or in training mode (on which line), a buffer changes its shape, the module
            writes to its parameters, or gives something else when it is called again.
    """
    check_weights(module)
    _check_unwritten(module, x)
    own = copied(module)
    set_mode = mode_setter(own)
    set_mode(False)
    with torch.no_grad():
        outputs = _twice(own, x, "evaluation")
    set_mode(True)
    _twice(own, x, "training")
    _check_tensors(module, outputs)
    return outputs


def draws_in_evaluation(module: nn.Module, functions: Iterable[Any], x: Any, y: Any) -> bool:
    """Whether module or functions of its outputs draw in evaluation, PyTorch's, NumPy's or Python's random numbers."""
    own = copied(module).eval()
    with torch.no_grad(), all_seeded(0):
        before = global_states(), torch.get_rng_state().tolist()
        outputs = called(own, pytree.tree_map_only(Tensor, torch.clone, x), "evaluation")
        for function in functions:
            function(outputs, y)
        return (global_states(), torch.get_rng_state().tolist()) != before


def loses_by_rounding(module: nn.Module, x: Any, dtype: torch.dtype) -> bool:
    """Whether a module takes inputs of more digits than a type has, and gives something else for them when rounded.

    `x` are floating-point numbers as the data have them, and `dtype` is the type to which a run rounds them.
    """
    exact, rounded = (pytree.tree_map_only(Tensor, lambda t, to=to: _in(t, to), x) for to in (None, dtype))
    leaves = zip(pytree.tree_leaves(exact), pytree.tree_leaves(rounded), strict=True)
    if all(not isinstance(a, Tensor) or torch.equal(a.double(), b.double()) for a, b in leaves):
        return False
    own = copied(module).eval()
    try:
        with torch.no_grad():
            outputs = [pytree.tree_leaves(_once(own, values, "evaluation")) for values in (exact, rounded)]
    except InvalidInput:  # it takes numbers of its own type alone, to which its user rounds them
        return False
    return not all(_near(a, b) for a, b in zip(*outputs, strict=True) if isinstance(a, Tensor))


def _in(t: Tensor, dtype: torch.dtype | None) -> Tensor:
    return t.to(dtype) if dtype is not None and t.is_floating_point() else t


def _near(a: Tensor, b: Tensor) -> bool:
    """Whether outputs are equal but for what float32 rounds on the way."""
    a, b = a.double(), b.double()
    return bool(torch.nan_to_num(a - b).abs().max() <= 1e-3 * torch.nan_to_num(b).abs().max().clamp(min=1e-3))


def _check_tensors(module: nn.Module, outputs: Any) -> None:
    leaves = pytree.tree_leaves(outputs)
    if not any(isinstance(t, Tensor) for t in leaves):
        raise InvalidInput(
            f"{type(module).__name__} gives {of_type(outputs)} without tensors: give a tensor, or a "
            "tuple, list, dictionary or dataclass of tensors"
        )
    if not any(t.ndim for t in leaves if isinstance(t, Tensor)):
        raise InvalidInput(
            f"{type(module).__name__} gives a number for a whole batch: give outputs for each example, and compute the "
            "loss from them in loss(outputs, targets)"
        )


def _twice(module: nn.Module, x: Any, mode: str) -> Any:
    """What it gives; the same again from the same buffers and random numbers, or it keeps what no run could know."""
    before = {name: b.detach().clone() for name, b in module.named_buffers()}
    first = _once(module, x, mode)
    _check_shapes(module, before)
    for name, b in module.named_buffers():
        if name in before:
            b.detach().copy_(before[name])
    pairs = zip(pytree.tree_leaves(first), pytree.tree_leaves(_once(module, x, mode)), strict=True)
    if not all(_equal(a, b) for a, b in pairs if isinstance(a, Tensor)):
        raise InvalidInput(
            f"{type(module).__name__} gives other outputs when it is called again in {mode} with the same inputs, "
            "parameters and buffers: keep what it remembers between calls in a buffer"
        )
    return first


def _once(module: nn.Module, x: Any, mode: str) -> Any:
    inputs = pytree.tree_map_only(Tensor, torch.clone, x)  # which it may write to
    with all_seeded(0):  # copies: of a view, `torch.export` would follow what it is a view of
        return pytree.tree_map_only(Tensor, torch.clone, _with_known_container(called(module, inputs, mode)))


def _check_shapes(module: nn.Module, before: dict[str, Tensor]) -> None:
    for name, b in module.named_buffers():
        shape = before.get(name, b).shape
        if b.shape != shape:
            raise InvalidInput(
                f"buffer '{name}' of {type(module).__name__} has shape {tuple(shape)}, after a batch in "
                f"training {tuple(b.shape)}: give it from the start the shape that it keeps, since buffers are averaged"
            )


def _check_unwritten(module: nn.Module, x: Any) -> None:
    """At other weights: a target that follows weights which it equals at the start is not written to otherwise."""
    own, draw = copied(module), torch.Generator().manual_seed(0)
    mode_setter(own)(True)
    with torch.no_grad():
        for p in own.parameters():
            if p.is_floating_point():
                p.add_(0.01 * torch.randn(p.shape, generator=draw).to(p))
    given = {name: p.detach().clone() for name, p in own.named_parameters()}
    try:
        _once(own, x, "training")
    except InvalidInput:  # told at its own weights
        return
    for name, p in own.named_parameters():
        if not _equal(p, given[name]):
            raise written(module, name)


def written(module: nn.Module, name: str) -> InvalidInput:
    """That a module writes to a parameter."""
    return InvalidInput(
        f"{type(module).__name__} writes to its parameter '{name}' when it is called, which no method would know of: "
        "compute what it uses from the parameter, such as F.linear(x, self.weight.clamp(-1, 1)), or keep a moving "
        "average in a buffer"
    )


def _equal(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.allclose(a.detach(), b.detach(), rtol=1e-5, equal_nan=True)


def called(module: nn.Module, x: Any, mode: str) -> Any:
    """What a module gives; `InvalidInput`, with shapes and the line, where it fails."""
    try:
        return module(x)
    except Exception as error:  # whatever the user's code raises
        shapes = ", ".join(str(tuple(t.shape)) for t in pytree.tree_leaves(x) if isinstance(t, Tensor))
        raise InvalidInput(
            f"{type(module).__name__} fails in {mode} on inputs of shape {shapes}: "
            f"{first_line(error)}{where_raised(error)}"
        ) from error


def check_alone(module: nn.Module, x: Any, rows: int, where: str, remedy: str) -> None:
    """Raise `InvalidInput` if a module in training mode takes no batch of one example, which `where` has.

    Its buffers may change. `x` are inputs of a batch of `rows` examples.
    """
    try:
        with torch.no_grad():
            called(module, pytree.tree_map_only(Tensor, Tensor.clone, row_of(x, 0, rows)), "training")
    except InvalidInput as error:
        raise InvalidInput(f"{where} has one example: {error}: {remedy}") from error


def _with_known_container(outputs: Any) -> Any:
    """Outputs as they are; PyTorch knows from then on how to look into their container."""
    kind = type(outputs)
    if kind in pytree.SUPPORTED_NODES:
        return outputs
    if is_dataclass(kind):
        torch.export.register_dataclass(kind)
    elif isinstance(outputs, dict):
        pytree.register_pytree_node(
            kind,
            lambda d: (list(d.values()), tuple(d)),
            lambda values, keys: kind(dict(zip(keys, values, strict=True))),
            flatten_with_keys_fn=_with_keys,
        )
    return outputs


def _with_keys(values: Any) -> tuple[list[tuple[Any, Any]], Any]:
    return [(pytree.MappingKey(key), value) for key, value in values.items()], tuple(values)
