"""A recurrence over time with a gradient of its own, and the cells of LSTM, GRU and Elman's network.

Left to automatic differentiation, a scan adds each time's gradient of the recurrent weights to an array of their size:
that array is read and written once a time. Here the backward scan keeps the gradients of the gates, and one product
over all times and examples follows. The forward scan keeps the activated gates, so that no activation is computed
twice. The weights of all gates lie in one matrix.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

_WIDE = 128  # inputs from which their gates are turned, not they (benchmarks/FINDINGS.md)


class Cell(NamedTuple):
    """What the gates make of a state, a tuple whose first array is the output."""

    # (state, own and recurrent part of the gates) -> next state, what `backward` needs
    forward: Callable[[Any, Array, Array], tuple[Any, Any]]
    # (state, what forward kept, gradient of the next state) -> gradient of the state but for what the recurrent product
    # passes on, gradient of the gates' own part
    backward: Callable[[Any, Any, Any], tuple[Any, Array]]
    # (what forward kept, gradient of the own part) -> gradient of the recurrent part
    recurrent: Callable[[Any, Array], Array]


def recur(
    cell: Cell,
    weight: Float[Array, "gates hidden"],
    bias: Float[Array, " gates"] | None,
    inputs: Float[Array, "time n gates"],
    start: Any,
) -> tuple[Float[Array, "time n hidden"], Any]:
    """Outputs h_t = state_t[0] of state_t = cell(state_(t-1), inputs_t, h_(t-1) weight' + bias), and the last state."""
    # bias: of the recurrent part, None for none; start: the first state, a tuple of arrays (n, hidden)
    return _recur(cell, weight, bias, inputs, start)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _recur(cell: Cell, weight: Array, bias: Array | None, inputs: Array, start: Any) -> Any:
    return _forward(cell, weight, bias, inputs, start)[0]


def _forward(cell: Cell, weight: Array, bias: Array | None, inputs: Array, start: Any) -> tuple[Any, Any]:
    turned = weight.T  # once, and not at every time

    def step(state: Any, own: Array) -> tuple[Any, Any]:
        product = state[0] @ turned
        following, gates = cell.forward(state, own, product if bias is None else product + bias)
        return following, (state, gates)

    last, (before, gates) = lax.scan(step, start, inputs)
    outputs = jnp.concatenate([before[0][1:], last[0][None]])
    return (outputs, last), (weight, bias, before, gates)


def _backward(cell: Cell, kept: Any, gradients: Any) -> Any:
    weight, bias, before, gates = kept

    def step(gradient: Any, at: Any) -> tuple[Any, Array]:
        output, state, active = at
        of_state, of_own = cell.backward(state, active, (gradient[0] + output, *gradient[1:]))
        return (of_state[0] + cell.recurrent(active, of_own) @ weight, *of_state[1:]), of_own

    outputs, last = gradients
    of_start, of_inputs = lax.scan(step, last, (outputs, before, gates), reverse=True)
    of_recurrent = cell.recurrent(gates, of_inputs)
    of_bias = None if bias is None else jnp.sum(of_recurrent, (0, 1))
    return _of_weight(of_recurrent, before[0]), of_bias, of_inputs, of_start


_recur.defvjp(_forward, _backward)


@jax.custom_vjp
def own_part(weight: Array, bias: Array, x: Array) -> Array:
    """Each time's own part of the gates: x (time, n, in) with weight (gates, in) and bias (gates,)."""
    return x @ weight.T + bias


def _own_part_backward(kept: tuple[Array, Array], gates: Array) -> tuple[Array, Array, Array]:
    weight, x = kept
    return _of_weight(gates, x), jnp.sum(gates, (0, 1)), gates @ weight


own_part.defvjp(lambda weight, bias, x: (own_part(weight, bias, x), (weight, x)), _own_part_backward)


def _of_weight(gates: Array, x: Array) -> Array:
    # gates' x over all times and examples, (gates, in)
    # XLA on a CPU would fold the transposition into the product, which then takes up to twice as long: what is
    # turned is turned before. Of few inputs that is x, and the product x' gates.
    gates, x = gates.reshape(-1, gates.shape[-1]), x.reshape(-1, x.shape[-1])
    if x.shape[-1] >= _WIDE:
        return lax.optimization_barrier(gates.T) @ x
    return lax.optimization_barrier(lax.optimization_barrier(x.T) @ gates).T


def _lstm_forward(state: Any, own: Array, recurrent: Array) -> tuple[Any, Any]:
    entry, forget, candidate, out = jnp.split(own + recurrent, 4, axis=-1)
    entry, forget, out = jax.nn.sigmoid(entry), jax.nn.sigmoid(forget), jax.nn.sigmoid(out)
    candidate = jnp.tanh(candidate)
    memory = forget * state[1] + entry * candidate
    seen = jnp.tanh(memory)
    return (out * seen, memory), (entry, forget, candidate, out, seen)


def _lstm_backward(state: Any, gates: Any, gradient: Any) -> tuple[Any, Array]:
    entry, forget, candidate, out, seen = gates
    of_memory = gradient[1] + gradient[0] * out * (1 - seen * seen)
    of_own = (
        of_memory * candidate * entry * (1 - entry),
        of_memory * state[1] * forget * (1 - forget),
        of_memory * entry * (1 - candidate * candidate),
        gradient[0] * seen * out * (1 - out),
    )
    return (jnp.zeros_like(seen), of_memory * forget), jnp.concatenate(of_own, -1)


def _gru_forward(state: Any, own: Array, recurrent: Array) -> tuple[Any, Any]:
    own_parts, parts = jnp.split(own, 3, axis=-1), jnp.split(recurrent, 3, axis=-1)
    reset = jax.nn.sigmoid(own_parts[0] + parts[0])
    update = jax.nn.sigmoid(own_parts[1] + parts[1])
    candidate = jnp.tanh(own_parts[2] + reset * parts[2])
    return ((1 - update) * candidate + update * state[0],), (reset, update, candidate, parts[2])


def _gru_backward(state: Any, gates: Any, gradient: Any) -> tuple[Any, Array]:
    reset, update, candidate, part = gates
    of_candidate = gradient[0] * (1 - update) * (1 - candidate * candidate)
    of_own = (
        of_candidate * part * reset * (1 - reset),
        gradient[0] * (state[0] - candidate) * update * (1 - update),
        of_candidate,
    )
    return (gradient[0] * update,), jnp.concatenate(of_own, -1)


def _gru_recurrent(gates: Any, of_own: Array) -> Array:
    of_reset, of_update, of_candidate = jnp.split(of_own, 3, axis=-1)
    return jnp.concatenate([of_reset, of_update, of_candidate * gates[0]], -1)


def _elman_cell(activation: Callable[[Array], Array], slope: Callable[[Array], Array]) -> Cell:
    # the cell of an activation, whose `slope` is a function of what it gives
    def forward(state: Any, own: Array, recurrent: Array) -> tuple[Any, Array]:
        h = activation(own + recurrent)
        return (h,), h

    def backward(state: Any, h: Array, gradient: Any) -> tuple[Any, Array]:
        return (jnp.zeros_like(h),), gradient[0] * slope(h)

    return Cell(forward, backward, lambda _, of_own: of_own)


LSTM_CELL = Cell(_lstm_forward, _lstm_backward, lambda _, of_own: of_own)
"""Hochreiter and Schmidhuber 1997 with forget gates; gates in the order input, forget, candidate, output."""

GRU_CELL = Cell(_gru_forward, _gru_backward, _gru_recurrent)
"""Cho et al. 2014, the reset after the product; gates in the order reset, update, candidate."""

TANH_CELL = _elman_cell(jnp.tanh, lambda h: 1 - h * h)
RELU_CELL = _elman_cell(jax.nn.relu, lambda h: (h > 0).astype(h.dtype))
"""Elman 1990, one gate, with either activation."""
