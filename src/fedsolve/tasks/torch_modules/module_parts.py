"""What a task is made of that trains a PyTorch module: its translation, or calls of it, with PyTorch's own numbers."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from fedsolve.core.errors import InvalidInput
from fedsolve.core.trees import dtype_of
from fedsolve.tasks.leaves import Merged, WithFrozen
from fedsolve.tasks.losses.sums import Whole
from fedsolve.tasks.task import Examples
from fedsolve.tasks.torch_modules.agreement import Agreement
from fedsolve.tasks.torch_modules.module_losses import LossWithBuffers, MetricWithBuffers, OfModule
from fedsolve.tasks.torch_modules.module_sums import (
    LossBehind,
    ModuleOutputs,
    SumsBehind,
    SumsOfModule,
    SumsWithBuffers,
    on_whole_sets,
)

if TYPE_CHECKING:
    from torch import nn

    from fedsolve.pytorch.callback import Module
    from fedsolve.pytorch.loss_analysis import Judged


_OF_A_BATCH = "compute what is of a whole batch in the loss, from outputs for each example"
_MIXING = f"its outputs for an example depend on the others of the batch in evaluation: {_OF_A_BATCH}"


class Parts(NamedTuple):
    """What a task is made of; `outputs` are the module's, of its parameters and inputs."""

    params: dict[str, np.ndarray]
    frozen: dict[str, np.ndarray]
    buffers: dict[str, np.ndarray]
    functions: dict[str, Any]
    outputs: Any


def parts_of(
    module: nn.Module,
    functions: Mapping[str, Judged],
    examples: Examples,
    x: Any,
    outputs: Any,
    y: Any,
    translate: bool | None,
) -> tuple[Parts, tuple[str, ...]]:
    """The module translated, or called where it cannot or shall not be, and what is to be said of that.

    Args:
        module: it stays as it is.
        functions: the loss and metrics, of outputs and targets.
        examples: of all clients.
        x, outputs, y: a batch, as tensors.
        translate: None decides.

    Raises:
        InvalidInput: a module that cannot be trained as PyTorch would, or not be translated though it shall be.
    """
    from fedsolve.pytorch.translation.registry import NotTranslatable

    theirs = _Theirs(module, functions, examples)
    if translate is False:
        why = "the module runs in PyTorch, one client after another: translate=False"
        return _in_pytorch(module, functions, x, outputs, y, theirs), (why,)
    try:
        return _translated(module, functions, x, outputs, y, theirs), ()
    except NotTranslatable as error:
        why = f"{type(module).__name__} cannot be translated: {error}"
        if translate:
            raise InvalidInput(f"{why}; leave translate=True out to run it in PyTorch") from error
        return _in_pytorch(module, functions, x, outputs, y, theirs), (
            f"{why}; it runs in PyTorch, one client after another",
        )


class _Theirs:
    """PyTorch's own numbers, to compare a task's functions with."""

    def __init__(self, module: nn.Module, functions: Mapping[str, Judged], examples: Examples) -> None:
        by_batch = {name: f.function for name, f in functions.items() if not f.no_mean}
        self._given = module, by_batch, examples

    @cached_property
    def wide(self) -> Agreement:
        """In float64, or in the module's own type where it takes no other, or computes otherwise in it (autocast)."""
        import torch

        try:
            wide = Agreement(*self._given, torch.float64)
        except InvalidInput:
            return self.own
        return self.own if wide.reference.autocast else wide

    @cached_property
    def own(self) -> Agreement:
        """In the type of the module's parameters."""
        from fedsolve.pytorch.translation.arrays import trainable

        return Agreement(*self._given, next(iter(trainable(self._given[0]).values())).dtype)

    @cached_property
    def narrow(self) -> Agreement | None:
        """As a run in float32 has numbers, at the extremes of integers too; None if the module takes no float32."""
        import torch

        for extremes in (True, False):
            try:
                return Agreement(*self._given, torch.float32, extremes)
            except InvalidInput:  # of such integers, which no example may have together, or of the type
                continue
        return None


def _translated(
    module: nn.Module, functions: Mapping[str, Judged], x: Any, outputs: Any, y: Any, theirs: _Theirs
) -> Parts:
    from fedsolve.pytorch.translation.model import Model
    from fedsolve.pytorch.translation.registry import NotTranslatable
    from fedsolve.tasks.torch_modules.evaluated import of_translated

    model, made = Model(module, x), {}
    merged = partial(Merged, merge=Complete(model.frozen)) if model.frozen else _same
    for name, f in functions.items():
        if f.no_mean:
            made[name] = on_whole_sets(model, f.function, outputs, y, merged)
        elif f.rows is None:
            raise NotTranslatable(f.untold)
        elif f.sums is not None:
            made[name] = merged((SumsWithBuffers if model.buffers else SumsOfModule)(model, f.sums))
        else:
            kind = OfModule if not model.buffers else LossWithBuffers if name == "loss" else MetricWithBuffers
            made[name] = merged(kind(model, f.rows))
    by_batch = _by_batch(made)
    evaluate = of_translated(by_batch, model.buffers, theirs.wide.type)
    difference = theirs.wide.difference(evaluate, _unknown(outputs))
    if difference := difference or theirs.wide.left_out():  # what acts on other values than the sample's, too
        raise NotTranslatable(difference)
    if model.wide or any(f.rows is not None and f.rows.program.wide for f in functions.values()):
        _check_narrow(by_batch, model.buffers, theirs)
    return Parts(model.params, model.frozen, model.buffers, made, merged(ModuleOutputs(model)))


