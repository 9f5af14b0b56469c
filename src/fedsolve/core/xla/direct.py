"""XLA's own convolution on a CPU, always in the one form that is fast inside a loop.

XLA hands a convolution to its library (Eigen's, which cuts the patches as it multiplies) only where examples come first
and channels last. Outside of loops it brings any other to that form; inside a loop it writes plain sums, ten to a
hundred times slower. The gradients of a convolution as JAX writes them are such others.

Here a convolution and its two gradients are one trilinear form,

    <y, x * kernel> = sum of y[n, p, o] x[n, stride p + dilation w - before, c] kernel[w, c, o].

Any two arguments give its derivative in the third: the convolution (`y`), or the gradient of the images (`x`) or of
the kernel. Each is written with channels last, and the transposes of each are the other two, so that derivatives of any
order, forward and backward, stay fast. Of a 3x3 kernel with many channels all three are minimal filtering instead
(`fedsolve.core.xla.tiles`).

A GPU's library takes clients with kernels of their own as groups, several times slower than products of patches that
batch: there each of the three is such a product. What is kept for a gradient are the images, not their patches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.core import ShapedArray
from jax.experimental.xla_metadata import set_xla_metadata
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jaxtyping import Array

from fedsolve.core.xla import tiles

DIRECT = "convolution_of_channels_last"
"""The name of the operation in traced programs."""

_ROLES = ("x", "kernel", "y")
# channels below which the library is slow: of its input, which it cuts, and of its output
_THIN, _WIDE = 8, 32
# pairs of channels, and tiles, below which transforms and compilation cost more than products save
_TILE_PAIRS, _TILES = 2048, 128
_ROWS = 5  # that the library multiplies at once
_FLIPPED_AXES = ("", "W", "HW", "DHW")


class _Form(NamedTuple):
    """The shapes of all three arrays, and of each axis its stride, padding and dilation of the kernel."""

    x: tuple[int, ...]
    kernel: tuple[int, ...]
    y: tuple[int, ...]
    strides: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]


def direct(
    x: Array,
    kernel: Array,
    *,
    strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    dilation: Sequence[int],
) -> Array:
    """x (batch, *axes, c) with the kernel (*window, c, out) as (batch, *places, out): one to three axes, float32."""
    positions = [
        (n + before + after - d * (w - 1) - 1) // s + 1
        for n, w, s, (before, after), d in zip(
            x.shape[1:-1], kernel.shape[:-2], strides, padding, dilation, strict=True
        )
    ]
    y = (x.shape[0], *positions, kernel.shape[-1])
    ends = tuple((before, after) for before, after in padding)
    form = _Form(x.shape, kernel.shape, y, tuple(strides), ends, tuple(dilation))
    return _derivative.bind(x, kernel, of="y", form=form)


def _given(of: str) -> tuple[str, ...]:
    return tuple(role for role in _ROLES if role != of)


def _compute(*values: Array, of: str, form: _Form) -> Array:
    """The derivative of the form in the argument `of`, from the other two, as a convolution with channels last."""
    given = dict(zip(_given(of), values, strict=True))
    if _tiles_pay(form):
        return _by_tiles(given, of, form)
    if of == "y":
        return _widened(given["x"], given["kernel"], form.strides, form.padding, form.dilation)
    if of == "x":
        return _gradient_of_input(given["y"], given["kernel"], form)
    with set_xla_metadata(inlineable="false"):
        return _gradient_of_kernel(given["x"], given["y"], form)


def _gradient_of_input(y: Array, kernel: Array, form: _Form) -> Array:
    """A convolution of y, as far apart as the strides, with the kernel from its end."""
    ends = [
        (d * (w - 1) - before, n - (places - 1) * stride - 1 + before)
        for d, w, (before, _), n, places, stride in zip(
            form.dilation, kernel.shape, form.padding, form.x[1:], form.y[1:], form.strides, strict=False
        )
    ]
    turned = jnp.swapaxes(jnp.flip(kernel, range(len(ends))), -1, -2)
    return _widened(y, turned, (1,) * len(ends), ends, form.dilation, form.strides)


@partial(jax.jit, inline=False, static_argnames="form")
def _gradient_of_kernel(x: Array, y: Array, form: _Form) -> Array:
    """A convolution of x with y, whose examples are its channels.

    To be compiled as a function of its own: XLA would work out what x and y are made of again, in the order of their
    transposes, which is slow.
    """
    window, axes = form.kernel[:-2], x.ndim - 2
    ends = [
        (before, (places - 1) * stride + 1 + d * (w - 1) - n - before)
        for (before, _), places, stride, d, w, n in zip(
            form.padding, form.y[1:], form.strides, form.dilation, window, form.x[1:], strict=False
        )
    ]
    y = jnp.transpose(y, (*range(1, axes + 1), 0, axes + 1))
    if axes == 2 and window[-1] < _ROWS and form.dilation[-1] == 1:
        return _along_rows(jnp.moveaxis(x, 0, -1), y, ends, form)
    x = jnp.moveaxis(x, (-1, 0), (0, -1))
    return jnp.moveaxis(_convolve(x, y, form.dilation, ends, form.strides), 0, -2)


def _tiles_pay(form: _Form) -> bool:
    """Whether minimal filtering is the fastest form: of 3x3 kernels without strides, many channels and many tiles."""
    *window, c, out = form.kernel
    simple = window == [3, 3] and {*form.strides, *form.dilation} == {1}
    return simple and c * out >= _TILE_PAIRS and tiles.number(form.y) >= _TILES


def _by_tiles(given: Mapping[str, Array], of: str, form: _Form) -> Array:
    before = [b for b, _ in form.padding]
    if of == "y":
        return tiles.convolution(given["x"], given["kernel"], form.y, before)
    if of == "x":
        return tiles.gradient_of_input(given["y"], given["kernel"], form.x, before)
    return tiles.gradient_of_kernel(given["x"], given["y"], before)


def _along_rows(x: Array, y: Array, ends: Sequence[tuple[int, int]], form: _Form) -> Array:
    """The kernel's gradient with the places and channels of a row as one axis: x (h, w, c, n), y (places, n, out).

    The result's last axis is what the library multiplies at once: window times c places, where it would be the window.
    """
    h, w, c, n = x.shape
    wide = (c * ends[1][0], c * ends[1][1])
    apart = (form.strides[0], c * form.strides[1])
    y = _convolve(x.reshape(1, h, w * c, n), y, form.dilation, [ends[0], wide], apart)
    return y.reshape(form.kernel)


def _widened(
    x: Array,
    kernel: Array,
    strides: tuple[int, ...],
    ends: Sequence[tuple[int, int]],
    dilation: tuple[int, ...],
    dilation_of_x: tuple[int, ...] | None = None,
) -> Array:
    """`_convolve`; few channels of the result as two or four neighbouring places at once, by a kernel as much wider."""
    *window, c, out = kernel.shape
    row = x.shape[-2] + sum(ends[-1]) - window[-1] + 1
    simple = strides[-1] == dilation[-1] == (dilation_of_x or (1,))[-1] == 1
    whole = [(0, 0)] * (len(window) - 1)
    for many in (4, 2) if c < _THIN else (2,):
        if simple and out < _WIDE and row % many == 0:
            shifts = [jnp.pad(kernel, [*whole, (i, many - 1 - i), (0, 0), (0, 0)]) for i in range(many)]
            y = _convolve(
                x, jnp.concatenate(shifts, -1), (*strides[:-1], many), ends, dilation, dilation_of_x
            )
            return y.reshape(*y.shape[:-2], row, out)
    return _convolve(x, kernel, strides, ends, dilation, dilation_of_x)


def _convolve(
    x: Array,
    kernel: Array,
    strides: Sequence[int],
    ends: Sequence[tuple[int, int]],
    dilation: Sequence[int],
    dilation_of_x: Sequence[int] | None = None,
) -> Array:
    if any(min(end) < 0 for end in ends) and dilation_of_x is None:  # the library takes no cropping
        crop = [(min(a, 0), min(b, 0), 0) for a, b in ends]
        x = lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), *crop, (0, 0, 0)])
        ends = [(max(a, 0), max(b, 0)) for a, b in ends]
    axes = _FLIPPED_AXES[len(strides)]
    layout = (f"N{axes}C", f"{axes}IO", f"N{axes}C")
    return lax.conv_general_dilated(x, kernel, strides, ends, dilation_of_x, dilation, layout)


def _plainly(*values: Array, of: str, form: _Form) -> Array:
    """The same by patches."""

    def convolved(x: Array, kernel: Array) -> Array:
        return by_patches(x, kernel, strides=form.strides, padding=form.padding, dilation=form.dilation)

    if of == "y":
        return convolved(*values)
    given = dict(zip(_given(of), values, strict=True))
    other = "kernel" if of == "x" else "x"
    along = partial(convolved, **{other: given[other]})
    wanted = jax.ShapeDtypeStruct(getattr(form, of), values[0].dtype)
    return jax.linear_transpose(lambda value: along(**{of: value}), wanted)(given["y"])[0]


def _side_by_side(
    values: Sequence[Array], dims: Sequence[int | None], *, of: str, form: _Form
) -> tuple[Array, int]:
    """Under vmap: of one kernel all examples in one batch; of several the products of patches, which batch well."""
    # the gradient of the kernel sums over examples, which one batch would mix between clients: by patches below
    if of != "kernel" and dims[_given(of).index("kernel")] is None:
        at = 1 - _given(of).index("kernel")
        own = jnp.moveaxis(values[at], dims[at] or 0, 0)
        many, n = own.shape[:2]
        merged = form._replace(x=(many * n, *form.x[1:]), y=(many * n, *form.y[1:]))
        values = [own.reshape(many * n, *own.shape[2:]) if i == at else v for i, v in enumerate(values)]
        result = _derivative.bind(*values, of=of, form=merged)
        return result.reshape(many, n, *result.shape[1:]), 0
    return jax.vmap(partial(_plainly, of=of, form=form), in_axes=tuple(dims))(*values), 0


def _transposed(wrt: int, cotangent: Array, *values: Any, of: str, form: _Form) -> Array:
    """The derivative in argument number `wrt`: the cotangent takes the place of the result."""
    roles = _given(of)
    known: Mapping[str, Any] = {of: cotangent, roles[1 - wrt]: values[1 - wrt]}
    return _derivative.bind(*(known[r] for r in _given(roles[wrt])), of=roles[wrt], form=form)


_derivative = Primitive(DIRECT)
_derivative.def_abstract_eval(lambda a, b, *, of, form: ShapedArray(getattr(form, of), a.dtype))
_derivative.def_impl(jax.jit(_compute, static_argnames=("of", "form")))
ad.defbilinear(_derivative, partial(_transposed, 0), partial(_transposed, 1))
batching.primitive_batchers[_derivative] = _side_by_side
mlir.register_lowering(_derivative, mlir.lower_fun(_compute, multiple_results=False))
for _platform in ("cuda", "rocm"):
    mlir.register_lowering(_derivative, mlir.lower_fun(_plainly, multiple_results=False), platform=_platform)


def by_patches(
    x: Array,
    kernel: Array,
    *,
    strides: Sequence[int] | None = None,
    padding: Sequence[tuple[int, int]] | None = None,
    dilation: Sequence[int] | None = None,
    precision: Any = None,
    preferred_element_type: Any = None,
) -> Array:
    """One product of the patches, (batch places, window c), with the kernel.

    x is (batch, *axes, c), the kernel (*window, c, out), the result (batch, *places, out).
    """
    *window, c, out = kernel.shape
    strides, dilation = strides or [1] * len(window), dilation or [1] * len(window)
    if padding is not None and any(map(any, padding)):
        x = lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), *[(a, b, 0) for a, b in padding], (0, 0, 0)])
    spans = [d * (w - 1) + 1 for w, d in zip(window, dilation, strict=True)]
    positions = [(n - s) // t + 1 for n, s, t in zip(x.shape[1:-1], spans, strides, strict=True)]
    shifts = []
    for position in product(*map(range, window)):
        start = [p * d for p, d in zip(position, dilation, strict=True)]
        stop = [s + (n - 1) * t + 1 for s, n, t in zip(start, positions, strides, strict=True)]
        shifts.append(lax.slice(x, (0, *start, 0), (x.shape[0], *stop, c), (1, *strides, 1)))
    patches = jnp.concatenate(shifts, axis=-1).reshape(-1, len(shifts) * c)
    options = {"precision": precision, "preferred_element_type": preferred_element_type}
    return jnp.matmul(patches, kernel.reshape(-1, out), **options).reshape(x.shape[0], *positions, out)
