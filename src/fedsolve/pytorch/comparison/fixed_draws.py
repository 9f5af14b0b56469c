"""Draws that are the same in PyTorch and in its translation, so that the two can be compared.

An event of probability above 0 happens, a uniform number is 5/16, a normal one -1/2, a permutation the reversed order.
Every floating-point type has these numbers exactly. No draw depends on the number of rows: an example has the same ones
whatever stands beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from math import exp, log
from typing import Any

import jax.numpy as jnp
import torch
from jaxtyping import Array
from torch.utils._python_dispatch import TorchDispatchMode

_UNIFORM, _NORMAL = 0.3125, -0.5
_FIXED: ContextVar[bool] = ContextVar("fixed", default=False)


@contextmanager
def fixed_draws(rounding: bool = True) -> Iterator[Draws]:
    """Inside, in this thread, PyTorch and programs that JAX traces draw these numbers.

    Args:
        rounding: False leaves numbers that PyTorch converts to another floating-point type in the type that they have.
    """
    token = _FIXED.set(True)
    try:
        with Draws(rounding) as seen:
            yield seen
    finally:
        _FIXED.reset(token)


def are_fixed() -> bool:
    """Whether this thread is inside `fixed_draws`."""
    return _FIXED.get()


class Draws(TorchDispatchMode):
    """PyTorch with fixed draws.

    Attributes:
        coarsest: the largest rounding unit of a floating-point type to which a tensor of another was converted.
    """

    def __init__(self, rounding: bool) -> None:
        super().__init__()
        self.coarsest, self._rounding = 0.0, rounding

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """The operation, or what stands for a random one."""
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


def _permuted(result: torch.Tensor, n: int) -> torch.Tensor:
    return result.copy_(torch.arange(n - 1, -1, -1))


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
    """Of `multinomial`: the likeliest, again and again or one after another."""
    order = p.sort(dim=-1, descending=True, stable=True).indices
    return result.copy_(order[..., :1].expand_as(result) if replacement else order[..., :number])


def _anywhere(result: torch.Tensor, x: Any, low: int = 0, high: int | None = None) -> torch.Tensor:
    """Of `random_`, which has no upper end of its own."""
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
    "aten.randperm.default": _permuted,
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


class Fixed:
    """The functions of `jax.random` that translated programs draw with, without their key."""

    @staticmethod
    def bernoulli(p: float, shape: Any) -> Array:
        """Whether an event of probability p happens."""
        return jnp.full(shape, p > 0)

    @staticmethod
    def uniform(shape: Any, dtype: Any) -> Array:
        """A number of [0, 1)."""
        return jnp.full(shape, _UNIFORM, dtype)

    @staticmethod
    def normal(shape: Any, dtype: Any) -> Array:
        """A number of the normal distribution."""
        return jnp.full(shape, _NORMAL, dtype)

    @staticmethod
    def randint(shape: Any, low: int, high: int) -> Array:
        """An integer from `low` to below `high`."""
        return jnp.full(shape, _whole(low, high))

    @staticmethod
    def permutation(n: int) -> Array:
        """The numbers below n in another order."""
        return jnp.arange(n - 1, -1, -1)