def _check_narrow(made: Mapping[str, Any], buffers: Mapping[str, Any], theirs: _Theirs) -> None:
    """Raise `NotTranslatable` if 32 bits are not enough for what the module computes in 64."""
    from fedsolve.pytorch.translation.registry import NotTranslatable
    from fedsolve.tasks.torch_modules.evaluated import of_translated

    if theirs.narrow is None:
        return
    try:
        difference = theirs.narrow.difference(
            of_translated(made, buffers, theirs.narrow.type), "it needs the 64 bits of its own types"
        )
    except OverflowError as error:  # of a literal
        difference = str(error)
    if difference:
        raise NotTranslatable(f"in 32 bits, as runs in float32 compute, {difference}")


def _in_pytorch(
    module: nn.Module, functions: Mapping[str, Judged], x: Any, outputs: Any, y: Any, theirs: _Theirs
) -> Parts:
    """The module called: the first way that has PyTorch's numbers.

    A copy of it, or itself where a copy does something else; evaluated by sums that JAX takes, or by PyTorch's values
    of examples, where the loss refers to what trains; in batches, or each example by itself, as one that draws then.
    """
    from fedsolve.pytorch.callback import Module, Outputs
    from fedsolve.pytorch.translation.export import draws_in_evaluation, silence
    from fedsolve.tasks.torch_modules.evaluated import of_called

    difference = None
    draws = draws_in_evaluation(module, [f.function for f in functions.values()], x, y)
    ways = (True,) if draws else (False, True)
    for alone, by_sums, copied in itertools.product(ways, (True, False), (True, False)):
        own = Module(module, copied, alone)
        made = _called(own, functions, outputs, y, by_sums)
        try:
            with silence():  # JAX prints what a callback raises
                found = theirs.own.difference(
                    of_called(_by_batch(made), theirs.own.type), _unknown(outputs), _MIXING
                )
        except Exception:  # what the user's code raises of one example alone
            if not alone:
                raise
            continue
        if found is None:
            return Parts(
                own.params, {}, own.buffers, made, ModuleOutputs(Outputs.of(own, outputs, rows_of(y)))
            )
        difference = difference or found
    raise InvalidInput(f"{type(module).__name__} cannot be trained: run by its own code too, {difference}")


def _called(
    own: Module, functions: Mapping[str, Judged], outputs: Any, y: Any, by_sums: bool
) -> dict[str, Any]:
    from fedsolve.pytorch.callback import HostLoss, HostValues, Outputs

    made: dict[str, Any] = {}
    rows = rows_of(y)
    for name, f in functions.items():
        kind = HostLoss if name == "loss" else HostValues
        made[name] = kind(own, f.function, bool(own.buffers))
        if f.no_mean:
            made[name] = on_whole_sets(Outputs.of(own, outputs, rows), f.function, outputs, y, _same)
        elif f.sums is not None and by_sums:
            values = SumsBehind(Outputs.of(own, outputs, rows), f.sums)
            made[name] = LossBehind(values, made[name]) if name == "loss" else values
    return made


def _unknown(outputs: Any) -> str:
    """What is said where no cause is found."""
    from torch.utils import _pytree as pytree

    if all(t.ndim for t in pytree.tree_leaves(outputs) if hasattr(t, "ndim")):
        return "the cause is not known"
    return f"an output has no row for each example: {_OF_A_BATCH}"


def rows_of(targets: Any) -> int:
    """How many examples some targets are of."""
    return len(next(t for t in jax.tree.leaves(targets) if t.ndim))


def _by_batch(functions: Mapping[str, Any]) -> dict[str, Any]:
    """Those that have a value on a batch."""
    return {name: f for name, f in functions.items() if not isinstance(f, Whole)}


class Complete:
    """Trained parameters -> with those that do not train, which are given beside them or are as at first."""

    def __init__(self, frozen: Mapping[str, np.ndarray]) -> None:
        self.frozen = dict(frozen)

    def __call__(self, params: Any) -> dict[str, Any]:
        """All parameters by name."""
        if isinstance(params, WithFrozen):
            return {**params.frozen, **params.trained}
        dtype = dtype_of(params)  # float64 where the model is compared with PyTorch's
        frozen = {name: x.astype(dtype) if x.dtype.kind == "f" else x for name, x in self.frozen.items()}
        return {**frozen, **params}


def _same(given: Any) -> Any:
    return given
