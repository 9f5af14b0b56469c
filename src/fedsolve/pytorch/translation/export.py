"""A module of PyTorch, traced in one mode into a program of Core ATen operations."""

from __future__ import annotations

import contextlib
import inspect
import io
import logging
import warnings
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch._export.utils
import torch.fx.proxy
import torch.utils._pytree as pytree
from torch import nn
from torch._decomp import get_decompositions
from torch.export import Dim, ExportedProgram
from torch.fx import Graph, Node

from fedsolve.pytorch.translation.arrays import kept_attributes, mode_setter

# these have no good decomposition: kept whole, they keep their speed or their exact form, take our random key,
# or (detach) the gradient that they stop
KEPT = frozenset(
    """
    dropout alpha_dropout feature_dropout feature_alpha_dropout native_dropout
    layer_norm group_norm native_layer_norm native_group_norm
    _native_batch_norm_legit _native_batch_norm_legit_functional _native_batch_norm_legit_no_training
    scaled_dot_product_attention lstm gru rnn_tanh rnn_relu detach
    hardsigmoid hardswish multilabel_margin_loss_forward multi_margin_loss sinc std std_mean
    """.split()  # noqa: SIM905
)


def exported(module: nn.Module, inputs: tuple[Any, ...], training: bool) -> ExportedProgram:
    """The module's program in Core ATen for batches of any size.

    Args:
        module: its modes are as before afterwards.
        inputs: an example batch of at least 2 rows, pytrees of tensors; first axes of that length are the batch.
        training: in training mode, else in evaluation mode.

    Raises:
        Exception: whatever `torch.export` says of the module.
    """
    modes = [(part, part.training) for part in module.modules()]
    rows = next(len(t) for t in pytree.tree_leaves(inputs) if isinstance(t, torch.Tensor))
    named = inspect.signature(module.forward).bind(*inputs).arguments  # `*args` is one of them
    dynamic = _axes(dict(named), rows)
    try:
        mode_setter(module)(training)
        kept = kept_attributes(module)
        with (
            kept,
            silence(),
            _all_frames(),
            _masks_as_they_are(),
            _operations_listed_once(),
            _own_alone(),
            _unvalidated(),
        ):
            program = torch.export.export(module, inputs, dynamic_shapes=dynamic, strict=False)
            _keep_stopped(program)
            return program.run_decompositions(_table())
    finally:
        for part, mode in modes:
            part.training = mode


class _Everything(set[Any]):
    """A set that holds everything."""

    def __contains__(self, item: object) -> bool:
        return True


def _all_frames() -> Any:
    """Stacks of operations with all frames: PyTorch keeps those of methods named `forward` alone, and no lambda's."""
    return mock.patch.object(torch.fx.proxy, "_STACK_TRACE_ANCHORS", _Everything(), create=True)


def _unvalidated() -> Any:
    """Distributions that do not look whether their arguments are valid, which no program can: PyTorch's trial did."""
    return mock.patch.object(torch.distributions.Distribution, "_validate_args", new=False)


def _masks_as_they_are() -> Any:
    """Transformers that do not compare their mask's values with a causal one, which no program can: it is applied."""

    def given(mask: Any, is_causal: bool | None = None, size: int | None = None) -> bool:
        return is_causal is True

    return mock.patch.object(torch.nn.modules.transformer, "_detect_is_causal_mask", given, create=True)


@contextlib.contextmanager
def _operations_listed_once() -> Iterator[None]:
    """PyTorch's list of its operations made once: it makes it 50 times for a program, a fifth of the time (2.13)."""
    name = "_materialize_cpp_cia_ops"
    getattr(torch._export.utils, name, lambda: None)()
    with mock.patch.object(torch._export.utils, name, return_value=None, create=True):
        yield


def _own_alone() -> Any:
    """Operations that PyTorch decomposes by itself left to it: it registers some 900 of them again and again for a
    program, a third of the time, to do what they do anyway (2.13)."""
    register = getattr(torch.export.exported_program, "_override_composite_implicit_decomp", None)

    def own(rules: dict[Any, Any]) -> Any:
        return (
            register({op: rule for op, rule in rules.items() if not _is_its_own(rule)}) if register else None
        )

    return mock.patch.object(
        torch.export.exported_program, "_override_composite_implicit_decomp", own, create=True
    )


