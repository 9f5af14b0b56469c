"""What PyTorch makes of a user's module and loss, with draws that its translation has too.

A translation may differ by what `torch.export` leaves out, and a copy (`cause`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from math import exp, log
from typing import Any, NamedTuple
from unittest import mock

import jax.numpy as jnp
import numpy as np
import torch
import torch.utils._pytree as pytree
from jaxtyping import Array
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import CheckpointFunction

from fedsolve.core.errors import InvalidInput
from fedsolve.core.loss_checks import REMEMBERED, check_again, check_slope, first_line
from fedsolve.pytorch.batch_losses import global_states, mean_of, seed_all, tensors_of
from fedsolve.pytorch.preserved_state import python_state
from fedsolve.pytorch.translation.arrays import (
    as_array,
    as_tensor,
    is_large,
    mode_setter,
    preserve_attributes,
    substitute_tensors,
    tensor_to_array,
    trainable,
)
from fedsolve.pytorch.translation.registry import where_raised

# What autograd records of a loss, and the gradient that it gives.


def gradients(
    value: Tensor, params: Mapping[str, nn.Parameter], dtype: torch.dtype | None = None
) -> dict[str, Tensor]:
    # 0 where the value does not depend on a parameter. By `backward`, since checkpoints with
    # `use_reentrant=True` refuse `torch.autograd.grad`. With `dtype` each is converted once it is known, so that
    # those of a large module are never all in memory in a wider type; a checkpoint adds to what is known
    found: dict[str, Tensor] = {}

    def take(name: str, p: Tensor) -> None:
        if p.grad is not None:
            gradient = (p.grad.to_dense() if p.grad.is_sparse else p.grad).detach().to(dtype)
            p.grad, found[name] = None, found[name] + gradient if name in found else gradient

    known = [] if dtype is None else [(n, p) for n, p in params.items() if p.is_leaf]
    hooks = [p.register_post_accumulate_grad_hook(partial(take, name)) for name, p in known]
    try:
        value.backward()
    finally:
        for hook in hooks:
            hook.remove()
    for name, p in params.items():
        take(name, p)
    return {n: found[n] if n in found else torch.zeros_like(p, dtype=dtype) for n, p in params.items()}


def refuse_late_hooks(module: nn.Module) -> None:
    # such a hook acts once the gradient is in `.grad`, which nobody reads here
    for name, p in module.named_parameters():
        if getattr(p, "_post_accumulate_grad_hooks", None):
            raise InvalidInput(
                f"parameter '{name}' has a hook by register_post_accumulate_grad_hook, which acts on `.grad`: use "
                "register_hook, which acts on the gradient"
            )


def fails(module: nn.Module, error: Exception) -> InvalidInput:
    # of what a user's code raises, and where
    if isinstance(error, InvalidInput):
        return error
    why = first_line(error)
    if "HigherOrderOperator" in why:
        why = "no gradients are computed through torch.cond, while_loop and the like: use torch.where"
    return InvalidInput(f"{type(module).__name__} or its loss fails: {why}{where_raised(error)}")


def hooks_of(module: nn.Module) -> dict[str, int]:
    """How many hooks parameters and modules have, by name."""
    kinds = ("_backward_hooks", "_post_accumulate_grad_hooks", "_backward_pre_hooks", "_forward_hooks")
    parts = (*module.named_parameters(), *module.named_modules())
    return {name: sum(len(getattr(part, kind, None) or ()) for kind in kinds) for name, part in parts}


def check_hooks(module: nn.Module, before: Mapping[str, int]) -> None:
    """Raise `InvalidInput` if the module has registered hooks since."""
    for name, number in hooks_of(module).items():
        if number > before.get(name, number):
            raise InvalidInput(
                f"{type(module).__name__} registers a hook on '{name}' whenever it is called, and each stays: register "
                "it once, outside forward"
            )


class Graph:
    """What a value was computed from: the user's own `torch.autograd.Function`s, and leaves that require a gradient."""

    def __init__(self, value: Tensor) -> None:
        self.functions: list[str] = []
        self.leaves: list[Tensor] = []
        for node in _nodes(value.grad_fn):
            if isinstance(node, BackwardCFunction):
                # the backward of a checkpoint is that of what it runs
                if getattr(type(node), "_forward_cls", None) is not CheckpointFunction:
                    self.functions.append(type(node).__name__.removesuffix("Backward"))
            elif hasattr(node, "variable"):
                self.leaves.append(node.variable)
        if value.grad_fn is None and value.requires_grad:
            self.leaves.append(value)


