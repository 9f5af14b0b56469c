"""A user's own convolutions and max-pools, in the forms that are fast on a CPU or a GPU.

XLA's convolutions, and on a CPU the gradient of its pooling windows, take a slow path inside loops and under vmap: a
flax CNN then trains several times slower in a compiled round than in a Python loop (benchmarks/FINDINGS.md). A loss is
therefore traced once more, and its convolutions are written in the forms of `convolve` before anything is
differentiated. The numbers are the same but for rounding; equal entries of a window send their gradient to the first,
as XLA does. What has no such form (grouped, transposed or very large windows; inside a `while` loop of the
loss) stays as it is. The forms are:

* direct: on a CPU XLA's own convolution, or minimal filtering where that has fewer products to pay for, with gradients
  of the same kind; on a GPU products of patches (`fedsolve.core.xla.direct`);
* patches: one product with all shifted images side by side (`by_patches`), for what that does not take; and on a CPU
  for large kernels on few places, such as the last ones of a ResNet, as they lie in memory: turning them round costs
  more than their products.

Which is the fastest where is measured in benchmarks/FINDINGS.md. On a TPU they are the ordinary operation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from math import prod
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core
from jaxtyping import Array, Float

from fedsolve.core.xla.compiler import bind, equations_of, evaluate, programs_inside, rewrite_inside
from fedsolve.core.xla.direct import Ints, by_patches, direct, places

_LARGEST = 64  # places of a window; beyond, as many slices cost more than they save
_CONVOLUTION, _MAXIMUM = "conv_general_dilated", "reduce_window_max"
_CALLS = ("jit", "pjit")
_KEPT = ("checkpoint", "remat2", "cond", "scan")  # operations that stay, with programs inside


def without_slow_convolutions(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, its convolutions and max-pools in the forms that are fast on this backend."""
    # a function that has no such operation is called as it is. Meant for use inside a trace: `function` is
    # traced anew at each call.
    if jax.default_backend() not in BACKENDS:
        return function

    def fast(*arguments: Any) -> Any:
        closed, shape = jax.make_jaxpr(function, return_shape=True)(*arguments)
        if not _is_slow(closed):
            return function(*arguments)
        results = evaluate(closed, jax.tree.leaves(arguments), _fast_form)
        return jax.tree.unflatten(jax.tree.structure(shape), results)

    return fast


def _is_slow(program: Any) -> bool:
    return any(_form_of(e) is not None or any(map(_is_slow, _inside(e))) for e in equations_of(program))


def _inside(equation: core.JaxprEqn) -> Iterator[Any]:
    if equation.primitive.name in (*_CALLS, *_KEPT):
        yield from programs_inside(equation)


def _form_of(equation: core.JaxprEqn) -> Callable[..., Array] | None:
    # the fast form of an equation, None if it is fast or has none
    p, inputs = equation.params, cast("list[Any]", [v.aval for v in equation.invars])
    if equation.primitive.name == _CONVOLUTION:
        kernel, spec = inputs[1].shape, p["dimension_numbers"].rhs_spec
        plain = p["feature_group_count"] == p["batch_group_count"] == 1 and set(p["lhs_dilation"]) <= {1}
        return _convolve if plain and prod(kernel[i] for i in spec[2:]) <= _LARGEST else None
    if equation.primitive.name == _MAXIMUM:
        floating = jnp.issubdtype(inputs[0].dtype, jnp.floating)
        plain = floating and {*p["base_dilation"], *p["window_dilation"]} <= {1}
        return _maximum if plain and prod(p["window_dimensions"]) <= _LARGEST else None
    return None


def _fast_form(equation: core.JaxprEqn, values: list[Any]) -> list[Any] | None:
    if (form := _form_of(equation)) is not None:
        return [form(*values, **equation.params)]
    if any(map(_is_slow, _inside(equation))):
        if equation.primitive.name in _KEPT:
            return bind(rewrite_inside(equation, _fast_form), values)
        return evaluate(equation.params["jaxpr"], values, _fast_form)
    return None


