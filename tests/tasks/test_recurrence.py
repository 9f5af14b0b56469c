"""The gradient that recurrences have of their own equals the one JAX derives from their scan."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from fedsolve.core.xla.recurrence import GRU_CELL, LSTM_CELL, RELU_CELL, TANH_CELL, Cell, recur


def scanned(cell: Cell, weight: Any, bias: Any, inputs: Any, start: Any) -> Any:
    def step(state: Any, own: Any) -> Any:
        product = state[0] @ weight.T
        state, _ = cell.forward(state, own, product if bias is None else product + bias)
        return state, state[0]

    last, outputs = lax.scan(step, start, inputs)
    return outputs, last


@pytest.mark.gate("gru", "tanh")
@pytest.mark.parametrize(
    ("cell", "gates", "states", "with_bias", "hidden"),
    [
        (LSTM_CELL, 4, 2, False, 4),
        (GRU_CELL, 3, 1, True, 130),  # whose gates are turned
        (TANH_CELL, 1, 1, True, 4),
        (RELU_CELL, 1, 1, False, 4),
    ],
    ids=["lstm", "gru", "tanh", "relu"],
)
def test_gradients_equal_those_of_the_scan(
    cell: Cell, gates: int, states: int, with_bias: bool, hidden: int
) -> None:
    """Of weights, bias, inputs and first state, through masked outputs and the last state, for clients side by side."""
    clients, time, n = 2, 5, 3
    with jax.enable_x64(True):
        rng = np.random.default_rng(0)

        def draw(*shape: int) -> Any:
            return jnp.asarray(rng.normal(size=(clients, *shape)))

        of_outputs = draw(time, n, hidden) * (np.arange(time)[:, None, None] < np.array([5, 2, 0])[:, None])
        of_last = tuple(draw(n, hidden) for _ in range(states))
        given = (
            draw(gates * hidden, hidden),
            draw(gates * hidden) if with_bias else None,
            draw(time, n, gates * hidden),
            tuple(draw(n, hidden) for _ in range(states)),
        )

        def gradients(form: Any) -> Any:
            def value(given: Any, of_outputs: Any, of_last: Any) -> Any:
                outputs, last = form(cell, *given)
                return jnp.vdot(of_outputs, outputs) + sum(map(jnp.vdot, of_last, last))

            return jax.jit(jax.vmap(jax.value_and_grad(value)))(given, of_outputs, of_last)

        own, plain = gradients(recur), gradients(scanned)
        assert jax.tree.structure(own) == jax.tree.structure(plain)
        for a, b in zip(jax.tree.leaves(own), jax.tree.leaves(plain), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)
