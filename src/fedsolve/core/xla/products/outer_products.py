"""Products of the matrices of clients side by side over few examples, as sums of outer products.

XLA's library computes a client's gradient of weights, (examples, outputs)' (examples, inputs), and writes it; the step
reads it again. Few outer products are added in the loop that takes the step: with ten examples the rounds of twenty
clients' MLPs of 64 x 64 weights take two thirds of the time on a CPU (JAX 0.10.2, benchmarks/FINDINGS.md).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, jaxpr_as_fun
from jaxtyping import Array, Float

_MOST = 16
"""Most terms of a sum: with 20 the loop takes as long as the product at 784 x 200 weights, with 32 longer."""


def with_outer_products(function: Callable[..., Any], common: int = 1) -> Callable[..., Any]:
    """`function`, with products of (clients, k, m) and (clients, k, n) over k <= 16, at most m and n, computed as sums.

    Those in loops and calls inside too. On a CPU; elsewhere it is the function itself. Meant for use inside a trace,
    and for what is not differentiated again: `function` is traced anew at each call.

    Args:
        function: of arrays.
        common: the most leading axes of both factors: 1 for clients, 2 for clients and trials. Products with more, such
            as those of attention's heads, stay. The first factor may have further axes, such as trials that meet the
            same examples.
    """
    if jax.default_backend() != "cpu":
        return function

    def summed(*arguments: Any) -> Any:
        closed, shape = jax.make_jaxpr(function, return_shape=True)(*arguments)
        results = jaxpr_as_fun(_rewritten(closed, common))(*jax.tree.leaves(arguments))
        return jax.tree.unflatten(jax.tree.structure(shape), results)

    return summed


def _rewritten(value: Any, common: int) -> Any:
    """A program, or what else an operation has as a parameter; itself where nothing in it changes."""
    if isinstance(value, Jaxpr):  # first: JAX 0.12 has one class for both
        equations = [_changed(equation, common) for equation in value.eqns]
        same = all(new is old for new, old in zip(equations, value.eqns, strict=True))
        return value if same else value.replace(eqns=equations)
    if isinstance(value, ClosedJaxpr):
        inside = _rewritten(value.jaxpr, common)
        return value if inside is value.jaxpr else ClosedJaxpr(inside, value.consts)
    if type(value) in (tuple, list):
        parts = type(value)(_rewritten(part, common) for part in value)
        return value if all(new is old for new, old in zip(parts, value, strict=True)) else parts
    return value


def _changed(equation: JaxprEqn, common: int) -> JaxprEqn:
    if equation.primitive.name == "dot_general" and _is_of_few(equation, common):
        factors: list[Any] = [v.aval for v in equation.invars]
        (call,) = jax.make_jaxpr(_outer_products)(
            *(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in factors)
        ).eqns
        return call.replace(invars=equation.invars, outvars=equation.outvars)
    params = {name: _rewritten(value, common) for name, value in equation.params.items()}
    same = all(params[name] is value for name, value in equation.params.items())
    return equation if same else equation.replace(params=params)


def _is_of_few(equation: JaxprEqn, common: int) -> bool:
    """Whether it is over the last axis but one of both factors: there rows lie side by side.

    Along the last axis the library is fast.
    """
    types: list[Any] = [v.aval for v in (*equation.invars, *equation.outvars)]
    x, y, result = types
    leading = tuple(range(y.ndim - 2))
    if not 1 <= len(leading) <= common or {x.dtype, y.dtype} != {result.dtype}:
        return False
    if equation.params["dimension_numbers"] != (((x.ndim - 2,), (y.ndim - 2,)), (leading, leading)):
        return False
    return 0 < y.shape[-2] <= min(_MOST, x.shape[-1], y.shape[-1])


@jax.jit
def _outer_products(
    x: Float[Array, "*common *further k m"], y: Float[Array, "*common k n"]
) -> Float[Array, "*common *further m n"]:
    y = jnp.expand_dims(y, [*range(y.ndim - 2, x.ndim - 2)])
    first, *others = (x[..., i, :, None] * y[..., i, None, :] for i in range(x.shape[-2]))
    return sum(others, first)
