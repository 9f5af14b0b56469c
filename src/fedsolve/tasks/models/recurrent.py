"""Recurrent models of sequences (LSTM, GRU), and the dense autoencoder of Reddi et al. 2021."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fedsolve.core.errors import InvalidInput, check_integer
from fedsolve.core.xla.recurrence import GRU_CELL, LSTM_CELL, own_part, recur
from fedsolve.tasks.models.models import Affine, as_numbers, dense, dense_of, flat

_GLOROT, _ORTHOGONAL = jax.nn.initializers.glorot_uniform(), jax.nn.initializers.orthogonal()


class RecurrentLayer(NamedTuple):
    """One layer over time; all gates' weights lie in one matrix."""

    input: Affine  # weights of the inputs (gates hidden, in) and a bias (gates hidden,)
    # weights of the outputs of the time before (gates hidden, hidden), and the bias of the candidate
    # (hidden,), None for an LSTM
    recurrent: Affine


class RecurrentParams(NamedTuple):
    """Parameters of `LSTM` and `GRU`."""

    embedding: Any  # a row for each token, (vocabulary, embedding)
    layers: tuple[RecurrentLayer, ...]  # a tuple of `RecurrentLayer`
    projection: Affine | None  # a dense layer before the output, None if there is none
    output: Affine  # a dense layer to the logits


@dataclass(frozen=True)
class _Recurrent:
    vocabulary: int
    embedding: int = 8
    hidden: int = 256
    layers: int = 2
    projection: int = 0

    _gates: ClassVar[int]

    def __post_init__(self) -> None:
        for name in ("vocabulary", "embedding", "hidden", "layers"):
            check_integer(name, getattr(self, name), 1)
        check_integer("projection", self.projection, 0)

    def _layer(self, key: Array, fan_in: int) -> RecurrentLayer:
        k1, k2 = jax.random.split(key)
        width = self._gates * self.hidden
        recurrent = _ORTHOGONAL(k2, (self.hidden, width)).T
        return RecurrentLayer(dense_of(_GLOROT, k1, fan_in, width), Affine(recurrent, self._recurrent_bias()))

    def _recurrent_bias(self) -> Array | None:
        return None

    def _over_time(self, layer: RecurrentLayer, x: Array) -> Array:
        # (time, n, in) -> (time, n, hidden); the inputs' products of all times are one
        raise NotImplementedError

    def init(self, key: Array) -> RecurrentParams:
        # glorot's uniform input weights, orthogonal recurrent weights, embeddings uniform in +-0.05, zero
        # biases
        k1, k2, k3, *keys = jax.random.split(key, 3 + self.layers)
        sizes = (self.embedding, *[self.hidden] * (self.layers - 1))
        last = self.projection or self.hidden
        return RecurrentParams(
            jax.random.uniform(k1, (self.vocabulary, self.embedding), minval=-0.05, maxval=0.05),
            tuple(self._layer(k, n) for k, n in zip(keys, sizes, strict=True)),
            dense_of(_GLOROT, k2, self.hidden, self.projection) if self.projection else None,
            dense_of(_GLOROT, k3, last, self.vocabulary),
        )

    def __call__(self, params: RecurrentParams, x: Int[Array, "n time"]) -> Float[Array, "n time vocabulary"]:
        check_tokens(x)
        y = params.embedding[x.T]
        for layer in params.layers:
            y = self._over_time(layer, y)
        if params.projection is not None:
            y = dense(params.projection, y)
        return jnp.swapaxes(dense(params.output, y), 0, 1)


