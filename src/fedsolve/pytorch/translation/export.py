"""A module of PyTorch, traced in one mode into a program of Core ATen operations."""

from __future__ import annotations

import contextlib
import inspect
import io
import logging
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import is_dataclass
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.fx.proxy
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.fx import Graph, Node
from torch.utils._python_dispatch import TorchDispatchMode

from fedsolve.core.errors import InvalidInput, of_type
from fedsolve.core.loss_checks import first_line
from fedsolve.pytorch.batch_losses import global_states, seed_all
from fedsolve.pytorch.translation.arrays import copy_module, mode_setter, preserve_attributes
from fedsolve.pytorch.translation.decomposition import in_core_aten, registered_once
from fedsolve.pytorch.translation.registry import where_raised


def export_module(module: nn.Module, inputs: tuple[Any, ...], training: bool) -> ExportedProgram:
    # Core ATen for batches of any size; `inputs` is a batch of at least 2 rows, and first axes of that length
    # are the batch
    modes = [(part, part.training) for part in module.modules()]
    rows = next(len(t) for t in pytree.tree_leaves(inputs) if isinstance(t, torch.Tensor))
    named = inspect.signature(module.forward).bind(*inputs).arguments  # `*args` is one of them
    dynamic = _axes(dict(named), rows)
    try:
        mode_setter(module)(training)
        kept = preserve_attributes(module)
        with (
            kept,
            silence(),
            _all_frames(),
            _masks_as_they_are(),
            registered_once(),
            _unvalidated(),
        ):
            program = torch.export.export(module, inputs, dynamic_shapes=dynamic, strict=False)
            return in_core_aten(program)
    finally:
        for part, mode in modes:
            part.training = mode


class _Everything(set[Any]):
    """A set that holds everything."""

    def __contains__(self, item: object) -> bool:
        return True


def _all_frames() -> Any:
    # PyTorch keeps the frames of methods named `forward` alone, and no lambda's: errors name the user's line
    return mock.patch.object(torch.fx.proxy, "_STACK_TRACE_ANCHORS", _Everything(), create=True)


def _unvalidated() -> Any:
    # no program can look whether a distribution's arguments are valid; PyTorch's trial did
    return mock.patch.object(torch.distributions.Distribution, "_validate_args", new=False)


def _masks_as_they_are() -> Any:
    # transformers compare their mask's values with a causal one, which no program can: the mask is applied

    def given(mask: Any, is_causal: bool | None = None, size: int | None = None) -> bool:
        return is_causal is True

    return mock.patch.object(torch.nn.modules.transformer, "_detect_is_causal_mask", given, create=True)


@contextlib.contextmanager
def silence() -> Iterator[None]:
    # what is wrong is raised, and said in one line
    level = logging.root.manager.disable
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(level)


def _axes(x: Any, rows: int) -> Any:
    # which axes may have another length; a list for a user's own container, as PyTorch wants it
    if isinstance(x, torch.Tensor):
        return {0: Dim.DYNAMIC} if x.ndim and len(x) == rows else {}
    kind = pytree._get_node_type(x)
    if kind not in pytree.SUPPORTED_NODES:
        return None
    parts, context = pytree.SUPPORTED_NODES[kind].flatten_fn(x)
    axes = [_axes(part, rows) for part in parts]
    return pytree.SUPPORTED_NODES[kind].unflatten_fn(axes, context) if kind in pytree.BUILTIN_TYPES else axes


LARGEST = 2**31 - 1  # of 32 bits
_MOST_ROWS = 2**24  # of a batch
_GROWING = frozenset(
    """
    add sub rsub mul pow sum prod cumsum cumprod bitwise_left_shift __lshift__ mm bmm addmm dot mv matmul
    scatter_add scatter_reduce index_add index_put
    """.split()  # noqa: SIM905
)
# the results are some of the numbers that are given, or no larger
_KEEPING = frozenset(
    """
    _to_copy abs alias amax amin cat clamp clamp_max clamp_min clone constant_pad_nd detach div expand flip fmod
    full_like gather index index_select lift_fresh_copy masked_fill maximum minimum neg ones_like permute remainder
    repeat roll select slice squeeze unsqueeze view where
    """.split()  # noqa: SIM905
)
_ENDS = frozenset(("slice", "slice_scatter"))  # to which the largest integer means the end of an axis


