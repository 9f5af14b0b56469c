"""New and converted tensors, and random ones from a JAX key: other draws than PyTorch's, of the same distributions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jaxtyping import Array

from fedsolve.pytorch.comparison.fixed_draws import Fixed, are_fixed
from fedsolve.pytorch.operations.operands import default_dtype, index_dtype, type_of
from fedsolve.pytorch.translation.arrays import jax_dtype
from fedsolve.pytorch.translation.registry import operation


@operation("aten._to_copy.default")
def to_copy(x: Array, *, dtype: torch.dtype | None = None, **_: Any) -> Array:
    """x in another type; floating numbers are rounded towards 0 to become integers."""
    return x if dtype is None else x.astype(jax_dtype(dtype))


@operation("aten.full.default")
def full(size: Sequence[int], fill_value: Any, *, dtype: torch.dtype | None = None, **_: Any) -> Array:
    """One value everywhere."""
    return jnp.full(tuple(size), fill_value, jax_dtype(dtype) or type_of(fill_value))


@operation("aten.full_like.default")
def full_like(x: Array, fill_value: Any, *, dtype: torch.dtype | None = None, **_: Any) -> Array:
    """One value everywhere, in the shape of x."""
    return jnp.full(x.shape, fill_value, jax_dtype(dtype) or x.dtype)


@operation("aten.fill.Scalar")
def fill(x: Array, value: Any) -> Array:
    """One value everywhere, in the shape and type of x."""
    return jnp.broadcast_to(jnp.asarray(value, x.dtype), x.shape)


@operation("aten.copy.default")
def copy(x: Array, src: Array, non_blocking: bool = False) -> Array:
    """`src` in the shape and type of x."""
    return jnp.broadcast_to(src.astype(x.dtype), x.shape)


@operation("aten.scalar_tensor.default")
def scalar_tensor(s: Any, *, dtype: torch.dtype | None = None, **_: Any) -> Array:
    """A number as a tensor without axes."""
    return jnp.asarray(s, jax_dtype(dtype) or default_dtype())


@operation("aten.arange.start_step")
def arange(start: Any, end: Any, step: Any = 1, *, dtype: torch.dtype | None = None, **_: Any) -> Array:
    """Numbers from a start to below an end by a step."""
    whole = all(isinstance(v, int) for v in (start, end, step))
    return jnp.arange(start, end, step, jax_dtype(dtype) or (index_dtype() if whole else default_dtype()))


@operation("aten.empty.memory_format", "aten.empty_permuted.default", "aten.empty_strided.default")
def empty(size: Sequence[int], *_: Any, dtype: torch.dtype | None = None, **__: Any) -> Array:
    """0 everywhere, also where PyTorch leaves it undefined; the layout in memory does not matter here."""
    return jnp.zeros(tuple(size), jax_dtype(dtype) or default_dtype())


@operation("aten.dropout.default", random=True)
def dropout(x: Array, p: float, train: bool, *, key: Array | None) -> Array:
    """Entries 0 with probability p and else divided by 1 - p, in training."""
    return native_dropout(x, p, train, key=key)[0]


@operation("aten.native_dropout.default", random=True)
def native_dropout(x: Array, p: float, train: bool | None, *, key: Array | None) -> tuple[Array, Array]:
    """Dropout and where entries are kept."""
    if train is False or p == 0:
        return x, jnp.ones(x.shape, bool)
    kept = _drawn(key).bernoulli(1 - p, x.shape)
    return jnp.where(kept, x / (1 - p), 0) if p < 1 else jnp.zeros_like(x), kept


@operation("aten.feature_dropout.default", random=True)
def feature_dropout(x: Array, p: float, train: bool, *, key: Array | None) -> Array:
    """Dropout of whole channels of (batch, channels, ...)."""
    kept = native_dropout(jnp.ones(_by_channel(x), x.dtype), p, train, key=key)[0]
    return x * kept


@operation("aten.alpha_dropout.default", random=True)
def alpha_dropout(
    x: Array, p: float, train: bool, *, key: Array | None, shape: tuple[int, ...] | None = None
) -> Array:
    """Dropout that keeps the mean 0 and the variance 1 of a self-normalising network.

    Of Klambauer et al., Self-Normalizing Neural Networks (2017), section 3; `shape` is that of the draws.
    """
    if not train or p == 0:
        return x
    if p == 1:
        return jnp.zeros_like(x)
    low = -1.7580993408473766
    a = ((low**2 * p + 1) * (1 - p)) ** -0.5
    kept = _drawn(key).bernoulli(1 - p, x.shape if shape is None else shape)
    return jnp.where(kept, x * a, low * a) - low * a * p


@operation("aten.feature_alpha_dropout.default", random=True)
def feature_alpha_dropout(x: Array, p: float, train: bool, *, key: Array | None) -> Array:
    """The same of whole channels."""
    return alpha_dropout(x, p, train, key=key, shape=_by_channel(x))


def _by_channel(x: Array) -> tuple[int, ...]:
    return (*x.shape[:2], *[1] * (x.ndim - 2))


@operation("aten.bernoulli.p", random=True)
def bernoulli_p(x: Array, p: float = 0.5, *, generator: None = None, key: Array | None) -> Array:
    """1 with one probability, else 0, in the shape of x."""
    return _drawn(key).bernoulli(p, x.shape).astype(x.dtype)


@operation("aten.rand.default", random=True)
def rand(size: Sequence[int], *, dtype: torch.dtype | None = None, key: Array | None, **_: Any) -> Array:
    """Uniform on [0, 1)."""
    return _drawn(key).uniform(size, jax_dtype(dtype) or default_dtype())


@operation("aten.randn.default", random=True)
def randn(size: Sequence[int], *, dtype: torch.dtype | None = None, key: Array | None, **_: Any) -> Array:
    """Standard normal."""
    return _drawn(key).normal(size, jax_dtype(dtype) or default_dtype())


@operation("aten.rand_like.default", random=True)
def rand_like(x: Array, *, dtype: torch.dtype | None = None, key: Array | None, **_: Any) -> Array:
    """Uniform on [0, 1), in the shape of x."""
    return _drawn(key).uniform(x.shape, jax_dtype(dtype) or x.dtype)


@operation("aten.randn_like.default", random=True)
def randn_like(x: Array, *, dtype: torch.dtype | None = None, key: Array | None, **_: Any) -> Array:
    """Standard normal, in the shape of x."""
    return _drawn(key).normal(x.shape, jax_dtype(dtype) or x.dtype)


@operation("aten.normal_functional.default", random=True)
def normal(
    x: Array, mean: float = 0.0, std: float = 1.0, *, generator: None = None, key: Array | None
) -> Array:
    """Normal, in the shape of x."""
    return mean + std * randn_like(x, key=key)


@operation("aten.uniform.default", random=True)
def uniform(
    x: Array, low: float = 0.0, high: float = 1.0, *, generator: None = None, key: Array | None
) -> Array:
    """Uniform on [low, high), in the shape of x."""
    return low + (high - low) * rand_like(x, key=key)


@operation("aten.exponential.default", random=True)
def exponential(x: Array, lambd: float = 1.0, *, generator: None = None, key: Array | None) -> Array:
    """Exponential, in the shape of x."""
    return -jnp.log1p(-rand_like(x, key=key)) / lambd


@operation("aten.randint.low", random=True)
def randint(
    low: int, high: int, size: Sequence[int], *, dtype: torch.dtype = torch.int64, key: Array | None, **_: Any
) -> Array:
    """Integers from `low` to below `high`."""
    return _drawn(key).randint(size, low, high).astype(jax_dtype(dtype))


@operation("aten.randperm.default", random=True)
def randperm(n: int, *, dtype: torch.dtype = torch.int64, key: Array | None, **_: Any) -> Array:
    """The numbers below n in random order."""
    return _drawn(key).permutation(n).astype(jax_dtype(dtype))


@operation("aten.rrelu_with_noise_functional.default", random=True)
def rrelu(
    x: Array,
    noise: Array,
    lower: float = 0.125,
    upper: float = 1 / 3,
    training: bool = False,
    *,
    generator: None = None,
    key: Array | None = None,
) -> tuple[Array, Array]:
    """x above 0, elsewhere x times a slope uniform on [lower, upper], or their mean in evaluation; the slopes."""
    if not training:
        return jnp.where(x > 0, x, x * ((lower + upper) / 2)), noise
    drawn = lower + (upper - lower) * _drawn(key).uniform(x.shape, x.dtype)
    slopes = jnp.where(x > 0, jnp.ones_like(x), drawn)
    return x * slopes, slopes


class _drawn:
    """Draws by one key."""

    def __init__(self, key: Array | None) -> None:
        self._key = key

    def __getattr__(self, name: str) -> Any:
        if are_fixed():
            return getattr(Fixed, name)
        return lambda *arguments: getattr(jax.random, name)(self._key, *arguments)