def _is_its_own(rule: Any) -> bool:
    return getattr(getattr(rule, "func", None), "__name__", "") == "_special_op_to_decompose_cia"


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """No warnings, log lines and printed graphs of PyTorch's: what is wrong is raised, and said in one line."""
    level = logging.root.manager.disable
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(level)


def _axes(x: Any, rows: int) -> Any:
    """Which axes of inputs may have another length; a list for a container of a user's own, as PyTorch wants it."""
    if isinstance(x, torch.Tensor):
        return {0: Dim.DYNAMIC} if x.ndim and len(x) == rows else {}
    kind = pytree._get_node_type(x)
    if kind not in pytree.SUPPORTED_NODES:
        return None
    parts, context = pytree.SUPPORTED_NODES[kind].flatten_fn(x)
    axes = [_axes(part, rows) for part in parts]
    return pytree.SUPPORTED_NODES[kind].unflatten_fn(axes, context) if kind in pytree.BUILTIN_TYPES else axes


def _keep_stopped(program: ExportedProgram) -> None:
    """Write `torch.no_grad()` as detached results: decompositions would forget it."""
    graph = program.graph
    for node in list(graph.nodes):
        if node.op != "call_function" or "wrap_with_set_grad_enabled" not in str(node.target) or node.args[0]:
            continue
        for result in list(node.users):
            if isinstance(result.meta.get("val"), torch.Tensor):
                with graph.inserting_after(result):
                    stopped = graph.call_function(torch.ops.aten.detach.default, (result,))
                stopped.meta = dict(result.meta)
                result.replace_all_uses_with(stopped, lambda user, own=stopped: user is not own)
    program.graph_module.recompile()


def _table() -> dict[Any, Any]:
    table = torch.export.default_decompositions()
    table.update(get_decompositions([torch.ops.aten.grid_sampler_2d]))
    for overload in list(table):
        if str(overload).split(".")[1] in KEPT:
            table.pop(overload)
    return table


_LARGEST = 2**31 - 1
_GROWING = frozenset(
    """
    add sub rsub mul pow sum prod cumsum cumprod bitwise_left_shift __lshift__ mm bmm addmm dot mv matmul
    scatter_add scatter_reduce index_add index_put
    """.split()  # noqa: SIM905
)
_ENDS = frozenset(("slice", "slice_scatter"))  # to which the largest integer means the end of an axis


def computes_in_64_bits(graph: Graph, inputs: list[Node], dtype: torch.dtype) -> bool:
    """Whether results may depend on integers, or on floating-point numbers, having 64 bits.

    So they may where integers are computed from the data, or from literals of more than 32 bits, and where numbers are
    converted to a wider type than the module's, `dtype`.
    Of the graph's placeholders `inputs` are data.
    """
    of_data = set(inputs)
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        if any(n in of_data for n in node.all_input_nodes):
            of_data.add(node)
        own = _type(node)
        if (own == torch.float64 and dtype == torch.float32) or _has_long_literal(node):
            return True
        if own == torch.int64 and node in of_data and _grows(node):
            return True
    return False


def exceeds_32_bits(array: np.ndarray) -> bool:
    """Whether integers leave 32 bits."""
    return array.dtype.kind in "iu" and array.size > 0 and max(-int(array.min()), int(array.max())) > _LARGEST


def _type(node: Any) -> torch.dtype | None:
    value = node.meta.get("val")
    value = value[0] if isinstance(value, tuple | list) and value else value
    return getattr(value, "dtype", None)


def _name(node: Node) -> str:
    return str(node.target).removeprefix("aten.").split(".")[0]


def _has_long_literal(node: Node) -> bool:
    numbers = [a for a in (*node.args, *node.kwargs.values()) if isinstance(a, int)]
    return _name(node) not in _ENDS and any(abs(n) > _LARGEST for n in numbers)


def _grows(node: Node) -> bool:
    """Whether an operation may give larger integers than it is given; a count of truths stays small."""
    given = {_type(n) for n in node.all_input_nodes} - {None, torch.bool}
    floating = any(t.is_floating_point for t in given if t is not None)
    return bool(given) and (_name(node) in _GROWING or (_name(node) == "_to_copy" and floating))
