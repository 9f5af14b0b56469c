"""XLA's own convolution on a CPU, always in the one form that is fast inside a loop.

XLA hands a convolution to its library (Eigen's, which cuts the patches as it multiplies) only where examples come first
and channels last. Outside of loops it brings any other to that form; inside a loop it writes plain sums, ten to a
hundred times slower. The gradients of a convolution as JAX writes them are such others.

Here a convolution and its two gradients are one trilinear form,

    <y, x * kernel> = sum of y[n, p, o] x[n, stride p + dilation w - before, c] kernel[w, c, o].

Any two arguments give its derivative in the third: the convolution (`y`), or the gradient of the images (`x`) or of
the kernel. Each is written with channels last, and the transposes of each are the other two, so that derivatives of any
order, forward and backward, stay fast. Of a 3x3 kernel with many channels all three are minimal filtering instead
(`fedsolve.core.xla.direct`).

A GPU's library takes clients with kernels of their own as groups, several times slower than products of patches that
batch: there each of the three is such a product. What is kept for a gradient are the images, not their patches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from itertools import product
from operator import add
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jaxtyping import Array

from fedsolve.core.xla.compiler import not_inlined

# Winograd's minimal filtering F(4x4, 3x3): a 3x3 convolution and its two gradients with a quarter of the products.
#
# The convolution of a tile of 6x6 entries with a kernel of 3x3 is that of two polynomials, whose values at six points
# (one of them infinity) are multiplied, and from whose product the 4x4 places of the result follow:
#
#     y = A' ((G kernel G') * (B' x B)) A.
#
# Each of the 36 products of a tile sums over the channels, and all tiles together are 36 matrix products, where the
# direct sum has 144. It is an identity, not an approximation. How it rounds depends on the points: with 0, 3/4, -3/4,
# 3/2, -3/2 its largest float32 error is at most some twice that of XLA's direct sum (benchmarks/FINDINGS.md), with the
# integers up to 2 it is three to five times as large.
#
# The matrices of the gradients are the transposes: x' = B ((G kernel G') * (A y A')) B', summed where tiles overlap,
# kernel' = G' ((B' x B) * (A y A')) G.

_POINTS = np.array([0, 3 / 4, -3 / 4, 3 / 2, -3 / 2])  # and infinity
_STEP, _TILE = 4, 6  # places of the result and entries of the input of a tile, along an axis


def _matrices() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    # A' (4, 6), G (6, 3) and B' (6, 6) of the points, as Toom and Cook have them
    others = [np.delete(_POINTS, i) for i in range(len(_POINTS))]
    scale = [np.prod(point - rest) for point, rest in zip(_POINTS, others, strict=True)]
    infinity = np.eye(6)[-1:]
    values = np.vstack([np.vander(_POINTS, 4, increasing=True), infinity[:, 2:]])
    kernel = np.vstack([np.vander(_POINTS, 3, increasing=True) / np.array(scale)[:, None], infinity[:, 3:]])
    basis = [np.append(np.poly(rest)[::-1], 0) for rest in others]  # polynomials that vanish at the others
    return values.T, kernel, np.vstack([*basis, np.poly(_POINTS)[::-1]])


_OUTPUT, _KERNEL, _INPUT = _matrices()
_OF_TWO = np.hstack([_INPUT.T[:_STEP], np.pad(_INPUT.T[_STEP:], [(0, 2 * _STEP - _TILE), (0, 0)])])
"""B for four entries of the input: first of their own tile, then of the tile before, whose last two are the first."""


def convolution(
    x: Array, kernel: Array, y: tuple[int, ...], before: tuple[int, ...], by_channel: bool = False
) -> Array:
    """The result, of shape `y` (n, h', w', out), of x (n, h, w, c), padded by so many zeros `before` each axis."""
    # `by_channel`: in memory the kernel is (out, c, 3, 3), as in PyTorch, so that its matrices are better (out, c).
    own = _of_kernel(kernel, by_channel)
    products = jnp.einsum(f"tnc,t{_ORDER[by_channel]}->tno", _of_input(x, y, before), own)
    tiles = products.reshape(_TILE, _TILE, y[0], *_tiles(y), y[-1])
    return _joined(_OUTPUT, tiles, lambda arrays, axis: arrays)[:, : y[1], : y[2]]


def gradient_of_input(
    y: Array, kernel: Array, x: tuple[int, ...], before: tuple[int, ...], by_channel: bool = False
) -> Array:
    """The gradient of the input of shape `x`, padded by so many zeros `before` each axis, from y's."""
    own = _of_kernel(kernel, by_channel)
    products = jnp.einsum(f"tno,t{_ORDER[by_channel]}->tnc", _of_result(y), own)
    tiles = products.reshape(_TILE, _TILE, x[0], *_tiles(y.shape), x[-1])
    whole = _joined(_OF_TWO, tiles, _and_the_one_before)
    ends = [(-b, n + b - has) for n, b, has in zip(x[1:3], before, whole.shape[1:3], strict=True)]
    return _padded(whole, ends)