def computes_in_64_bits(graph: Graph, inputs: list[Node], dtype: torch.dtype, largest: float) -> bool:
    # may results depend on numbers having 64 bits? So they may where integers computed from data (the
    # placeholders `inputs`, none beyond `largest`) or literals exceed 32 bits, and where numbers are converted to a
    # type wider than `dtype`
    bounds: dict[Node, float] = {node: 1 if _type(node) == torch.bool else largest for node in inputs}
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        own = _type(node)
        if (own == torch.float64 and dtype == torch.float32) or _has_long_literal(node):
            return True
        if any(n in bounds for n in node.all_input_nodes):
            bounds[node] = 1 if own == torch.bool else _bound(node, bounds)
            if own == torch.int64 and bounds[node] > LARGEST:
                return True
    return False


def _bound(node: Node, bounds: Mapping[Node, float]) -> float:
    # of integers computed from such, the largest size; of others beside them none is known
    name = _name(node)
    floating = any(getattr(_type(n), "is_floating_point", False) for n in node.all_input_nodes)
    arguments: list[Any] = [*node.args, *node.kwargs.values()]
    parts = [a for a in arguments if isinstance(a, Node) or type(a) in (int, float)]
    sizes = [bounds.get(a, LARGEST) if isinstance(a, Node) else abs(a) for a in parts]
    if name in _KEEPING and not (floating and name == "_to_copy"):
        nodes = [bounds.get(n, LARGEST) for n in node.all_input_nodes]
        return max(1, *nodes, *(() if name in _ENDS else sizes))
    if name in ("add", "sub", "rsub") and not node.kwargs:
        return sum(sizes)
    if name == "mul":
        return math.prod(sizes)
    if name in ("sum", "cumsum"):
        shape = parts[0].meta["val"].shape
        axes = arguments[1] if len(node.args) > 1 else None
        along = shape if axes in (None, []) else [shape[i] for i in np.atleast_1d(axes)]
        total = sizes[0] * math.prod(n if isinstance(n, int) else _MOST_ROWS for n in along)
        return min(total, LARGEST) if _type(parts[0]) == torch.bool else total
    return np.inf if name in _GROWING or name == "_to_copy" else LARGEST


def exceeds_32_bits(array: np.ndarray) -> bool:
    return array.dtype.kind in "iu" and array.size > 0 and max(-int(array.min()), int(array.max())) > LARGEST


def _type(node: Any) -> torch.dtype | None:
    value = node.meta.get("val")
    value = value[0] if isinstance(value, tuple | list) and value else value
    return getattr(value, "dtype", None)


def _name(node: Node) -> str:
    return str(node.target).removeprefix("aten.").split(".")[0]


def _has_long_literal(node: Node) -> bool:
    numbers = [a for a in (*node.args, *node.kwargs.values()) if isinstance(a, int)]
    return _name(node) not in _ENDS and any(abs(n) > LARGEST for n in numbers)


class _Operations(TorchDispatchMode):
    """Each operation of a pass with its arguments, tensors by name, by number as they are made, or by their values."""

    def __init__(self, named: dict[str, Tensor]) -> None:
        super().__init__()
        self.found: list[Any] = []
        self._held = list(named.values())  # so that no `id` is given twice
        self._names: dict[int, Any] = {id(t): name for name, t in named.items()}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = self.names((args, kwargs))
        result = func(*args, **(kwargs or {}))
        for t in pytree.tree_leaves(result):
            self._names.setdefault(id(t), len(self._held))
            self._held.append(t)
        self.found.append((str(func), given, self.names(result)))
        return result

    def names(self, values: Any) -> list[Any]:
        return [self._name(v) if isinstance(v, Tensor) else repr(v) for v in pytree.tree_leaves(values)]

    def _name(self, t: Tensor) -> Any:
        if id(t) not in self._names:  # made of numbers in Python
            self._held.append(t)
            self._names[id(t)] = str(t.dtype), tuple(t.shape), t.detach().double().numpy().tobytes()
        return self._names[id(t)]


def _first_rows(x: Any) -> Any:
    return pytree.tree_map_only(Tensor, lambda t: t[:2] if t.ndim else t, x)


def is_same_in_both_modes(module: nn.Module, x: Any) -> bool:
    # whether both compute by the same operations of the same tensors, so that one program is of both
    own, found = copy_module(module), []
    set_mode, start = mode_setter(own), {name: b.detach().clone() for name, b in own.named_buffers()}
    try:
        for training in (True, False):
            set_mode(training)
            for name, b in own.named_buffers():
                b.detach().copy_(start[name])
            inputs = pytree.tree_map_only(Tensor, torch.clone, _first_rows(x))
            leaves = {
                f"input {i}": t for i, t in enumerate(pytree.tree_leaves(inputs)) if isinstance(t, Tensor)
            }
            named = leaves | dict(own.named_parameters()) | dict(own.named_buffers())
            with seed_all(0), _Operations(named) as seen:
                found.append((seen.names(own(inputs)), seen.found))
    except Exception:  # whatever this mode or the user's code raises: each is exported
        return False
    return found[0] == found[1]


