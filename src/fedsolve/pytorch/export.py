"""A module of PyTorch, traced in one mode into a program that JAX can evaluate."""

from __future__ import annotations

import warnings
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import nn
from torch.export import Dim, ExportedProgram

# these have no good decomposition: kept whole, they keep their speed, their exact form, or take our random key
KEPT = frozenset(
    """
    dropout alpha_dropout feature_dropout feature_alpha_dropout native_dropout
    layer_norm group_norm native_layer_norm native_group_norm
    _native_batch_norm_legit _native_batch_norm_legit_functional _native_batch_norm_legit_no_training
    scaled_dot_product_attention lstm gru rnn_tanh rnn_relu
    """.split()  # noqa: SIM905
)


def exported(module: nn.Module, inputs: tuple[Any, ...], training: bool) -> ExportedProgram:
    """The module's program in Core ATen for batches of any size along the first axis of every input.

    Args:
        module: its modes are as before afterwards.
        inputs: an example batch of at least 2 rows, any pytrees of tensors.
        training: in training mode, else in evaluation mode.
    """
    modes = [(part, part.training) for part in module.modules()]
    dynamic = pytree.tree_map(lambda t: {0: Dim.DYNAMIC}, inputs)
    try:
        module.train(training)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.export.export(module, inputs, dynamic_shapes=(*dynamic,), strict=False)
            return program.run_decompositions(_table())
    finally:
        for part, mode in modes:
            part.training = mode


def _table() -> dict[Any, Any]:
    table = torch.export.default_decompositions()
    for overload in list(table):
        if str(overload).split(".")[1] in KEPT:
            table.pop(overload)
    return table
