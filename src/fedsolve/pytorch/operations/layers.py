"""Products of matrices, distances, Fourier transforms, and complex numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from fedsolve.core.xla.recurrence import GRU_CELL, LSTM_CELL, RELU_CELL, TANH_CELL, Cell, own_part, recur
from fedsolve.pytorch.operations.operands import Weights, all_but_channels, counted, filled, last_axis
from fedsolve.pytorch.operations.pointwise import vector_norm
from fedsolve.pytorch.operations.shapes import dropout
from fedsolve.pytorch.translation.registry import operation, operations


@operation("aten.mm.default", "aten.bmm.default", mixing=last_axis)
def matmul(x: Array, other: Array, *, weights: Weights = None) -> Array:
    return jnp.matmul(filled(x, weights, (x.ndim - 1,), 0), other)


@operation("aten.addmm.default", "aten.addmv.default")
def addmm(x: Array, mat1: Array, mat2: Array, *, beta: float = 1, alpha: float = 1) -> Array:
    # beta = 0 leaves x out, NaN and all
    product = jnp.matmul(mat1, mat2)
    product = product if alpha == 1 else product * alpha
    return product if beta == 0 else (x if beta == 1 else x * beta) + product


@operation("aten._trilinear.default")
def trilinear(
    i1: Array,
    i2: Array,
    i3: Array,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    sumdim: Sequence[int],
    unroll_dim: int = 1,
) -> Array:
    # each operand gets new axes of length 1; the product of the three is summed over `sumdim`
    a, b, c = (jnp.expand_dims(x, tuple(e)) for x, e in ((i1, expand1), (i2, expand2), (i3, expand3)))
    return _summed_product(a, b, c, sumdim)


def _summed_product(a: Array, b: Array, c: Array, axes: Sequence[int]) -> Array:
    # `einsum` without the axes of length 1: the product of all three is never formed
    shape = jnp.broadcast_shapes(a.shape, b.shape, c.shape)
    terms: list[object] = []
    for x in (a, b, c):
        long = [i for i, n in enumerate(x.shape) if n > 1]
        terms += [x.reshape([x.shape[i] for i in long]), long]
    present = {i for term in terms[1::2] for i in term}  # pyright: ignore[reportGeneralTypeIssues]
    kept = [i for i in range(len(shape)) if i not in axes]
    y = jnp.einsum(*terms, [i for i in kept if i in present], optimize="optimal")  # pyright: ignore
    return y.reshape([shape[i] for i in kept])


@operation("aten._cdist_forward.default")
def cdist(x1: Array, x2: Array, p: float = 2, compute_mode: int | None = None) -> Array:
    # the gradient of a distance that is 0 is 0
    return vector_norm(x1[..., :, None, :] - x2[..., None, :, :], p, (-1,))


@operation("aten._pdist_forward.default")
def pdist(x: Array, p: float = 2) -> Array:
    # each pair of rows once
    first, second = np.triu_indices(x.shape[0], 1)
    return vector_norm(x[first] - x[second], p, (-1,))


_POWERS = (0.0, -0.5, -1.0)
"""Of the number of entries, by which a transform is multiplied: ATen's codes 0, 1 and 2."""


@operation("aten._fft_c2c.default")
def c2c(x: Array, dim: Sequence[int], normalization: int, forward: bool) -> Array:
    one = jnp.fft.fft if forward else jnp.fft.ifft
    size = 1
    for axis in dim:
        x, size = one(x, axis=axis, norm="backward" if forward else "forward"), size * x.shape[axis]
    return x * size ** _POWERS[normalization]


@operation("aten._fft_r2c.default")
def r2c(x: Array, dim: Sequence[int], normalization: int, onesided: bool) -> Array:
    # one-sided: only the frequencies of the last axis that are not conjugates of others
    *others, last = dim
    y = jnp.fft.rfft(x, axis=last) if onesided else jnp.fft.fft(x, axis=last)
    return c2c(y * x.shape[last] ** _POWERS[normalization], others, normalization, True)


@operation("aten._fft_c2r.default")
def c2r(x: Array, dim: Sequence[int], normalization: int, last_dim_size: int) -> Array:
    # `last_dim_size` entries along the last axis in `dim`
    *others, last = dim
    x = c2c(x, others, normalization, False)
    return jnp.fft.irfft(x, last_dim_size, last, "forward") * last_dim_size ** _POWERS[normalization]


operations(
    {
        "_conj": jnp.conj,
        "angle": jnp.angle,
        "complex": lambda real, imag: lax.complex(*jnp.broadcast_arrays(real, imag)),
        "conj_physical": jnp.conj,
        "polar": lambda size, angle: lax.complex(size * jnp.cos(angle), size * jnp.sin(angle)),
        "view_as_complex": lambda x: lax.complex(x[..., 0], x[..., 1]),
        "view_as_real": lambda x: jnp.stack([x.real, x.imag], -1),
    }
)

