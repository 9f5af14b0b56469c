"""The layers of the models: a few lines each over `jax.nn`, in forms that are fast on a CPU; and checks of models."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from fedsolve.core.errors import InvalidInput, check_integer, check_number
from fedsolve.core.xla.compiler import make_cores_devices

Initializer = Callable[[Array, tuple[int, ...]], Array]


class Affine(NamedTuple):
    """Weight and bias of one layer: dense (out, in) or convolution (height, width, in, out), and (out,) or None.

    Of one output: (in,) or, for a matrix, (rows, columns), and (). Of a norm: (channels,) both.

    Attributes:
        weight: of the layer, of the shapes above.
        bias: one number an output, or None.
    """

    weight: Any
    bias: Any


def he(key: Array, shape: tuple[int, ...], fan_in: int) -> Affine:
    """Normal weights of variance 2 / fan_in and a zero bias (He et al. 2015); the last of shape is out."""
    spread = math.sqrt(2.0 / fan_in)
    return Affine(spread * jax.random.normal(key, shape), jnp.zeros(shape[-1]))


def he_dense(key: Array, fan_in: int, out: int) -> Affine:
    """`he` of a dense layer, weight (out, fan_in)."""
    return Affine(he(key, (out, fan_in), fan_in).weight, jnp.zeros(out))


def dense_of(weights: Initializer, key: Array, fan_in: int, out: int) -> Affine:
    """Weights (out, fan_in) of an initialiser of `jax.nn.initializers`, which takes (fan_in, out), and a zero bias."""
    return Affine(weights(key, (fan_in, out)).T, jnp.zeros(out))


def unit_norm(channels: int) -> Affine:
    """A norm's scale 1 and shift 0."""
    return Affine(jnp.ones(channels), jnp.zeros(channels))


def flat(x: Array) -> Array:
    """One row an example."""
    return jnp.reshape(x, (x.shape[0], -1))


def dense(layer: Affine, x: Array) -> Array:
    """W v + b for each v of x (..., in), computed on columns: products and sums are then fast on a CPU."""
    columns = layer.weight @ jnp.reshape(x, (-1, x.shape[-1])).T + layer.bias[:, None]
    return jnp.reshape(columns.T, (*x.shape[:-1], -1))


def dense_on_rows(layer: Affine, x: Array) -> Array:
    """`dense`, computed on rows: faster for small layers of clients that train side by side."""
    return x @ layer.weight.T + layer.bias


def as_numbers(x: Array, like: Array) -> Array:
    """Images of bytes as x / 255 in the type of `like`, a weight; numbers as they are."""
    return x.astype(like.dtype) / 255 if x.dtype == jnp.uint8 else x


def check_rate(name: str, rate: float) -> float:
    """A dropout rate, at least 0 and below 1.

    Raises:
        InvalidInput: another number.
    """
    return check_number(name, rate, at_least=0, below=1)


def dropout(key: Array | None, rate: float, x: Array) -> Array:
    """Each entry 0 with probability `rate`, else divided by 1 - rate (Srivastava et al. 2014); key None: x itself.

    The rate is taken to 8 bits where it has no more, else to 16, and the scale is that of the rate taken: the mean is
    exact. So few bits because drawing them is what dropout costs (benchmarks/FINDINGS.md).
    """
    if key is None or rate == 0:
        return x
    draws = jnp.uint8 if (256 * rate).is_integer() else jnp.uint16
    levels = 2 ** (8 * jnp.dtype(draws).itemsize)
    kept_levels = max(1, round(levels * (1 - rate)))
    a_word = 4 // jnp.dtype(draws).itemsize
    words = jax.random.bits(key, (-(-x.size // a_word),), jnp.uint32)
    bits = lax.bitcast_convert_type(words, draws).reshape(-1)[: x.size].reshape(x.shape)
    return jnp.where(bits <= kept_levels - 1, x * (levels / kept_levels), 0)


@partial(jax.jit, static_argnums=(2, 3), inline=True)
def group_norm(
    norm: Affine, x: Float[Array, "n h w c"], groups: int, epsilon: float = 1e-5
) -> Float[Array, "n h w c"]:
    """Groups of channels of each image brought to mean 0 and variance 1, scaled and shifted (Wu and He 2018).

    Sums over the places of a channel come first, since those along the channels are the slow ones on a CPU.
    """
    n, *space, c = x.shape
    count = math.prod(space)
    axes = tuple(range(1, x.ndim - 1))

    def of_groups(channels: Array) -> Array:
        means = jnp.mean(channels.reshape(n, groups, -1), axis=-1, keepdims=True)
        means = jnp.broadcast_to(means, (n, groups, c // groups))
        return means.reshape(n, *[1] * len(axes), c)

    centred = x - of_groups(jnp.sum(x, axes) / count)
    variance = of_groups(jnp.sum(jnp.square(centred), axes) / count)
    return centred * (norm.weight * lax.rsqrt(variance + epsilon)) + norm.bias


def layer_norm(norm: Affine, x: Float[Array, "... c"], epsilon: float = 1e-5) -> Float[Array, "... c"]:
    """Each vector brought to mean 0 and variance 1, scaled and shifted (Ba et al. 2016)."""
    centred = x - jnp.mean(x, axis=-1, keepdims=True)
    variance = jnp.mean(jnp.square(centred), axis=-1, keepdims=True)
    return centred * lax.rsqrt(variance + epsilon) * norm.weight + norm.bias


def check_model(
    model: Any, shape: tuple[int, ...], outputs: tuple[int, ...], dtype: Any = jnp.float32
) -> None:
    """Check that a model takes examples of a shape and type and gives outputs of a shape, without computing.

    Raises:
        InvalidInput: it refuses the examples, or its outputs have another shape.
    """
    make_cores_devices()  # before the model, which may ask for its backend, begins JAX
    x = jax.ShapeDtypeStruct((1, *shape), dtype)
    try:
        key = jax.eval_shape(jax.random.key, 0)
        found = jax.eval_shape(lambda key, x: model(model.init(key), x), key, x).shape
    except (TypeError, ValueError, AttributeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InvalidInput(f"model {model!r} does not take examples of shape {shape}: {reason}") from None
    if found != (1, *outputs):
        raise InvalidInput(
            f"model {model!r} gives outputs of shape {found[1:]} for an example, the task needs {outputs}"
        )


def two_rates(name: str, values: Any) -> tuple[float, ...]:
    """Two rates of dropout as a tuple."""
    if not isinstance(values, tuple | list) or len(values) != 2:
        raise InvalidInput(f"{name} = {values!r} must be two rates, such as (0.25, 0.5)")
    return tuple(check_rate(name, rate) for rate in values)


def sizes_of(name: str, values: Any) -> tuple[int, ...]:
    """Layer sizes as a tuple, each at least 1."""
    if not isinstance(values, tuple | list):
        raise InvalidInput(f"{name} = {values!r} must be several integers, such as (64, 10)")
    return tuple(check_integer(name, n, 1) for n in values)
