"""Products of the matrices of clients side by side over few examples, as sums of outer products.

XLA's library computes a client's gradient of weights, (examples, outputs)' (examples, inputs), and writes it; the step
reads it again. Few outer products are added in the loop that takes the step: with ten examples the rounds of twenty
clients' MLPs of 64 x 64 weights take two thirds of the time on a CPU (JAX 0.10.2, benchmarks/FINDINGS.md).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, jaxpr_as_fun
from jaxtyping import Array, Float

_MOST = 16
"""Most terms of a sum: with 20 the loop takes as long as the product at 784 x 200 weights, with 32 longer."""
_EACH_CLIENT = (((1,), (1,)), ((0,), (0,)))
"""Products over the second axis, of which rows lie side by side. The library is fast along the last."""


def with_outer_products(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, with products of (clients, k, m) and (clients, k, n) over k <= 16 <= m, n computed as sums.

    Those in loops and calls inside too. On a CPU; elsewhere it is the function itself. Meant for use inside a trace,
    and for what is not differentiated again: `function` is traced anew at each call.
    """
    if jax.default_backend() != "cpu":
        return function

    def summed(*arguments: Any) -> Any:
        closed, shape = jax.make_jaxpr(function, return_shape=True)(*arguments)
        results = jaxpr_as_fun(_rewritten(closed))(*jax.tree.leaves(arguments))
        return jax.tree.unflatten(jax.tree.structure(shape), results)

    return summed


def _rewritten(value: Any) -> Any:
    """A program, or what else an operation has as a parameter; itself where nothing in it changes."""
    if isinstance(value, ClosedJaxpr):
        inside = _rewritten(value.jaxpr)
        return value if inside is value.jaxpr else ClosedJaxpr(inside, value.consts)
    if isinstance(value, Jaxpr):
        equations = [_changed(equation) for equation in value.eqns]
        same = all(new is old for new, old in zip(equations, value.eqns, strict=True))
        return value if same else value.replace(eqns=equations)
    if type(value) in (tuple, list):
        parts = type(value)(map(_rewritten, value))
        return value if all(new is old for new, old in zip(parts, value, strict=True)) else parts
    return value


def _changed(equation: JaxprEqn) -> JaxprEqn:
    if _is_of_few(equation):
        factors: list[Any] = [v.aval for v in equation.invars]
        (call,) = jax.make_jaxpr(_outer_products)(
            *(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in factors)
        ).eqns
        return call.replace(invars=equation.invars, outvars=equation.outvars)
    params = {name: _rewritten(value) for name, value in equation.params.items()}
    same = all(params[name] is value for name, value in equation.params.items())
    return equation if same else equation.replace(params=params)


def _is_of_few(equation: JaxprEqn) -> bool:
    if equation.primitive.name != "dot_general" or equation.params["dimension_numbers"] != _EACH_CLIENT:
        return False
    types: list[Any] = [v.aval for v in (*equation.invars, *equation.outvars)]
    x, y, result = types
    if x.ndim != 3 or y.ndim != 3 or {x.dtype, y.dtype} != {result.dtype}:
        return False
    return 0 < x.shape[1] <= min(_MOST, x.shape[2], y.shape[2])


@jax.jit
def _outer_products(
    x: Float[Array, "clients k m"], y: Float[Array, "clients k n"]
) -> Float[Array, "clients m n"]:
    first, *others = (x[:, i, :, None] * y[:, i, None, :] for i in range(x.shape[1]))
    return sum(others, first)
