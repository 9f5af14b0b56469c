"""What PyTorch makes of a user's module and loss: the module itself runs, with its hooks, and is then as before.

A translation may differ by what `torch.export` leaves out, and a copy (`cause`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from fedsolve.core.errors import InvalidInput
from fedsolve.core.loss_checks import REMEMBERED, check_again, check_slope, first_line
from fedsolve.pytorch.callback.batch_losses import mean_of, tensors_of
from fedsolve.pytorch.callback.seeds import all_seeded, global_states
from fedsolve.pytorch.comparison.autograd import Graph, gradients, refuse_late_hooks
from fedsolve.pytorch.comparison.fixed_draws import fixed_draws
from fedsolve.pytorch.comparison.unchanged import remembered_by
from fedsolve.pytorch.translation.arrays import (
    array_of,
    as_tensor,
    kept_attributes,
    mode_setter,
    substituted,
    trainable,
)
from fedsolve.pytorch.translation.failures import where_raised

Function = Callable[[Any, Any], Any]
Values = Mapping[str, Any]


class Found(NamedTuple):
    """What one evaluation in training mode gives.

    Attributes:
        loss: the mean over the batch.
        gradient: of each parameter that trains, by name.
        buffers: their values afterwards, by name.
        coarsest: the largest rounding unit of a type to which the module or the loss converts numbers.
        exact: what they give where such conversions do not round; None where nothing is converted, or it fails so.
    """

    loss: float
    gradient: Mapping[str, np.ndarray]
    buffers: Mapping[str, np.ndarray]
    coarsest: float = 0.0
    exact: Found | None = None


class Value(NamedTuple):
    """What one evaluation in evaluation mode gives.

    Attributes:
        value: the mean over the batch.
        coarsest, exact: as in `Found`.
    """

    value: float
    coarsest: float = 0.0
    exact: float | None = None


class Reference:
    """A module and its loss in PyTorch.

    Args:
        module: it runs itself, since a copy would lose the hooks of its parameters and is not what a loss refers to.
        loss: (outputs, targets) -> tensor.
        dtype: the floating-point type to compute in.

    Attributes:
        draws: whether the module or a function drew from Python's or NumPy's global random numbers so far.
        autocast: whether either entered `torch.autocast` so far, which leaves float64 as it is.
    """

    def __init__(self, module: nn.Module, loss: Function, dtype: torch.dtype) -> None:
        refuse_late_hooks(module)
        self.module, self.loss, self.dtype = module, loss, dtype
        self._name, self._set_mode = type(module).__name__, mode_setter(module)
        self.draws = self.autocast = False

    def training(self, params: Values, buffers: Values, batch: Any) -> Found:
        """Loss, gradient and new buffers in training mode, with fixed draws.

        Args:
            params: values of the parameters by name; others, and buffers that are not given, have the module's own.
            buffers: values of buffers by name.
            batch: inputs and targets, arrays.

        Raises:
            InvalidInput: what the user's code raises; a loss that depends on no parameter or on one
                outside the module; a loss that is another when it is computed again; attributes that change
                in each call.
        """
        with kept_attributes(self.module, self.loss):
            first, leaves = self._once(params, buffers, batch)
            remembered = remembered_by(self.module, self.loss)
            second, again = self._once(params, buffers, batch)
            now = remembered_by(self.module, self.loss)
        self._check_leaves([leaf for leaf in leaves if any(leaf is other for other in again)])
        rounding = 1e-6 + 1e3 * first.coarsest
        check_again(f"the loss of {self._name}", first.loss, second.loss, rounding, REMEMBERED)
        for name, value in now.items():
            if name in remembered and value != remembered[name]:
                raise InvalidInput(
                    f"{name} changes whenever {self._name} is called in training, which a run does not keep from step "
                    "to step: keep what it remembers in a buffer (register_buffer)"
                )
        return first._replace(exact=self._exact(params, buffers, batch)) if first.coarsest else first

    def evaluation(self, function: Function, params: Values, buffers: Values, batch: Any) -> Value:
        """A function's value on the whole batch in evaluation mode, with fixed draws."""

        def value(rounding: bool) -> tuple[float, float]:
            kept = kept_attributes(self.module, function)
            x, y = tensors_of(batch, self.dtype)
            with kept, self._with(params, buffers, False), torch.no_grad(), fixed_draws(rounding) as draws:
                return float(mean_of(function(self.module(x), y))), draws.coarsest

        found, coarsest = value(rounding=True)
        if not coarsest:
            return Value(found)
        try:
            return Value(found, coarsest, value(rounding=False)[0])
        except InvalidInput:  # it insists on the types that it converts to
            return Value(found, coarsest)

    def graph(self, params: Values, buffers: Values, batch: Any, through_module: bool = True) -> Graph:
        """What autograd records of the loss; with outputs that have no gradient unless `through_module`."""
        with kept_attributes(self.module, self.loss), self._with(params, buffers, True):
            x, y = tensors_of(batch, self.dtype)
            outputs = self.module(x)
            if not through_module:
                outputs = pytree.tree_map_only(Tensor, torch.detach, outputs)
            return Graph(mean_of(self.loss(outputs, y)))

    def _exact(self, params: Values, buffers: Values, batch: Any) -> Found | None:
        """What training gives where conversions do not round; None if it insists on the types that it converts to."""
        try:
            with kept_attributes(self.module, self.loss):
                return self._once(params, buffers, batch, rounding=False)[0]
        except InvalidInput:
            return None

    def _once(
        self, params: Values, buffers: Values, batch: Any, rounding: bool = True
    ) -> tuple[Found, list[Tensor]]:
        """What one evaluation gives, and the tensors that require a gradient and that the loss depends on."""
        x, y = tensors_of(batch, self.dtype)
        with self._with(params, buffers, True), fixed_draws(rounding) as draws:
            value = mean_of(self.loss(self.module(x), y))
            check_slope(f"the loss of {self._name}", value.requires_grad)
            leaves = Graph(value).leaves
            slope = gradients(value, trainable(self.module))
            after = {n: array_of(self.module.get_buffer(n)) for n in buffers}
        found = Found(
            float(value.detach()), {n: array_of(g) for n, g in slope.items()}, after, draws.coarsest
        )
        return found, leaves

    def _check_leaves(self, leaves: list[Tensor]) -> None:
        own = {id(p) for p in self.module.parameters()}
        for leaf in leaves:
            if id(leaf) not in own:
                raise InvalidInput(
                    f"the loss depends on a parameter of shape {tuple(leaf.shape)} that is none of {self._name} and "
                    "would not be trained: move it into the module"
                )

    @contextmanager
    def _with(self, params: Values, buffers: Values, training: bool) -> Iterator[None]:
        """The module with other values, in one mode, with random numbers from one seed."""
        tensors, given = floating_tensors(self.module, self.loss), {**params, **buffers}
        values = {}
        for name, t in tensors.items():
            like = t.new_empty(0, dtype=self.dtype) if t.is_floating_point() else t
            values[name] = as_tensor(given[name] if name in given else array_of(t), like)
        eager = torch.compiler.set_stance("force_eager")
        with (
            eager,
            self._seeing_autocast(),
            substituted(self.module, tensors, values),
            all_seeded(0),
            torch.enable_grad(),
        ):
            self._set_mode(training)
            start = global_states()
            try:
                yield
                self.draws |= global_states() != start
            except InvalidInput:
                raise
            except Exception as error:  # whatever the user's code raises
                why = first_line(error)
                if "HigherOrderOperator" in why:
                    why = "no gradients are computed through torch.cond, while_loop and the like: use torch.where"
                raise InvalidInput(f"{self._name} or its loss fails: {why}{where_raised(error)}") from error

    @contextmanager
    def _seeing_autocast(self) -> Iterator[None]:
        enter = torch.autocast.__enter__

        def seen(entered: Any) -> Any:
            self.autocast |= entered._enabled
            return enter(entered)

        with mock.patch.object(torch.autocast, "__enter__", seen):
            yield