def _nodes(start: Any) -> Iterator[Any]:
    seen, todo = set(), [start]
    while todo:
        node = todo.pop()
        if node is not None and node not in seen:
            seen.add(node)
            yield node
            todo += [before for before, _ in node.next_functions]


# Draws that are the same in PyTorch and in its translation, so that the two can be compared.
#
# An event of probability above 0 happens, a uniform number is 5/16, a normal one -1/2, a permutation the reversed
# order. Every floating-point type has these numbers exactly. No draw depends on the number of rows: an example has the
# same ones whatever stands beside it.

_UNIFORM, _NORMAL = 0.3125, -0.5
_FIXED: ContextVar[bool] = ContextVar("fixed", default=False)


@contextmanager
def fixed_draws(rounding: bool = True) -> Iterator[Draws]:
    # for this thread: PyTorch, and programs that JAX traces. With `rounding` False, numbers that PyTorch
    # converts to another floating-point type keep the type that they have
    token = _FIXED.set(True)
    try:
        with Draws(rounding) as seen:
            yield seen
    finally:
        _FIXED.reset(token)


def are_fixed() -> bool:
    return _FIXED.get()


class Draws(TorchDispatchMode):
    """PyTorch with fixed draws; `coarsest` is the largest rounding unit of a type to which a tensor was converted."""

    def __init__(self, rounding: bool) -> None:
        super().__init__()
        self.coarsest, self._rounding = 0.0, rounding

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if (
            str(func) == "aten._to_copy.default"
            and args[0].is_floating_point()
            and result.is_floating_point()
        ):
            self.coarsest = max(self.coarsest, torch.finfo(result.dtype).eps)
            return result if self._rounding else args[0].clone()
        fixed = _IN_PYTORCH.get(str(func))
        return result if fixed is None else fixed(result, *args)


def _rrelu(
    result: torch.Tensor,
    x: torch.Tensor,
    noise: torch.Tensor,
    lower: float = 0.125,
    upper: float = 1 / 3,
    training: bool = False,
    *_: Any,
) -> torch.Tensor:
    if not training:
        return result
    noise.copy_(torch.where(x > 0, 1.0, lower + (upper - lower) * _UNIFORM))
    return x * noise


def _native_dropout(result: Any, x: torch.Tensor, p: float, train: bool | None) -> Any:
    if train is False or p == 0:
        return result
    return (x / (1 - p) if p < 1 else torch.zeros_like(x)), torch.full_like(x, p < 1, dtype=torch.bool)


def _normal(result: torch.Tensor, mean: Any = 0.0, std: Any = 1.0, *_: Any) -> torch.Tensor:
    return result.copy_(torch.as_tensor(mean + _NORMAL * std))


def _with_probability(result: torch.Tensor, p: Any) -> torch.Tensor:
    return result.copy_(p > _UNIFORM)


def _likeliest(result: torch.Tensor, p: torch.Tensor, number: int, replacement: bool = False) -> torch.Tensor:
    # of `multinomial`: the likeliest, again and again or one after another
    order = p.sort(dim=-1, descending=True, stable=True).indices
    return result.copy_(order[..., :1].expand_as(result) if replacement else order[..., :number])


def _anywhere(result: torch.Tensor, x: Any, low: int = 0, high: int | None = None) -> torch.Tensor:
    return result.fill_(low if high is None else _whole(low, high))