@dataclass(frozen=True)
class LSTM(_Recurrent):
    """LSTM language model: embedding, LSTM layers (Hochreiter and Schmidhuber 1997), logits of the next token.

    With the defaults and a vocabulary of 90 the Shakespeare model of Reddi et al. 2021 (820,522 parameters); with a
    vocabulary of 10,004, embedding 96, hidden 670, one layer and projection 96 their next-word model (4,050,748).
    x has shape (n, time); what follows a position cannot reach it, so sequences padded at their end need a mask in
    the loss alone.

    Attributes:
        vocabulary: tokens, numbered from 0.
        embedding: numbers of a token, at least 1.
        hidden: units of a layer, at least 1.
        layers: how many, at least 1.
        projection: units of a linear layer before the logits; 0 for none; at least 0.

    Raises:
        InvalidInput: a number out of its range; when it is used, x without a position.
    """

    _gates: ClassVar[int] = 4

    def _layer(self, key: Array, fan_in: int) -> RecurrentLayer:
        # bias 1 of the forget gates: they remember at first (Jozefowicz et al. 2015)
        own, recurrent = super()._layer(key, fan_in)
        bias = own.bias.at[self.hidden : 2 * self.hidden].set(1)
        return RecurrentLayer(Affine(own.weight, bias), recurrent)

    def _over_time(self, layer: RecurrentLayer, x: Array) -> Array:
        zero = jnp.zeros((x.shape[1], self.hidden), x.dtype)
        y, _ = recur(LSTM_CELL, layer.recurrent.weight, None, own_part(*layer.input, x), (zero, zero))
        return y


@dataclass(frozen=True)
class GRU(_Recurrent):
    """GRU language model: embedding, gated recurrent units (Cho et al. 2014, reset after the product), logits.

    x has shape (n, time); see `LSTM`.

    Attributes:
        vocabulary: tokens, numbered from 0.
        embedding: numbers of a token, at least 1.
        hidden: units of a layer, at least 1.
        layers: how many, at least 1.
        projection: units of a linear layer before the logits; 0 for none; at least 0.

    Raises:
        InvalidInput: a number out of its range; when it is used, x without a position.
    """

    _gates: ClassVar[int] = 3

    def _recurrent_bias(self) -> Array:
        return jnp.zeros(self.hidden)

    def _over_time(self, layer: RecurrentLayer, x: Array) -> Array:
        zero = jnp.zeros((x.shape[1], self.hidden), x.dtype)
        weight, bias = layer.recurrent
        # the other gates' lie in the own part
        bias = jnp.concatenate([jnp.zeros(2 * self.hidden, bias.dtype), bias])
        y, _ = recur(GRU_CELL, weight, bias, own_part(*layer.input, x), (zero,))
        return y


def check_tokens(x: Array) -> None:
    if x.ndim != 2 or not x.shape[1] or not jnp.issubdtype(x.dtype, jnp.integer):
        raise InvalidInput(
            f"sequences have shape {x.shape} and type {x.dtype}: give integers (n, time) with time at least 1, "
            "shorter ones padded at their end"
        )


# The dense autoencoder of Reddi et al. 2021.


@dataclass(frozen=True)
class Autoencoder:
    """Dense autoencoder: sigmoid layers down to a linear code, and the mirrored layers back to values in [0, 1].

    The network of the EMNIST autoencoder of Reddi et al. 2021; 2,837,314 parameters by default. x is flattened, bytes
    are taken as x / 255; the reconstructions have its shape.

    Attributes:
        sizes: of the input, the hidden layers and the code: two numbers or more, each at least 1.

    Raises:
        InvalidInput: fewer than two sizes, or one that is no integer from 1.
    """

    sizes: tuple[int, ...] = (784, 1000, 500, 250, 30)

    def __post_init__(self) -> None:
        if not isinstance(self.sizes, tuple | list) or len(self.sizes) < 2:
            raise InvalidInput(
                f"sizes = {self.sizes!r} must have at least an input and a code size, such as (784, 30)"
            )
        object.__setattr__(self, "sizes", tuple(check_integer("sizes", n, 1) for n in self.sizes))

    def init(self, key: Array) -> tuple[Affine, ...]:
        # Glorot normal weights (out, in), zero biases
        sizes = (*self.sizes, *self.sizes[-2::-1])
        keys = jax.random.split(key, len(sizes) - 1)
        glorot = jax.nn.initializers.glorot_normal()
        return tuple(dense_of(glorot, k, *pair) for k, pair in zip(keys, pairwise(sizes), strict=True))

    def __call__(self, params: tuple[Affine, ...], x: Array) -> Array:
        code = len(self.sizes) - 2
        y = flat(as_numbers(x, params[0].weight))
        for i, layer in enumerate(params):
            y = dense(layer, y)
            y = y if i == code else jax.nn.sigmoid(y)
        return jnp.reshape(y, x.shape)