# A module run once in each mode, before anything is made of it.


def outputs_of(module: nn.Module, x: Any, is_large: bool = False) -> Any:
    # in evaluation mode, of a copy; both modes are tried, since what fails later fails inside a program
    some = _first_rows(x) if is_large else x  # to train on all takes twice the time and much memory
    _check_unwritten(module, some)
    own = copy_module(module)
    set_mode = mode_setter(own)
    set_mode(False)
    with torch.no_grad():
        outputs = _twice(own, x, "evaluation")
    set_mode(True)
    _twice(own, some, "training")
    _check_tensors(module, outputs)
    return outputs


def draws_in_evaluation(module: nn.Module, functions: Iterable[Any], x: Any, y: Any) -> bool:
    # from PyTorch's, NumPy's or Python's generators
    own = copy_module(module).eval()
    with torch.no_grad(), seed_all(0):
        before = global_states(), torch.get_rng_state().tolist()
        outputs = call_module(own, pytree.tree_map_only(Tensor, torch.clone, x), "evaluation")
        for function in functions:
            function(outputs, y)
        return (global_states(), torch.get_rng_state().tolist()) != before


def loses_by_rounding(module: nn.Module, x: Any, dtype: torch.dtype) -> bool:
    # x: floating numbers as the data have them; dtype: the type to which a run rounds them
    rounded = pytree.tree_map_only(Tensor, lambda t: t.to(dtype) if t.is_floating_point() else t, x)
    leaves = zip(pytree.tree_leaves(x), pytree.tree_leaves(rounded), strict=True)
    if all(not isinstance(a, Tensor) or torch.equal(a.double(), b.double()) for a, b in leaves):
        return False
    own = copy_module(module).eval()
    try:
        with torch.no_grad():
            outputs = [pytree.tree_leaves(_once(own, values, "evaluation")) for values in (x, rounded)]
    except InvalidInput:  # it takes numbers of its own type alone, to which its user rounds them
        return False
    return not all(_near(a, b) for a, b in zip(*outputs, strict=True) if isinstance(a, Tensor))


def _near(a: Tensor, b: Tensor) -> bool:
    # equal but for what float32 rounds on the way
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
    # from the same buffers and random numbers; other outputs mean a memory that no run could know
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
    with seed_all(0):  # copies: of a view, `torch.export` would follow what it is a view of
        return pytree.tree_map_only(
            Tensor, lambda t: t.detach().clone(), _with_known_container(call_module(module, inputs, mode))
        )


def _check_shapes(module: nn.Module, before: dict[str, Tensor]) -> None:
    for name, b in module.named_buffers():
        shape = before.get(name, b).shape
        if b.shape != shape:
            raise InvalidInput(
                f"buffer '{name}' of {type(module).__name__} has shape {tuple(shape)}, after a batch in "
                f"training {tuple(b.shape)}: give it from the start the shape that it keeps, since buffers are averaged"
            )


def _check_unwritten(module: nn.Module, x: Any) -> None:
    # at other weights: a target that follows weights which it equals at the start is not written to otherwise
    own, draw = copy_module(module), torch.Generator().manual_seed(0)
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
            raise writes_to_parameter(module, name)


def writes_to_parameter(module: nn.Module, name: str) -> InvalidInput:
    return InvalidInput(
        f"{type(module).__name__} writes to its parameter '{name}' when it is called, which no method would know of: "
        "compute what it uses from the parameter, such as F.linear(x, self.weight.clamp(-1, 1)), or keep a moving "
        "average in a buffer"
    )


def _equal(a: Tensor, b: Tensor) -> bool:
    # `allclose` alone takes as long as a pass through the module
    a, b = a.detach(), b.detach()
    return a.shape == b.shape and (torch.equal(a, b) or torch.allclose(a, b, rtol=1e-5, equal_nan=True))


def call_module(module: nn.Module, x: Any, mode: str) -> Any:
    # where it fails, shapes and the user's line are told
    try:
        return module(x)
    except Exception as error:  # whatever the user's code raises
        shapes = ", ".join(str(tuple(t.shape)) for t in pytree.tree_leaves(x) if isinstance(t, Tensor))
        raise InvalidInput(
            f"{type(module).__name__} fails in {mode} on inputs of shape {shapes}: "
            f"{first_line(error)}{where_raised(error)}"
        ) from error


def _with_known_container(outputs: Any) -> Any:
    # registers a user's own container with PyTorch's pytrees
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