_IN_PYTORCH: dict[str, Callable[..., Any]] = {
    "aten.rand.default": lambda result, *_: result.fill_(_UNIFORM),
    "aten.rand_like.default": lambda result, *_: result.fill_(_UNIFORM),
    "aten.uniform_.default": lambda result, x, low=0.0, high=1.0: result.fill_(low + _UNIFORM * (high - low)),
    "aten.randn.default": lambda result, *_: result.fill_(_NORMAL),
    "aten.randn_like.default": lambda result, *_: result.fill_(_NORMAL),
    "aten.normal_.default": lambda result, x, *rest: _normal(result, *rest),
    "aten.normal.Tensor_Tensor": _normal,
    "aten.normal.Tensor_float": _normal,
    "aten.normal.float_Tensor": _normal,
    "aten.randint.default": lambda result, high, *_: result.fill_(_whole(0, high)),
    "aten.randint.low": lambda result, low, high, *_: result.fill_(_whole(low, high)),
    "aten.randint_like.default": lambda result, x, high: result.fill_(_whole(0, high)),
    "aten.randint_like.low_dtype": lambda result, x, low, high: result.fill_(_whole(low, high)),
    "aten.random_.default": _anywhere,
    "aten.random_.to": lambda result, x, high: _anywhere(result, x, 0, high),
    "aten.random_.from": _anywhere,
    "aten.randperm.default": lambda result, n: result.copy_(torch.arange(n - 1, -1, -1)),
    "aten.bernoulli_.float": lambda result, x, p=0.5, *_: result.fill_(float(p > 0)),
    "aten.bernoulli_.Tensor": lambda result, x, p, *_: _with_probability(result, p),
    "aten.bernoulli.p": lambda result, x, p=0.5, *_: result.fill_(float(p > 0)),
    "aten.bernoulli.default": _with_probability,
    "aten.multinomial.default": _likeliest,
    "aten.exponential_.default": lambda result, x, rate=1.0: result.fill_(-log(1 - _UNIFORM) / rate),
    "aten.geometric_.default": lambda result, *_: result.fill_(1),
    "aten.cauchy_.default": lambda result, x, median=0.0, *_: result.fill_(median),
    "aten.log_normal_.default": lambda result, x, mean=1.0, std=2.0: result.fill_(exp(mean + _NORMAL * std)),
    "aten.poisson.default": lambda result, rate: result.copy_(rate.floor()),
    "aten.binomial.default": lambda result, count, p: result.copy_((count * p).floor()),
    "aten._standard_gamma.default": lambda result, shape: result.copy_(shape),
    "aten._sample_dirichlet.default": lambda result, a: result.copy_(a / a.sum(-1, keepdim=True)),
    "aten.native_dropout.default": _native_dropout,
    "aten.rrelu_with_noise.default": _rrelu,
}


def _whole(low: int, high: int) -> int:
    return low + int(_UNIFORM * (high - low))


class FixedRandom:
    """The functions of `jax.random` that translated programs draw with, without their key."""

    @staticmethod
    def bernoulli(p: float, shape: Any) -> Array:
        return jnp.full(shape, p > 0)

    @staticmethod
    def uniform(shape: Any, dtype: Any) -> Array:
        return jnp.full(shape, _UNIFORM, dtype)

    @staticmethod
    def normal(shape: Any, dtype: Any) -> Array:
        return jnp.full(shape, _NORMAL, dtype)

    @staticmethod
    def randint(shape: Any, low: int, high: int) -> Array:
        return jnp.full(shape, _whole(low, high))

    @staticmethod
    def permutation(n: int) -> Array:
        return jnp.arange(n - 1, -1, -1)


Function = Callable[[Any, Any], Any]
Functions = Mapping[str, Function]
Values = Mapping[str, Any]


class TrainingValues(NamedTuple):
    """What one evaluation in training mode gives."""

    loss: float  # the mean over the batch
    gradient: Mapping[str, np.ndarray]  # of each parameter that trains, by name
    buffers: Mapping[str, np.ndarray]  # their values afterwards, by name
    # the largest rounding unit of a type to which the module or the loss converts numbers
    coarsest: float = 0.0
    # what they give where such conversions do not round (`Reference.exact`); None where nothing is converted, it fails
    # so, or nobody asked
    exact: TrainingValues | None = None


class EvaluationValue(NamedTuple):
    """What one evaluation in evaluation mode gives."""

    value: float  # the mean over the batch
    coarsest: float = 0.0  # coarsest, exact: as in `TrainingValues`
    exact: float | None = None