def gradient_of_kernel(x: Array, y: Array, before: tuple[int, ...], by_channel: bool = False) -> Array:
    """The gradient of the kernel from y's, for the input x, padded by so many zeros `before` each axis."""
    given = _of_input(x, y.shape, before), _of_result(y)
    products = jnp.einsum(f"tnc,tno->t{_ORDER[by_channel]}", *given)
    columns = _times(_KERNEL.T, products.reshape(_TILE, _TILE, *products.shape[1:]))
    kernel = _times(_KERNEL.T, jnp.swapaxes(columns, 0, 1))
    return jnp.swapaxes(kernel, 2, 3) if by_channel else kernel


_ORDER = {False: "co", True: "oc"}  # of a kernel's matrices


def number(y: Sequence[int]) -> int:
    """Tiles of a result of shape (n, h, w, out)."""
    return y[0] * math.prod(_tiles(y))


def _tiles(y: Sequence[int]) -> tuple[int, int]:
    # how many tiles lie below and beside one another: at the ends they may have places that are not asked for
    return -(-y[1] // _STEP), -(-y[2] // _STEP)


# Both sums of a transform are arrays of their own: as 36 matrices apart they took four times as long to compile, and
# each worked the first sums out again. Among the 36 the second axis varies slowest.


@partial(not_inlined, static_argnames=("y", "before"))
def _of_input(x: Array, y: tuple[int, ...], before: tuple[int, ...]) -> Array:
    # B' x B: (36, tiles, c)
    covered = [_STEP * tiles + _TILE - _STEP for tiles in _tiles(y)]
    x = _padded(x, [(b, has - n - b) for b, has, n in zip(before, covered, x.shape[1:3], strict=True)])
    rows = _times(_INPUT, _every_fourth(x, 1))
    return _times(_INPUT, _every_fourth(rows, 3)).reshape(_TILE**2, -1, x.shape[-1])


def _every_fourth(x: Array, axis: int) -> list[Array]:
    # the entries of all tiles along an axis: the first of each, the second of each, ...
    span = x.shape[axis] - _TILE + 1
    return [lax.slice_in_dim(x, i, i + span, _STEP, axis) for i in range(_TILE)]


@not_inlined
def _of_result(y: Array) -> Array:
    # A y A': (36, tiles, out)
    y = _padded(y, [(0, _STEP * tiles - n) for tiles, n in zip(_tiles(y.shape), y.shape[1:3], strict=True)])
    rows = _times(_OUTPUT.T, [y[:, i::_STEP] for i in range(_STEP)])
    columns = _times(_OUTPUT.T, [rows[:, :, :, j::_STEP] for j in range(_STEP)])
    return columns.reshape(_TILE**2, -1, y.shape[-1])


def _of_kernel(kernel: Array, by_channel: bool) -> Array:
    # G kernel G': (36, c, out), or (36, out, c)
    kernel = jnp.swapaxes(kernel, 2, 3) if by_channel else kernel
    rows = _times(_KERNEL, kernel)
    return _times(_KERNEL, jnp.swapaxes(rows, 0, 1)).reshape(_TILE**2, *kernel.shape[2:])


def _joined(matrix: np.ndarray, tiles: Array, gathered: Callable[[Array, int], Array]) -> Array:
    # M t M' of tiles (6, 6, n, down, right, c) as pictures (n, 4 down, 4 right, c): of what is `gathered` along an axis
    columns = _times(matrix, gathered(tiles, 4))
    places = _times(matrix, gathered(jnp.swapaxes(columns, 0, 1), 3))
    n, down, right, c = places.shape[2:]
    return places.transpose(2, 3, 0, 4, 1, 5).reshape(n, _STEP * down, _STEP * right, c)


def _and_the_one_before(arrays: Array, axis: int) -> Array:
    # along the first axis arrays by tile, then the same of the tile before, of which there is one more
    sides = ([(0, 0)] * axis + [ends] + [(0, 0)] * (arrays.ndim - axis - 1) for ends in ((0, 1), (1, 0)))
    return jnp.concatenate([jnp.pad(arrays, side) for side in sides])


def _times(matrix: np.ndarray, arrays: Array | Sequence[Array]) -> Array:
    # the matrix times the arrays along their first axis, by sums without what is multiplied by 0
    terms = (
        [a if m == 1 else a * m for m, a in zip(row, arrays, strict=True) if m] for row in matrix.tolist()
    )
    return jnp.stack([reduce(add, row) for row in terms])


def _padded(x: Array, ends: Sequence[tuple[int, int]]) -> Array:
    # x (n, h, w, c) with zeros at both ends of its middle axes, or without so many entries
    return lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), *((a, b, 0) for a, b in ends), (0, 0, 0)])


