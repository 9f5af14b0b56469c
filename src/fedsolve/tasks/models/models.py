"""Models as frozen, hashable dataclasses, and the layers that they are made of."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from fedsolve.core.errors import InvalidInput, check_integer, check_number
from fedsolve.core.xla.compiler import make_cores_devices
from fedsolve.core.xla.convolutions import conv, max_pool2x2
from fedsolve.data.examples import SparseRows

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
    # variance 2 / fan_in, zero bias (He et al. 2015); the last of shape is out
    spread = math.sqrt(2.0 / fan_in)
    return Affine(spread * jax.random.normal(key, shape), jnp.zeros(shape[-1]))


def he_dense(key: Array, fan_in: int, out: int) -> Affine:
    # weight (out, fan_in)
    return Affine(he(key, (out, fan_in), fan_in).weight, jnp.zeros(out))


def dense_of(weights: Initializer, key: Array, fan_in: int, out: int) -> Affine:
    # initialisers of `jax.nn.initializers` take (fan_in, out), weights here are (out, fan_in)
    return Affine(weights(key, (fan_in, out)).T, jnp.zeros(out))


def unit_norm(channels: int) -> Affine:
    return Affine(jnp.ones(channels), jnp.zeros(channels))


def flat(x: Array) -> Array:
    return jnp.reshape(x, (x.shape[0], -1))


def dense(layer: Affine, x: Array) -> Array:
    # W v + b for each v of x (..., in), computed on columns: products and sums are then fast on a CPU
    columns = layer.weight @ jnp.reshape(x, (-1, x.shape[-1])).T + layer.bias[:, None]
    return jnp.reshape(columns.T, (*x.shape[:-1], -1))


def dense_on_rows(layer: Affine, x: Array) -> Array:
    # `dense`, computed on rows: faster for small layers of clients that train side by side
    return x @ layer.weight.T + layer.bias


def as_numbers(x: Array, like: Array) -> Array:
    # images of bytes as x / 255 in the type of `like`, a weight; numbers as they are
    return x.astype(like.dtype) / 255 if x.dtype == jnp.uint8 else x


def check_rate(name: str, rate: float) -> float:
    return check_number(name, rate, at_least=0, below=1)


def dropout(key: Array | None, rate: float, x: Array) -> Array:
    # (Srivastava et al. 2014); key None: x itself. The rate is taken to 8 bits where it has no more, else to
    # 16, and the scale is that of the rate taken: the mean is exact. So few bits because drawing them is what
    # dropout costs (benchmarks/FINDINGS.md)
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
    # (Wu and He 2018). Sums over the places of a channel come first, since those along the channels are the
    # slow ones on a CPU
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
    # (Ba et al. 2016)
    centred = x - jnp.mean(x, axis=-1, keepdims=True)
    variance = jnp.mean(jnp.square(centred), axis=-1, keepdims=True)
    return centred * lax.rsqrt(variance + epsilon) * norm.weight + norm.bias


def check_model(
    model: Any, shape: tuple[int, ...], outputs: tuple[int, ...], dtype: Any = jnp.float32
) -> None:
    # shapes and types alone are looked at
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
    if not isinstance(values, tuple | list) or len(values) != 2:
        raise InvalidInput(f"{name} = {values!r} must be two rates, such as (0.25, 0.5)")
    return tuple(check_rate(name, rate) for rate in values)


def sizes_of(name: str, values: Any) -> tuple[int, ...]:
    if not isinstance(values, tuple | list):
        raise InvalidInput(f"{name} = {values!r} must be several integers, such as (64, 10)")
    return tuple(check_integer(name, n, 1) for n in values)


# Models as frozen, hashable dataclasses: equal models are equal jit keys. Parameters are plain pytrees.
#
# Parameters take JAX's default float type. `init` draws He weights (zeros for the convex models), zero biases.


class CNNParams(NamedTuple):
    """The four layers of `CNN`."""

    conv1: Affine
    conv2: Affine
    hidden: Affine
    output: Affine


@dataclass(frozen=True)
class Linear:
    """Linear model <w, x>, plus a scalar b with `bias`: x of shape (n, features) to (n,); it starts at zero.

    Attributes:
        features: numbers of an example, at least 1.
        bias: whether there is a b.

    Raises:
        InvalidInput: features below 1.
    """

    features: int
    bias: bool = False

    def __post_init__(self) -> None:
        check_integer("features", self.features, 1)

    def init(self, key: Array) -> Affine:
        return Affine(jnp.zeros(self.features), jnp.zeros(()) if self.bias else None)

    def __call__(self, params: Affine, x: Array) -> Array:
        y = params.weight @ flat(x).T  # weights first: fast for many settings of weights at once
        return y + params.bias if self.bias else y


@dataclass(frozen=True)
class MatrixLinear:
    """Linear model on matrices, <W, X>, plus a scalar b with `bias`: x of shape (n, rows, columns) to (n,).

    It starts at zero.

    Attributes:
        rows: of an example, at least 1.
        columns: of an example, at least 1.
        bias: whether there is a b.

    Raises:
        InvalidInput: rows or columns below 1.
    """

    rows: int
    columns: int
    bias: bool = False

    def __post_init__(self) -> None:
        check_integer("rows", self.rows, 1)
        check_integer("columns", self.columns, 1)

    def init(self, key: Array) -> Affine:
        return Affine(jnp.zeros((self.rows, self.columns)), jnp.zeros(()) if self.bias else None)

    def __call__(self, params: Affine, x: Array) -> Array:
        if x.shape[1:] != params.weight.shape:  # flattening would hide a transposed matrix
            raise ValueError(f"matrices of shape {x.shape[1:]} for a weight of shape {params.weight.shape}")
        y = params.weight.ravel() @ flat(x).T
        return y + params.bias if self.bias else y


@dataclass(frozen=True)
class Softmax:
    """Logits W x + b of logistic regression on classes, or tags; starts at zero. x is flattened to (n, features);
    bytes are taken as x / 255.

    Attributes:
        features: numbers of an example, at least 1.
        classes: at least 2.

    Raises:
        InvalidInput: a number below those.
    """

    features: int
    classes: int

    def __post_init__(self) -> None:
        check_integer("features", self.features, 1)
        check_integer("classes", self.classes, 2)

    def init(self, key: Array) -> Affine:
        return Affine(jnp.zeros((self.classes, self.features)), jnp.zeros(self.classes))

    def __call__(self, params: Affine, x: Array) -> Array:
        return dense(params, flat(as_numbers(x, params.weight)))


@dataclass(frozen=True)
class MLP:
    """Multi-layer perceptron of the given sizes (input, hidden ..., output) with ReLU; x is flattened.

    Bytes are taken as x / 255.

    Attributes:
        sizes: of the input, the hidden layers and the output: two numbers or more, each at least 1.

    Raises:
        InvalidInput: fewer than two sizes, or one that is no integer from 1.
    """

    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", sizes_of("sizes", self.sizes))
        if len(self.sizes) < 2:
            raise InvalidInput(f"sizes = {self.sizes} must have an input and an output: give two or more")

    def init(self, key: Array) -> tuple[Affine, ...]:
        # layer j: weight (sizes[j + 1], sizes[j]), bias (sizes[j + 1],)
        keys = jax.random.split(key, len(self.sizes) - 1)
        shapes = zip(self.sizes[:-1], self.sizes[1:], strict=True)
        return tuple(he_dense(k, *shape) for k, shape in zip(keys, shapes, strict=True))

    def __call__(self, params: tuple[Affine, ...], x: Array) -> Array:
        x = flat(as_numbers(x, params[0].weight))
        for layer in params[:-1]:
            x = jax.nn.relu(dense_on_rows(layer, x))
        return dense_on_rows(params[-1], x)


@dataclass(frozen=True)
class CNN:
    """Convolutional network: two 3x3 convolutions (no padding, ReLU), 2x2 max-pool, a hidden layer (ReLU), logits.

    The network of the FEMNIST experiments of Takakura et al. 2025; with dropout (0.25, 0.5) that of Reddi et al. 2021.
    1,206,590 parameters by default. x has shape (n, height, width, inputs) or (n, height, width), numbers or bytes
    (taken as x / 255).

    Attributes:
        classes: outputs, at least 1.
        height: of an image in pixels, at least 6.
        width: likewise.
        channels: outputs of the two convolutions.
        hidden: units of the dense layer; at least 1.
        inputs: channels of an image: 1 for grey, 3 for colours; at least 1.
        dropout: rates after the pooling and after the hidden layer, each at least 0 and below 1.

    Raises:
        InvalidInput: a number out of its range, or channels or rates that are not two numbers.
    """

    classes: int = 62
    height: int = 28
    width: int = 28
    channels: tuple[int, int] = (32, 64)
    hidden: int = 128
    inputs: int = 1
    dropout: tuple[float, float] = (0.0, 0.0)

    def __post_init__(self) -> None:
        for name in ("classes", "hidden", "inputs"):
            check_integer(name, getattr(self, name), 1)
        for name in ("height", "width"):
            check_integer(name, getattr(self, name), 6)
        object.__setattr__(self, "channels", sizes_of("channels", self.channels))
        if len(self.channels) != 2:
            raise InvalidInput(f"channels = {self.channels} must be two numbers, one for each convolution")
        object.__setattr__(self, "dropout", two_rates("dropout", self.dropout))

    @property
    def asks(self) -> frozenset[str]:
        return frozenset({"key"} if any(self.dropout) else ())

    def init(self, key: Array) -> CNNParams:
        # convolutions (3, 3, in, out), hidden (hidden, pooled), output (classes, hidden)
        k1, k2, k3, k4 = jax.random.split(key, 4)
        first, second = self.channels
        pooled = second * ((self.height - 4) // 2) * ((self.width - 4) // 2)
        return CNNParams(
            he(k1, (3, 3, self.inputs, first), 9 * self.inputs),
            he(k2, (3, 3, first, second), 9 * first),
            he_dense(k3, pooled, self.hidden),
            he_dense(k4, self.hidden, self.classes),
        )

    def __call__(self, params: CNNParams, x: Array, key: Array | None = None) -> Array:
        after_pooling, after_hidden = (None, None) if key is None else jax.random.split(key)
        x = as_numbers(x, params.output.weight)
        x = jnp.reshape(x, (x.shape[0], self.height, self.width, self.inputs))
        x = jax.nn.relu(conv(x, params.conv1.weight) + params.conv1.bias)
        x = conv(x, params.conv2.weight) + params.conv2.bias
        x = jax.nn.relu(max_pool2x2(x))  # ReLU and maximum commute
        x = dropout(after_pooling, self.dropout[0], flat(x))
        x = dropout(after_hidden, self.dropout[1], jax.nn.relu(dense(params.hidden, x)))
        return dense(params.output, x)


@dataclass(frozen=True)
class SparseLinear:
    """W^T x + b of sparse x, `fs.SparseRows`, to (n, outputs): of tags with `BinaryCrossEntropy`, of classes with
    `CrossEntropy`; starts at zero.

    W is (features, outputs), the transpose of `Softmax`'s, so that what belongs to a word lies in one place. An index
    outside makes its example's outputs NaN.

    Attributes:
        features: columns of x, at least 1.
        outputs: at least 1.

    Raises:
        InvalidInput: a number below those.
    """

    features: int
    outputs: int

    def __post_init__(self) -> None:
        check_integer("features", self.features, 1)
        check_integer("outputs", self.outputs, 1)

    def init(self, key: Array) -> Affine:
        return Affine(jnp.zeros((self.features, self.outputs)), jnp.zeros(self.outputs))

    def __call__(self, params: Affine, x: SparseRows) -> Array:
        own = params.weight.at[x.indices].get(mode="fill", fill_value=jnp.nan, wrap_negative_indices=False)
        # a sum, not a matrix product: it is fused with the reading, whose (n, entries, outputs) are never written
        return jnp.sum(x.values[..., None] * own, axis=1) + params.bias


def dense_rows(rows: SparseRows, columns: int, dtype: jnp.dtype) -> Array:
    # shape (n, columns); a row with an index outside is NaN
    count = rows.indices.shape[0]
    outside = jnp.any((rows.indices < 0) | (rows.indices >= columns), axis=1, keepdims=True)
    dense = jnp.zeros((count, columns), dtype)
    dense = dense.at[jnp.arange(count)[:, None], rows.indices].add(rows.values.astype(dtype))
    return jnp.where(outside, jnp.nan, dense)