class Reference:
    """A module and its loss, (outputs, targets) -> tensor, in PyTorch.

    The module runs itself, since a copy would lose the hooks of its parameters and is not what a loss refers to.
    `draws`: it or a function drew from Python's or NumPy's global random numbers so far; `autocast`: either entered
    `torch.autocast`, which leaves float64 as it is.
    """

    def __init__(self, module: nn.Module, loss: Function, dtype: torch.dtype) -> None:
        refuse_late_hooks(module)
        self.module, self.loss, self.dtype = module, loss, dtype
        self._name, self._set_mode = type(module).__name__, mode_setter(module)
        self.draws = self.autocast = self._was_repeated = False

    def results(
        self, functions: Functions, params: Values, buffers: Values, batch: Any
    ) -> tuple[TrainingValues, dict[str, EvaluationValue]]:
        # with fixed draws; parameters and buffers that are not given have the module's own values
        values = self._tensors(params, buffers)
        return self._training(values, tuple(buffers), batch), {
            name: EvaluationValue(*pair) for name, pair in self._evaluation(functions, values, batch).items()
        }

    def exact(
        self,
        found: tuple[TrainingValues, Mapping[str, EvaluationValue]],
        functions: Functions,
        params: Values,
        buffers: Values,
        batch: Any,
    ) -> tuple[TrainingValues, dict[str, EvaluationValue]]:
        # `results`, with what they are where no conversion rounds
        training, evaluation = found[0], dict(found[1])
        values = self._tensors(params, buffers)
        if training.coarsest:
            with suppress(InvalidInput), preserve_attributes(self.module, self.loss):
                training = training._replace(
                    exact=self._once(values, tuple(buffers), batch, rounding=False)[0]
                )
        for name in (name for name, value in found[1].items() if value.coarsest):
            with suppress(InvalidInput):  # it insists on the types that it converts to
                exact = self._evaluation({name: functions[name]}, values, batch, rounding=False)[name][0]
                evaluation[name] = evaluation[name]._replace(exact=exact)
        return training, evaluation

    def _training(self, values: Values, buffers: Sequence[str], batch: Any) -> TrainingValues:
        # at first computed twice: a loss that is another then, or attributes that change in each call, are refused
        with preserve_attributes(self.module, self.loss):
            hooks = hooks_of(self.module)
            first, leaves = self._once(values, buffers, batch)
            check_hooks(self.module, hooks)
            if not self._was_repeated:
                self._was_repeated, remembered = True, python_state(self.module, self.loss)
                # the backward pass of a large module takes twice as long as the forward one
                second, again = self._once(values, buffers, batch, slopes=not is_large(self.module))
                self._check_leaves([leaf for leaf in leaves if any(leaf is other for other in again)])
                rounding = 1e-6 + 1e3 * first.coarsest
                check_again(f"the loss of {self._name}", first.loss, second.loss, rounding, REMEMBERED)
                self._check_remembered(remembered)
        return first

    def _check_remembered(self, remembered: Mapping[str, Any]) -> None:
        for name, value in python_state(self.module, self.loss).items():
            if name in remembered and value != remembered[name]:
                raise InvalidInput(
                    f"{name} changes whenever {self._name} is called in training, which a run does not keep from step "
                    "to step: keep what it remembers in a buffer (register_buffer)"
                )

    def _evaluation(
        self, functions: Functions, values: Values, batch: Any, rounding: bool = True
    ) -> dict[str, tuple[float, float]]:
        # each value, and the largest rounding unit of a type that it passes
        kept, (x, y) = preserve_attributes(self.module, *functions.values()), tensors_of(batch, self.dtype)
        with kept, self._with(values, False), torch.no_grad(), fixed_draws(rounding) as draws:
            outputs, own, each = self.module(x), draws.coarsest, {}
            for name, function in functions.items():
                draws.coarsest = own
                given = pytree.tree_map_only(Tensor, torch.clone, (outputs, y))  # which it may write to
                each[name] = float(mean_of(function(*given))), draws.coarsest
        return each

    def graphs(self, params: Values, buffers: Values, batch: Any) -> tuple[Graph, Graph, bool]:
        # of the loss; of it where outputs have no gradient; whether a tensor was given a hook
        values = self._tensors(params, buffers)
        with preserve_attributes(self.module, self.loss), self._with(values, True), _Hooks() as hooks:
            x, y = tensors_of(batch, self.dtype)
            outputs = self.module(x)
            alone = pytree.tree_map_only(Tensor, lambda t: t.detach().clone(), outputs)
            return Graph(mean_of(self.loss(outputs, y))), Graph(mean_of(self.loss(alone, y))), hooks.found

    def _once(
        self, values: Values, buffers: Sequence[str], batch: Any, rounding: bool = True, slopes: bool = True
    ) -> tuple[TrainingValues, list[Tensor]]:
        # also the tensors with a gradient that the loss depends on
        x, y = tensors_of(batch, self.dtype)
        with self._with(values, True), fixed_draws(rounding) as draws:
            value = mean_of(self.loss(self.module(x), y))
            check_slope(f"the loss of {self._name}", value.requires_grad)
            leaves = Graph(value).leaves
            # in float32 they take half of the memory, and are far finer than what is compared
            held = torch.float32 if is_large(self.module) and self.dtype == torch.float64 else None
            slope = gradients(value, trainable(self.module), held) if slopes else {}
            after = {n: tensor_to_array(self.module.get_buffer(n)) for n in buffers}
            loss = float(value.detach())
            del value  # with what it was computed from
        each = {name: as_array(gradient) for name, gradient in slope.items()}
        return TrainingValues(loss, each, after, draws.coarsest), leaves

    def _check_leaves(self, leaves: list[Tensor]) -> None:
        own = {id(p) for p in self.module.parameters()}
        for leaf in leaves:
            if id(leaf) not in own:
                raise InvalidInput(
                    f"the loss depends on a parameter of shape {tuple(leaf.shape)} that is none of {self._name} and "
                    "would not be trained: move it into the module"
                )

    def _tensors(self, params: Values, buffers: Values) -> dict[str, Tensor]:
        given, values = {**params, **buffers}, {}
        for name, t in floating_tensors(self.module, self.loss).items():
            like = t.new_empty(0, dtype=self.dtype) if t.is_floating_point() else t
            values[name] = as_tensor(given[name] if name in given else as_array(t), like)
        return values

    @contextmanager
    def _with(self, values: Values, training: bool) -> Iterator[None]:
        # the module with other values, in one mode, with random numbers from one seed; of what it writes to, copies
        tensors = floating_tensors(self.module, self.loss)
        own = {n: v if isinstance(tensors[n], nn.Parameter) else v.clone() for n, v in values.items()}
        eager = torch.compiler.set_stance("force_eager")
        with (
            eager,
            self._seeing_autocast(),
            substitute_tensors(self.module, tensors, own),
            seed_all(0),
            torch.enable_grad(),
        ):
            self._set_mode(training)
            start = global_states()
            try:
                yield
                self.draws |= global_states() != start
            except Exception as error:  # whatever the user's code raises
                raise fails(self.module, error) from error

    @contextmanager
    def _seeing_autocast(self) -> Iterator[None]:
        enter = torch.autocast.__enter__

        def seen(entered: Any) -> Any:
            self.autocast |= entered._enabled
            return enter(entered)

        with mock.patch.object(torch.autocast, "__enter__", seen):
            yield


