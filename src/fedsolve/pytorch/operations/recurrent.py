"""Recurrent layers: LSTM, GRU and Elman's, any number of layers, in one or both directions.

The products with the inputs are one matrix product for all steps; the scan over time keeps those with the state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from fedsolve.pytorch.operations.creation import dropout
from fedsolve.pytorch.translation.registry import operation

Cell = Callable[[Any, Array, Sequence[Array]], tuple[Any, Array]]
"""(state, products with the input, recurrent weights) -> new state, output."""


def _recurrent(
    cell: Cell, states_of: Callable[[Any], list[Any]], stacked: Callable[[list[Any]], tuple[Array, ...]]
) -> Callable[..., tuple[Array, ...]]:
    """An operation of a cell: the outputs, then the last states of every layer and direction.

    Args:
        cell: a step.
        states_of: the operation's first states -> those of each layer and direction.
        stacked: the last states -> as the operation returns them.
    """

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
        return jnp.swapaxes(x, 0, 1) if batch_first else x, *stacked(last)

    return layer


def _lstm_cell(state: Any, entered: Array, weights: Sequence[Array]) -> tuple[Any, Array]:
    h, c = state
    i, f, g, o = jnp.split(entered + h @ weights[0], 4, -1)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    h = jax.nn.sigmoid(o) * jnp.tanh(c)
    if len(weights) > 2:  # projected, where the outputs are fewer than the cells
        h = h @ weights[2]
    return (h, c), h


def _gru_cell(state: Any, entered: Array, weights: Sequence[Array]) -> tuple[Any, Array]:
    recurrent, bias = weights
    r, z, n = jnp.split(entered, 3, -1)
    own_r, own_z, own_n = jnp.split(state @ recurrent + bias, 3, -1)
    r, z = jax.nn.sigmoid(r + own_r), jax.nn.sigmoid(z + own_z)
    n = jnp.tanh(n + r * own_n)
    h = n + z * (state - n)
    return h, h


def _elman_cell(activation: Callable[[Array], Array]) -> Cell:
    def cell(state: Any, entered: Array, weights: Sequence[Array]) -> tuple[Any, Array]:
        h = activation(entered + state @ weights[0])
        return h, h

    return cell


def _outputs_and_cells(last: list[Any]) -> tuple[Array, ...]:
    return jnp.stack([h for h, _ in last]), jnp.stack([c for _, c in last])


def _outputs(last: list[Any]) -> tuple[Array, ...]:
    return (jnp.stack(last),)


operation("aten.lstm.input", random=True)(
    _recurrent(_lstm_cell, lambda hx: list(zip(*hx, strict=True)), _outputs_and_cells)
)
for _name, _cell in {
    "gru": _gru_cell,
    "rnn_tanh": _elman_cell(jnp.tanh),
    "rnn_relu": _elman_cell(jax.nn.relu),
}.items():
    operation(f"aten.{_name}.input", random=True)(_recurrent(_cell, list, _outputs))


def _direction(
    cell: Cell, x: Array, state: Any, params: Sequence[Array], has_biases: bool, backwards: bool
) -> tuple[Array, Any]:
    """One layer over time, the first axis of x."""
    into, recurrent, *rest = params
    bias_in, bias, *projection = (
        rest if has_biases else (jnp.zeros((), x.dtype), jnp.zeros((), x.dtype), *rest)
    )
    if cell is not _gru_cell:  # whose gate multiplies the state's bias
        bias_in = bias_in + bias
    entered = x @ into.T + bias_in
    weights = [recurrent.T, bias, *(p.T for p in projection)]
    end, y = jax.lax.scan(lambda s, e: cell(s, e, weights), state, entered, reverse=backwards)
    return y, end
