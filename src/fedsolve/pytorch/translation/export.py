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

import torch
import torch._export.utils
import torch.fx.proxy
import torch.utils._pytree as pytree
from torch import nn
from torch._decomp import get_decompositions
from torch.export import Dim, ExportedProgram

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