# Normalisation of each example by its means and variances, and of batches, with statistics of what was seen.
#
# Statistics of halves are in float32, as PyTorch's are, where examples stand alone.


@operation("aten.native_layer_norm.default")
def native_layer_norm(
    x: Array, normalized_shape: Sequence[int], weight: Array | None, bias: Array | None, eps: float
) -> tuple[Array, Array, Array]:
    # returns (normalised, mean, 1 / deviation)
    axes = tuple(range(x.ndim - len(normalized_shape), x.ndim))
    around, mean, scale = _standardised(x, axes, eps)
    return _scaled(around, weight, bias).astype(x.dtype), mean, scale


@operation("aten.layer_norm.default")
def layer_norm(
    x: Array,
    normalized_shape: Sequence[int],
    weight: Array | None = None,
    bias: Array | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Array:
    return native_layer_norm(x, normalized_shape, weight, bias, eps)[0]


@operation("aten.native_group_norm.default")
def native_group_norm(
    x: Array, weight: Array | None, bias: Array | None, N: int, C: int, HxW: int, group: int, eps: float
) -> tuple[Array, Array, Array]:
    # returns (normalised, mean, 1 / deviation) of each group of channels of each example
    grouped = x.reshape(N, group, C // group, HxW)
    around, mean, scale = _standardised(grouped, (2, 3), eps)
    y = _scaled(around.reshape(x.shape), _along(weight, x), _along(bias, x))
    return y.astype(x.dtype), mean.reshape(N, group), scale.reshape(N, group)


@operation("aten.group_norm.default")
def group_norm(
    x: Array,
    num_groups: int,
    weight: Array | None = None,
    bias: Array | None = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Array:
    n, c, *space = x.shape
    return native_group_norm(x, weight, bias, n, c, prod(space), num_groups, eps)[0]


def _standardised(x: Array, axes: tuple[int, ...], eps: float) -> tuple[Array, Array, Array]:
    # returns x with mean 0 and variance 1 along axes; mean and 1 / deviation keep these axes
    x = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    mean = jnp.mean(x, axes, keepdims=True)
    around = x - mean
    scale = lax.rsqrt(jnp.mean(jnp.square(around), axes, keepdims=True) + eps)
    return around * scale, mean, scale


def _scaled(x: Array, weight: Array | None, bias: Array | None) -> Array:
    x = x if weight is None else x * weight
    return x if bias is None else x + bias


def _along(values: Array | None, x: Array) -> Array:
    # one value a channel, the second axis of x
    return None if values is None else values.reshape(-1, *[1] * (x.ndim - 2))  # pyright: ignore


@operation("aten._native_batch_norm_legit_functional.default", mixing=all_but_channels)
def functional(
    x: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array,
    running_var: Array,
    training: bool,
    momentum: float,
    eps: float,
    *,
    weights: Weights = None,
) -> tuple[Array, ...]:
    # returns (normalised, mean, 1 / deviation, new running mean, new running variance)
    running_mean, running_var = lax.stop_gradient((running_mean, running_var))
    if not training:
        return (
            *no_training(x, weight, bias, running_mean, running_var, momentum, eps),
            running_mean,
            running_var,
        )
    mean, var, count = _statistics(x, weights)
    out, rstd = _normalised(x, weight, bias, mean, var, eps)
    unbiased = lax.stop_gradient(var * (count / jnp.maximum(count - 1, 1)))
    return (
        out,
        mean,
        rstd,
        (1 - momentum) * running_mean + momentum * lax.stop_gradient(mean),
        (1 - momentum) * running_var + momentum * unbiased,
    )


@operation("aten._native_batch_norm_legit.no_stats", mixing=all_but_channels)
def no_stats(
    x: Array,
    weight: Array | None,
    bias: Array | None,
    training: bool,
    momentum: float,
    eps: float,
    *,
    weights: Weights = None,
) -> tuple[Array, ...]:
    # by the batch's own statistics in evaluation too; InstanceNorm comes as this, with examples as channels
    mean, var, _ = _statistics(x, weights)
    out, rstd = _normalised(x, weight, bias, mean, var, eps)
    return out, mean, rstd


@operation("aten._native_batch_norm_legit_no_training.default")
def no_training(
    x: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array,
    running_var: Array,
    momentum: float,
    eps: float,
) -> tuple[Array, ...]:
    # running statistics get no gradient
    running_mean, running_var = lax.stop_gradient((running_mean, running_var))
    out, _ = _normalised(x, weight, bias, running_mean, running_var, eps)
    none = jnp.zeros(0, x.dtype)  # PyTorch gives empty statistics
    return out, none, none


def _statistics(x: Array, weights: Weights) -> tuple[Array, Array, Any]:
    # mean and biased variance of each channel over the examples that count, and how many numbers these are
    axes = (0, *range(2, x.ndim))
    counts = counted(weights, axes, x.ndim)
    if counts is None:
        mean = jnp.mean(x, axes)
        return mean, jnp.mean(jnp.square(x - _channel(mean, x)), axes), x.size / x.shape[1]
    w = counts.astype(x.dtype)
    count = jnp.maximum(jnp.sum(w), 1) * (x.size // x.shape[1] // w.size)
    mean = jnp.sum(w * x, axes) / count
    return mean, jnp.sum(w * jnp.square(x - _channel(mean, x)), axes) / count, count


def _normalised(
    x: Array, weight: Array | None, bias: Array | None, mean: Array, var: Array, eps: float
) -> tuple[Array, Array]:
    rstd = lax.rsqrt(var + eps)
    scale = rstd if weight is None else rstd * weight
    out = (x - _channel(mean, x)) * _channel(scale, x)
    return (out if bias is None else out + _channel(bias, x)), rstd


def _channel(values: Array, x: Array) -> Array:
    # values (c,) against x (n, c, ...)
    return lax.expand_dims(values, range(1, x.ndim - 1))


# Recurrent layers: LSTM, GRU and Elman's, any number of layers, in one or both directions.
#
# The products with the inputs are one matrix product for all steps; the scan over time keeps those with the state. Its
# gradient is that of `fedsolve.core.xla.recurrence`, unless an LSTM's outputs are projected.


def _recurrent(cell: Cell, states_of: Callable[[Any], list[Any]]) -> Callable[..., tuple[Array, ...]]:
    # an ATen operation of a cell; `states_of` converts the first states, which ATen orders differently for an LSTM
    # (h and c apart) and for the others

    def layer(
        x: Array,
        hx: Any,
        params: Sequence[Array],
        has_biases: bool,
        num_layers: int,
        rate: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
        *,
        key: Array | None = None,
    ) -> tuple[Array, ...]:
        states, last = states_of(hx), []
        x = jnp.swapaxes(x, 0, 1) if batch_first else x
        each, ways = len(params) // len(states), 2 if bidirectional else 1
        for first in range(0, len(states), ways):
            if first and train and rate:  # between layers
                x = dropout(x, rate, True, key=None if key is None else jax.random.fold_in(key, first))
            outputs = []
            for number in range(first, first + ways):
                own = params[number * each : (number + 1) * each]
                y, end = _direction(cell, x, states[number], own, has_biases, backwards=number > first)
                outputs.append(y)
                last.append(end)
            x = outputs[0] if ways == 1 else jnp.concatenate(outputs, -1)
        return jnp.swapaxes(x, 0, 1) if batch_first else x, *(
            jnp.stack(states) for states in zip(*last, strict=True)
        )

    return layer


operation("aten.lstm.input", random=True)(_recurrent(LSTM_CELL, lambda hx: list(zip(*hx, strict=True))))
for _name, _cell in {"gru": GRU_CELL, "rnn_tanh": TANH_CELL, "rnn_relu": RELU_CELL}.items():
    operation(f"aten.{_name}.input", random=True)(_recurrent(_cell, lambda hx: [(h,) for h in hx]))


def _direction(
    cell: Cell, x: Array, state: Any, params: Sequence[Array], has_biases: bool, backwards: bool
) -> tuple[Array, Any]:
    # one layer over time, the first axis of x
    into, recurrent, *rest = params
    zero = jnp.zeros(len(into), x.dtype)
    bias_in, bias, *projection = rest if has_biases else (zero, zero, *rest)
    apart = has_biases and cell is GRU_CELL  # whose reset gate multiplies the state's bias
    x = jnp.flip(x, 0) if backwards else x
    own = own_part(into, bias_in if apart else bias_in + bias, x)
    if projection:
        y, end = _projected(recurrent, projection[0], own, state)
    else:
        y, end = recur(cell, recurrent, bias if apart else None, own, state)
    return jnp.flip(y, 0) if backwards else y, end


def _projected(recurrent: Array, projection: Array, own: Array, state: Any) -> tuple[Array, Any]:
    # an LSTM with `proj_size`: outputs are fewer than cells

    def step(state: Any, own: Array) -> tuple[Any, Array]:
        (h, c), _ = LSTM_CELL.forward(state, own, state[0] @ recurrent.T)
        h = h @ projection.T
        return (h, c), h

    end, y = jax.lax.scan(step, state, own)
    return y, end
