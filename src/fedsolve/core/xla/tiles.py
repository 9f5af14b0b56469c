"""Winograd's minimal filtering F(4x4, 3x3): a 3x3 convolution and its two gradients with a quarter of the products.

The convolution of a tile of 6x6 entries with a kernel of 3x3 is that of two polynomials, whose values at six points
(one of them infinity) are multiplied, and from whose product the 4x4 places of the result follow:

    y = A' ((G kernel G') * (B' x B)) A.

Each of the 36 products of a tile sums over the channels, and all tiles together are 36 matrix products, where the
direct sum has 144. It is an identity, not an approximation. How it rounds depends on the points: with 0, 3/4, -3/4,
3/2, -3/2 its largest float32 error is at most some twice that of XLA's direct sum (benchmarks/FINDINGS.md), with the
integers up to 2 it is three to five times as large.

The matrices of the gradients are the transposes: x' = B ((G kernel G') * (A y A')) B', summed where tiles overlap,
kernel' = G' ((B' x B) * (A y A')) G.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from operator import add

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

_POINTS = np.array([0, 3 / 4, -3 / 4, 3 / 2, -3 / 2])  # and infinity
_STEP, _TILE = 4, 6  # places of the result and entries of the input of a tile, along an axis


def _matrices() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A' (4, 6), G (6, 3) and B' (6, 6) of the points, as Toom and Cook have them."""
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


def convolution(x: Array, kernel: Array, y: Sequence[int], before: Sequence[int]) -> Array:
    """The result, of shape `y` (n, h', w', out), of x (n, h, w, c), padded by so many zeros `before` each axis."""
    factors = zip(_of_input(x, y, before), _of_kernel(kernel), strict=True)
    tiles = [(t @ k).reshape(y[0], *_tiles(y), y[-1]) for t, k in factors]
    return _joined(_OUTPUT, tiles, lambda arrays, axis: arrays)[:, : y[1], : y[2]]


def gradient_of_input(y: Array, kernel: Array, x: Sequence[int], before: Sequence[int]) -> Array:
    """The gradient of the input of shape `x`, padded by so many zeros `before` each axis, from y's."""
    factors = zip(_of_result(y), _of_kernel(kernel), strict=True)
    tiles = [(t @ k.T).reshape(x[0], *_tiles(y.shape), x[-1]) for t, k in factors]
    whole = _joined(_OF_TWO, tiles, _and_the_one_before)
    ends = [(-b, n + b - has) for n, b, has in zip(x[1:3], before, whole.shape[1:3], strict=True)]
    return _padded(whole, ends)


def gradient_of_kernel(x: Array, y: Array, before: Sequence[int]) -> Array:
    """The gradient of the kernel from y's, for the input x, padded by so many zeros `before` each axis."""
    factors = zip(_of_input(x, y.shape, before), _of_result(y), strict=True)
    products = [t.T @ g for t, g in factors]
    rows = [_times(_KERNEL.T, products[j::_TILE]) for j in range(_TILE)]
    return jnp.stack([jnp.stack(_times(_KERNEL.T, [row[i] for row in rows])) for i in range(3)])


def number(y: Sequence[int]) -> int:
    """Tiles of a result of shape (n, h, w, out)."""
    return y[0] * math.prod(_tiles(y))


def _tiles(y: Sequence[int]) -> tuple[int, int]:
    """How many tiles lie below and beside one another: at the ends they may have places that are not asked for."""
    return -(-y[1] // _STEP), -(-y[2] // _STEP)


def _of_input(x: Array, y: Sequence[int], before: Sequence[int]) -> list[Array]:
    """B' x B: 36 matrices (tiles, c)."""
    covered = [_STEP * tiles + _TILE - _STEP for tiles in _tiles(y)]
    x = _padded(x, [(b, has - n - b) for b, has, n in zip(before, covered, x.shape[1:3], strict=True)])
    rows = _times(_INPUT, _every_fourth(x, 1, y))
    return [t.reshape(-1, x.shape[-1]) for row in rows for t in _times(_INPUT, _every_fourth(row, 2, y))]


def _every_fourth(x: Array, axis: int, y: Sequence[int]) -> list[Array]:
    """The entries of all tiles along an axis: the first of each, the second of each, ..."""
    span = _STEP * (_tiles(y)[axis - 1] - 1) + 1
    return [lax.slice_in_dim(x, i, i + span, _STEP, axis) for i in range(_TILE)]


def _of_result(y: Array) -> list[Array]:
    """A y A': 36 matrices (tiles, out)."""
    y = _padded(y, [(0, _STEP * tiles - n) for tiles, n in zip(_tiles(y.shape), y.shape[1:3], strict=True)])
    rows = _times(_OUTPUT.T, [y[:, i::_STEP] for i in range(_STEP)])
    columns = ([row[:, :, j::_STEP] for j in range(_STEP)] for row in rows)
    return [g.reshape(-1, y.shape[-1]) for column in columns for g in _times(_OUTPUT.T, column)]


def _of_kernel(kernel: Array) -> list[Array]:
    """G kernel G': 36 matrices (c, out)."""
    return [k for row in _times(_KERNEL, list(kernel)) for k in _times(_KERNEL, list(row))]


def _joined(
    matrix: np.ndarray, tiles: Sequence[Array], gathered: Callable[[Sequence[Array], int], Sequence[Array]]
) -> Array:
    """M t M' of 36 arrays (n, down, right, c) as pictures (n, 4 down, 4 right, c): of what is `gathered` along an axis.

    The second sum is a product: else XLA works the first out again for each of its places.
    """
    columns = [
        jnp.stack(_times(matrix, gathered(tiles[i : i + _TILE], 2))) for i in range(0, len(tiles), _TILE)
    ]
    rows = jnp.stack(gathered(columns, 2))
    places = (jnp.asarray(matrix, rows.dtype) @ rows.reshape(len(rows), -1)).reshape(_STEP, *rows.shape[1:])
    n, down, right, c = places.shape[2:]
    return places.transpose(2, 3, 0, 4, 1, 5).reshape(n, _STEP * down, _STEP * right, c)


def _and_the_one_before(arrays: Sequence[Array], axis: int) -> list[Array]:
    """Arrays by tile, and the same of the tile before, of which there is one more."""
    sides = ([(0, 0)] * axis + [ends] for ends in ((0, 1), (1, 0)))
    return [jnp.pad(a, [*side, *[(0, 0)] * (a.ndim - axis - 1)]) for side in sides for a in arrays]


def _times(matrix: np.ndarray, arrays: Sequence[Array]) -> list[Array]:
    """A matrix times a vector of arrays."""
    terms = (
        [a if m == 1 else a * m for m, a in zip(row, arrays, strict=True) if m] for row in matrix.tolist()
    )
    return [reduce(add, row) for row in terms]


def _padded(x: Array, ends: Sequence[tuple[int, int]]) -> Array:
    """x (n, h, w, c) with zeros at both ends of its middle axes, or without so many entries."""
    return lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), *((a, b, 0) for a, b in ends), (0, 0, 0)])
