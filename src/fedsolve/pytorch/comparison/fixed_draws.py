"""Draws that are the same in PyTorch and in its translation, so that the two can be compared.

An event of probability above 0 happens, a uniform number is 5/16, a normal one -1/2, a permutation the reversed order.
Every floating-point type has these numbers exactly, and none depends on the number of rows: an example has the same
draws whatever stands beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
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

    Operations of PyTorch that no translated program has, such as `multinomial`, draw as ever.

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


_IN_PYTORCH: dict[str, Callable[..., Any]] = {
    "aten.rand.default": lambda result, *_: result.fill_(_UNIFORM),
    "aten.rand_like.default": lambda result, *_: result.fill_(_UNIFORM),
    "aten.randn.default": lambda result, *_: result.fill_(_NORMAL),
    "aten.randn_like.default": lambda result, *_: result.fill_(_NORMAL),
    "aten.randint.default": lambda result, high, *_: result.fill_(_whole(0, high)),
    "aten.randint.low": lambda result, low, high, *_: result.fill_(_whole(low, high)),
    "aten.randperm.default": _permuted,
    "aten.bernoulli_.float": lambda result, x, p=0.5, *_: result.fill_(float(p > 0)),
    "aten.bernoulli.p": lambda result, x, p=0.5, *_: result.fill_(float(p > 0)),
    "aten.bernoulli.default": lambda result, x, *_: result.copy_(x > _UNIFORM),
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