def floating_tensors(module: nn.Module, function: Function) -> dict[str, Tensor]:
    """Parameters and buffers of a module, then those of a loss that is a module, by name."""
    found = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    known = {id(t) for t in found.values()}
    if isinstance(function, nn.Module):
        more = {**dict(function.named_parameters()), **dict(function.named_buffers())}
        found |= {f"the loss: {name}": t for name, t in more.items() if id(t) not in known}
    return found


_OF_HOOKS = "BackwardHookFunction"  # by which PyTorch calls a module's own backward hooks


def cause(reference: Reference, params: Values, buffers: Values, batch: Any) -> str:
    """What in a module or its loss a translation is known to leave out, in words; "" where nothing is known."""
    module = reference.module
    for name, p in module.named_parameters():
        if p._backward_hooks:
            return f"parameter '{name}' has a hook (register_hook), which is left out"
    for name, part in module.named_modules():
        if part._backward_hooks or part._backward_pre_hooks:
            return f"'{name}' ({type(part).__name__}) has a backward hook, which is left out"
    if _refers(reference, params, buffers, batch):
        return "the loss refers to the module's own parameters, which it takes for constants"
    with _Hooks() as hooks:
        functions = reference.graph(params, buffers, batch).functions
    if _OF_HOOKS in functions:  # the module's own are found above
        return "the loss, or every module, has a backward hook, which is left out"
    if functions:
        return f"the backward of torch.autograd.Function {functions[0]} is left out"
    if hooks.found:
        return "a tensor has a hook (register_hook), which is left out"
    if reference.draws:
        return "it draws from Python's or NumPy's random numbers, of which one draw would stay"
    return ""


def _refers(reference: Reference, params: Values, buffers: Values, batch: Any) -> bool:
    """Whether the loss depends on the module's parameters otherwise than by its outputs."""
    own = {id(p) for p in reference.module.parameters()}
    leaves = reference.graph(params, buffers, batch, through_module=False).leaves
    return any(id(leaf) in own for leaf in leaves)


class _Hooks(TorchFunctionMode):
    """Whether hooks are registered on tensors meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.found = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """The function itself."""
        self.found |= func is torch.Tensor.register_hook
        return func(*args, **(kwargs or {}))
