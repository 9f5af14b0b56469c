"""Recurrent layers: LSTM, GRU and Elman's, any number of layers, in one or both directions.

The products with the inputs are one matrix product for all steps; the scan over time keeps those with the state. Its
gradient is that of `fedsolve.core.xla.recurrence`, unless an LSTM's outputs are projected.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from fedsolve.core.xla.recurrence import GRU_CELL, LSTM_CELL, RELU_CELL, TANH_CELL, Cell, own_part, recur
from fedsolve.pytorch.operations.creation import dropout
from fedsolve.pytorch.translation.registry import operation


def _recurrent(
    cell: Cell, states_of: Callable[[Any], list[Any]], stacked: Callable[[list[Any]], tuple[Array, ...]]
) -> Callable[..., tuple[Array, ...]]:
    """An operation of a cell: the outputs, then the last states of every layer and direction.

    Args:
        cell: what the gates make of a state.
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


def _outputs_and_cells(last: list[Any]) -> tuple[Array, ...]:
    return jnp.stack([h for h, _ in last]), jnp.stack([c for _, c in last])


def _outputs(last: list[Any]) -> tuple[Array, ...]:
    return (jnp.stack([h for (h,) in last]),)


operation("aten.lstm.input", random=True)(
    _recurrent(LSTM_CELL, lambda hx: list(zip(*hx, strict=True)), _outputs_and_cells)
)
for _name, _cell in {"gru": GRU_CELL, "rnn_tanh": TANH_CELL, "rnn_relu": RELU_CELL}.items():
    operation(f"aten.{_name}.input", random=True)(_recurrent(_cell, lambda hx: [(h,) for h in hx], _outputs))


def _direction(
    cell: Cell, x: Array, state: Any, params: Sequence[Array], has_biases: bool, backwards: bool
) -> tuple[Array, Any]:
    """One layer over time, the first axis of x."""
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
    """An LSTM whose outputs are fewer than its cells."""

    def step(state: Any, own: Array) -> tuple[Any, Array]:
        (h, c), _ = LSTM_CELL.forward(state, own, state[0] @ recurrent.T)
        h = h @ projection.T
        return (h, c), h

    end, y = jax.lax.scan(step, state, own)
    return y, end