def _convolve(
    x: Array,
    kernel: Array,
    *,
    window_strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    rhs_dilation: Sequence[int],
    dimension_numbers: lax.ConvDimensionNumbers,
    precision: Any,
    preferred_element_type: Any,
    **_: Any,
) -> Array:
    # a convolution of any axes, strides, padding and dilation in the form that suits it
    batch, channels, *space = dimension_numbers.lhs_spec
    out, into, *window = dimension_numbers.rhs_spec
    x, kernel = jnp.transpose(x, (batch, *space, channels)), jnp.transpose(kernel, (*window, into, out))
    y = convolve(
        x,
        kernel,
        strides=window_strides,
        padding=padding,
        dilation=rhs_dilation,
        by_channel=out < into < min(window, default=0),
        precision=precision,
        preferred_element_type=preferred_element_type,
    )
    batch, channels, *space = dimension_numbers.out_spec
    return jnp.transpose(y, np.argsort((batch, *space, channels)).tolist())


def _maximum(
    x: Array,
    *,
    window_dimensions: Sequence[int],
    window_strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    **_: Any,
) -> Array:
    # the maximum over windows, place after place; the first of equal entries wins, and NaN does
    x = lax.pad(x, jnp.array(-jnp.inf, x.dtype), [(a, b, 0) for a, b in padding])
    last = [(n - w) // t * t for n, w, t in zip(x.shape, window_dimensions, window_strides, strict=True)]
    best = None
    for start in product(*map(range, window_dimensions)):
        stop = [s + n + 1 for s, n in zip(start, last, strict=True)]
        y = lax.slice(x, start, stop, window_strides)
        best = y if best is None else jnp.where((best >= y) | jnp.isnan(best), best, y)
    assert best is not None
    return best


BACKENDS = ("cpu", "gpu")
"""Where these forms are used."""

_DIRECT_OUTPUTS = 16  # below this the library spends its time on cutting patches
# entries of a kernel that costs more to turn round than the patches of few rows
_LARGE_KERNEL = 2**19


def conv(x: Array, kernel: Array, *, stride: int = 1, padding: int = 0) -> Array:
    """Convolution of images x (n, h, w, c) with a kernel (h', w', c, out), the same stride and padding on both axes."""
    strides, pad = (stride, stride), [(padding, padding)] * 2
    if jax.default_backend() not in BACKENDS:
        return lax.conv_general_dilated(x, kernel, strides, pad, dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return convolve(x, kernel, strides=strides, padding=pad, dilation=(1, 1))


def convolve(
    x: Array, kernel: Array, *, strides: Ints, padding: Sequence[Ints], dilation: Ints, by_channel: bool = False,
    **products: Any,
) -> Array:  # fmt: skip
    """Any convolution on a CPU or a GPU, direct or by patches: x (batch, *axes, c), kernel (*window, c, out)."""
    # `by_channel`: in memory the kernel is (out, c, *window), as in PyTorch; `products` are options of products.
    window, out, on_cpu = kernel.shape[:-2], kernel.shape[-1], jax.default_backend() == "cpu"
    how: dict[str, Any] = {"strides": strides, "padding": padding, "dilation": dilation}
    library = x.dtype == kernel.dtype == jnp.float32
    library &= products.get("preferred_element_type") in (None, x.dtype)
    few = kernel.size >= _LARGE_KERNEL and x.shape[0] * prod(places(x, kernel, **how)) <= out
    slow = on_cpu and (few or out < _DIRECT_OUTPUTS)
    if library and 0 < len(window) <= 3 and prod(window) > 1 and not slow:
        return direct(x, kernel, by_channel=by_channel, **how)
    return by_patches(x, kernel, by_channel=by_channel and few and on_cpu, **how, **products)


def max_pool2x2(x: Float[Array, "batch h w c"]) -> Float[Array, "batch h/2 w/2 c"]:
    """Maximum of 2x2 windows, (batch, h, w, c) to (batch, h // 2, w // 2, c); ties share the gradient."""
    x = x[:, : x.shape[1] // 2 * 2, : x.shape[2] // 2 * 2]
    rows = jnp.maximum(x[:, ::2], x[:, 1::2])
    return jnp.maximum(rows[:, :, ::2], rows[:, :, 1::2])