def floating_tensors(module: nn.Module, function: Function) -> dict[str, Tensor]:
    # those of the module, then those of a loss that is a module
    found = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    known = {id(t) for t in found.values()}
    if isinstance(function, nn.Module):
        more = {**dict(function.named_parameters()), **dict(function.named_buffers())}
        found |= {f"the loss: {name}": t for name, t in more.items() if id(t) not in known}
    return found


_OF_HOOKS = "BackwardHookFunction"  # by which PyTorch calls a module's own backward hooks


def cause(reference: Reference, params: Values, buffers: Values, batch: Any) -> str:
    # the first thing that a translation is known to leave out, in words; "" where nothing is known
    module = reference.module
    for name, p in module.named_parameters():
        if p._backward_hooks:
            return f"parameter '{name}' has a hook (register_hook), which is left out"
    for name, part in module.named_modules():
        if part._backward_hooks or part._backward_pre_hooks:
            return f"'{name}' ({type(part).__name__}) has a backward hook, which is left out"
    graph, of_loss, has_hooks = reference.graphs(params, buffers, batch)
    own, functions = {id(p) for p in module.parameters()}, graph.functions
    if any(id(leaf) in own for leaf in of_loss.leaves):
        return "the loss refers to the module's own parameters, which it takes for constants"
    if _OF_HOOKS in functions:  # the module's own are found above
        return "the loss, or every module, has a backward hook, which is left out"
    if functions:
        return f"the backward of torch.autograd.Function {functions[0]} is left out"
    if has_hooks:
        return "a tensor has a hook (register_hook), which is left out"
    if reference.draws:
        return "it draws from Python's or NumPy's random numbers, of which one draw would stay"
    return ""


class _Hooks(TorchFunctionMode):
    """Whether hooks are registered on tensors meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.found = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.found |= func is torch.Tensor.register_hook
        return func(*args, **(kwargs or {}))
