"""A recurrence over time whose weights' gradient is one matrix product, and the cells of LSTM and GRU.

Left to automatic differentiation, a scan adds each time's gradient of the recurrent weights to an array of their size:
that array is read and written once a time. Here the backward scan keeps the gradients of the gates, and one product
over all times and examples follows. The weights of all gates lie in one matrix.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

Cell = Callable[[Any, Any, Array, Array], Any]
"""(small parameters, state, own and recurrent part of the gates) -> next state; state[0] is the output."""


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def recur(
    cell: Cell,
    weight: Float[Array, "gates hidden"],
    small: Any,
    inputs: Float[Array, "time n gates"],
    start: Any,
) -> Float[Array, "time n hidden"]:
    """The outputs h_t = state_t[0] of state_t = cell(small, state_(t-1), inputs_t, h_(t-1) weight').

    Args:
        cell: what the gates make of a state.
        weight: recurrent weights of all gates.
        small: whatever else of the cell is trained (vectors).
        inputs: each time's own part of the gates.
        start: the first state, a tuple of arrays (n, hidden).
    """
    return _forward(cell, weight, small, inputs, start)[0]


def _forward(cell: Cell, weight: Array, small: Any, inputs: Array, start: Any) -> tuple[Array, Any]:
    turned = weight.T  # once, and not at every time

    def step(state: Any, own: Array) -> tuple[Any, Any]:
        recurrent = state[0] @ turned
        return cell(small, state, own, recurrent), (state, recurrent)

    last, (before, recurrent) = lax.scan(step, start, inputs)
    outputs = jnp.concatenate([before[0][1:], last[0][None]])
    return outputs, (weight, small, inputs, before, recurrent)


def _backward(cell: Cell, kept: Any, outputs: Array) -> Any:
    weight, small, inputs, before, products = kept

    def step(carry: tuple[Any, Any], at: Any) -> tuple[tuple[Any, Any], tuple[Array, Array]]:
        gradient, total = carry
        output, own, state, product = at
        gradient = (gradient[0] + output, *gradient[1:])
        _, pull = jax.vjp(cell, small, state, own, product)
        of_small, of_state, of_own, of_recurrent = pull(gradient)
        of_state = (of_state[0] + of_recurrent @ weight, *of_state[1:])
        return (of_state, jax.tree.map(jnp.add, total, of_small)), (of_own, of_recurrent)

    zero = jax.tree.map(lambda a: jnp.zeros_like(a[0]), before)
    none = jax.tree.map(jnp.zeros_like, small)
    (of_start, of_small), (of_inputs, of_recurrent) = lax.scan(
        step, (zero, none), (outputs, inputs, before, products), reverse=True
    )
    return _of_weight(of_recurrent, before[0]), of_small, of_inputs, of_start


recur.defvjp(_forward, _backward)


@jax.custom_vjp
def own_part(weight: Array, bias: Array, x: Array) -> Array:
    """Each time's own part of the gates: x (time, n, in) with weight (gates, in) and bias (gates,)."""
    return x @ weight.T + bias


def _own_part_backward(kept: tuple[Array, Array], gates: Array) -> tuple[Array, Array, Array]:
    weight, x = kept
    return _of_weight(gates, x), jnp.sum(gates, (0, 1)), gates @ weight


own_part.defvjp(lambda weight, bias, x: (own_part(weight, bias, x), (weight, x)), _own_part_backward)


def _of_weight(gates: Array, x: Array) -> Array:
    """gates' x over all times and examples, (gates, in).

    Computed as x' gates and then turned: XLA on a CPU would turn the gates first, which are many more.
    """
    turned = x.reshape(-1, x.shape[-1]).T @ gates.reshape(-1, gates.shape[-1])
    return lax.optimization_barrier(turned).T


def lstm_cell(
    small: tuple[()], state: tuple[Array, Array], own: Array, recurrent: Array
) -> tuple[Array, Array]:
    """Hochreiter and Schmidhuber 1997 with forget gates; gates in the order input, forget, candidate, output."""
    entry, forget, candidate, out = jnp.split(own + recurrent, 4, axis=-1)
    memory = jax.nn.sigmoid(forget) * state[1] + jax.nn.sigmoid(entry) * jnp.tanh(candidate)
    return jax.nn.sigmoid(out) * jnp.tanh(memory), memory


def gru_cell(bias: Array, state: tuple[Array], own: Array, recurrent: Array) -> tuple[Array]:
    """Cho et al. 2014, the reset after the product; gates in the order reset, update, candidate.

    `bias` is of the candidate's recurrent part; the other gates have theirs in `own`.
    """
    own_parts, parts = jnp.split(own, 3, axis=-1), jnp.split(recurrent, 3, axis=-1)
    reset = jax.nn.sigmoid(own_parts[0] + parts[0])
    update = jax.nn.sigmoid(own_parts[1] + parts[1])
    candidate = jnp.tanh(own_parts[2] + reset * (parts[2] + bias))
    return ((1 - update) * candidate + update * state[0],)