Ints: TypeAlias = Sequence[int]
DIRECT = "convolution_of_channels_last"
"""The name of the operation in traced programs."""

_ROLES = ("x", "kernel", "y")
# channels below which the library is slow: of its input, which it cuts, and of its output
_THIN, _WIDE = 8, 32
# pairs of channels, and tiles, below which transforms and compilation cost more than products save
_TILE_PAIRS, _TILES = 2048, 128
_MANY_PAIRS = range(
    2**14, 2**16 + 1
)  # fewer tiles are enough, as long as the kernel's matrices stay in the cache
_ROWS = 5  # that the library multiplies at once
_FLIPPED_AXES = ("", "W", "HW", "DHW")


class _Form(NamedTuple):
    # the shapes of all three arrays, and of each axis its stride, padding and dilation of the kernel
    x: tuple[int, ...]
    kernel: tuple[int, ...]
    y: tuple[int, ...]
    strides: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]
    by_channel: bool = False  # whether the kernel is (out, c, *window) in memory


def direct(
    x: Array,
    kernel: Array,
    *,
    strides: Ints,
    padding: Sequence[Ints],
    dilation: Ints,
    by_channel: bool = False,
) -> Array:
    """x (batch, *axes, c) with the kernel (*window, c, out) as (batch, *places, out): one to three axes, float32."""
    y = (x.shape[0], *places(x, kernel, strides, padding, dilation), kernel.shape[-1])
    ends = tuple((before, after) for before, after in padding)
    form = _Form(x.shape, kernel.shape, y, tuple(strides), ends, tuple(dilation), by_channel)
    return _derivative.bind(x, kernel, of="y", form=form)


def places(x: Array, kernel: Array, strides: Ints, padding: Sequence[Ints], dilation: Ints) -> list[int]:
    """The number of places of the result along each axis, of the shapes that `direct` has."""
    axes = zip(x.shape[1:-1], kernel.shape[:-2], strides, padding, dilation, strict=True)
    return [(n + sum(ends) - d * (w - 1) - 1) // s + 1 for n, w, s, ends, d in axes]


def _given(of: str) -> tuple[str, ...]:
    return tuple(role for role in _ROLES if role != of)


def _compute(*values: Array, of: str, form: _Form) -> Array:
    # the derivative of the form in the argument `of`, from the other two, as a convolution with channels last
    given = dict(zip(_given(of), values, strict=True))
    if _tiles_pay(form):
        return _by_tiles(given, of, form)
    if of == "y":
        return _widened(given["x"], given["kernel"], form.strides, form.padding, form.dilation)
    if of == "x":
        return _gradient_of_input(given["y"], given["kernel"], form)
    return _gradient_of_kernel(given["x"], given["y"], form=form)


def _gradient_of_input(y: Array, kernel: Array, form: _Form) -> Array:
    # a convolution of y, as far apart as the strides, with the kernel from its end
    ends = [
        (d * (w - 1) - before, n - (places - 1) * stride - 1 + before)
        for d, w, (before, _), n, places, stride in zip(
            form.dilation, kernel.shape, form.padding, form.x[1:], form.y[1:], form.strides, strict=False
        )
    ]
    turned = jnp.swapaxes(jnp.flip(kernel, range(len(ends))), -1, -2)
    return _widened(y, turned, (1,) * len(ends), ends, form.dilation, form.strides)


@partial(not_inlined, static_argnames="form")
def _gradient_of_kernel(x: Array, y: Array, form: _Form) -> Array:
    # a convolution of x with y, whose examples are its channels
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
    # whether minimal filtering is the fastest form: of 3x3 kernels without strides, many channels and many
    # tiles
    *window, c, out = form.kernel
    simple = window == [3, 3] and {*form.strides, *form.dilation} == {1}
    fewest = _TILES // 4 if c * out in _MANY_PAIRS else _TILES
    return simple and c * out >= _TILE_PAIRS and number(form.y) >= fewest


def _by_tiles(given: Mapping[str, Array], of: str, form: _Form) -> Array:
    before = tuple(b for b, _ in form.padding)
    if of == "y":
        return convolution(given["x"], given["kernel"], form.y, before, form.by_channel)
    if of == "x":
        return gradient_of_input(given["y"], given["kernel"], form.x, before, form.by_channel)
    return gradient_of_kernel(given["x"], given["y"], before, form.by_channel)


def _along_rows(x: Array, y: Array, ends: Sequence[tuple[int, int]], form: _Form) -> Array:
    # the kernel's gradient with the places and channels of a row as one axis: x (h, w, c, n), y (places, n,
    # out)
    # the result's last axis is what the library multiplies at once: window times c places, where it would be
    # the window
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
    # `_convolve`; few channels of the result as two or four neighbouring places at once, by a kernel as much
    # wider
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
    # under vmap: of one kernel all examples in one batch; of several the products of patches, which batch well
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
    # the derivative in argument number `wrt`: the cotangent takes the place of the result
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
    x: Array, kernel: Array, *, strides: Ints, padding: Sequence[Ints], dilation: Ints, by_channel: bool = False,
    **products: Any,
) -> Array:  # fmt: skip
    """One product of the patches, (batch places, window c), with the kernel; `by_channel`: (batch places, c window)."""
    # x is (batch, *axes, c), the kernel (*window, c, out), the result (batch, *places, out); products: options of them
    *window, c, out = kernel.shape
    positions = places(x, kernel, strides, padding, dilation)
    if any(map(any, padding)):
        x = lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), *[(a, b, 0) for a, b in padding], (0, 0, 0)])
    shifts = []
    for position in product(*map(range, window)):
        start = [p * d for p, d in zip(position, dilation, strict=True)]
        stop = [s + (n - 1) * t + 1 for s, n, t in zip(start, positions, strides, strict=True)]
        shifts.append(lax.slice(x, (0, *start, 0), (x.shape[0], *stop, c), (1, *strides, 1)))
    if by_channel:
        patches, matrix = jnp.stack(shifts, -1), jnp.moveaxis(kernel, (-1, -2), (0, 1)).reshape(out, -1).T
    else:
        patches, matrix = jnp.concatenate(shifts, -1), kernel.reshape(-1, out)
    y = jnp.matmul(patches.reshape(-1, len(shifts) * c), matrix, **products)
    return y.reshape(x.shape[0], *positions, out)
