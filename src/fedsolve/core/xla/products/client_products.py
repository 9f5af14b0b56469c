"""Products of clients side by side, written as a CPU computes them fast (JAX 0.10.2, benchmarks/FINDINGS.md).

A product over few examples is a sum of outer products. XLA's library computes a client's gradient of weights,
(examples, outputs)' (examples, inputs), and writes it; the step reads it again. Few outer products are added in the
loop that takes the step: with ten examples the rounds of twenty clients' MLPs of 64 x 64 weights take two thirds of
the time.

A product of one model with the examples of all clients takes the examples as rows. For `w @ x.T` of clients that share
w, XLA multiplies w by all examples as columns, and transposes all examples first. Without that the round of 1,000
clients that take one step of softmax regression takes four fifths of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Var, jaxpr_as_fun
from jaxtyping import Array, Float

_MOST = 16
"""Most terms of a sum: with 20 the loop takes as long as the product at 784 x 200 weights, with 32 longer."""


def with_client_products(function: Callable[..., Any], common: int = 1) -> Callable[..., Any]:
    """`function`, with two kinds of products written in another way.

    * Of (clients, k, m) and (clients, k, n) over k, at most 16, m and n: a sum of k outer products.
    * Of (..., k), the same for all clients, and (clients, n, k) with its last two axes transposed: a product with rows.

    Those in loops and calls inside too. On a CPU; elsewhere it is the function itself. Meant for use inside a trace,
    and for what is not differentiated again: `function` is traced anew at each call.

    Args:
        function: of arrays.
        common: the most leading axes of both factors of a sum: 1 for clients, 2 for clients and trials. Products with
            more, such as those of attention's heads, stay. The first factor may have further axes, such as trials that
            meet the same examples.
    """
    if jax.default_backend() != "cpu":
        return function

    def rewritten(*arguments: Any) -> Any:
        closed, shape = jax.make_jaxpr(function, return_shape=True)(*arguments)
        results = jaxpr_as_fun(_rewritten(closed, common))(*jax.tree.leaves(arguments))
        return jax.tree.unflatten(jax.tree.structure(shape), results)

    return rewritten


def _rewritten(value: Any, common: int) -> Any:
    """A program, or what else an operation has as a parameter; itself where nothing in it changes."""
    if isinstance(value, Jaxpr):  # first: JAX 0.12 has one class for both
        rows = {e.outvars[0]: e.invars[0] for e in value.eqns if _transposes_rows(e)}
        equations = [_changed(equation, common, rows) for equation in value.eqns]
        same = all(new is old for new, old in zip(equations, value.eqns, strict=True))
        return value if same else value.replace(eqns=equations)
    if isinstance(value, ClosedJaxpr):
        inside = _rewritten(value.jaxpr, common)
        return value if inside is value.jaxpr else ClosedJaxpr(inside, value.consts)
    if type(value) in (tuple, list):
        parts = type(value)(_rewritten(part, common) for part in value)
        return value if all(new is old for new, old in zip(parts, value, strict=True)) else parts
    return value


def _changed(equation: JaxprEqn, common: int, rows: Mapping[Any, Any]) -> JaxprEqn:
    """The equation, or another one that gives the same.

    Args:
        equation: of a program.
        common: as above.
        rows: what the program transposes, by the transposed variable.
    """
    if equation.primitive.name == "dot_general":
        x, y = equation.invars
        if _is_of_few(equation, common):
            return _call_of(equation, _outer_products, x, y)
        if isinstance(y, Var) and y in rows and _is_of_all_clients(equation):
            given = {key: equation.params[key] for key in ("precision", "preferred_element_type")}
            return _call_of(equation, partial(_product_of_rows, **given), x, rows[y])
    params = {name: _rewritten(value, common) for name, value in equation.params.items()}
    same = all(params[name] is value for name, value in equation.params.items())
    return equation if same else equation.replace(params=params)


def _call_of(equation: JaxprEqn, function: Callable[..., Any], *factors: Any) -> JaxprEqn:
    """A call of a compiled function of these factors in place of an equation."""
    types: list[Any] = [v.aval for v in factors]
    (call,) = jax.make_jaxpr(function)(*(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in types)).eqns
    return call.replace(invars=list(factors), outvars=equation.outvars)


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


def _is_of_all_clients(equation: JaxprEqn) -> bool:
    """Whether one factor is the same for all clients, over its last axis and the second axis of the clients' own."""
    factors: list[Any] = [v.aval for v in equation.invars]
    x, y = factors
    over = ((x.ndim - 1,), (1,))
    return y.ndim == 3 and y.size > 0 and equation.params["dimension_numbers"] == (over, ((), ()))


def _transposes_rows(equation: JaxprEqn) -> bool:
    """Whether it swaps the last two of three axes."""
    return equation.primitive.name == "transpose" and equation.params["permutation"] == (0, 2, 1)


@jax.jit
def _outer_products(
    x: Float[Array, "*common *further k m"], y: Float[Array, "*common k n"]
) -> Float[Array, "*common *further m n"]:
    y = jnp.expand_dims(y, [*range(y.ndim - 2, x.ndim - 2)])
    first, *others = (x[..., i, :, None] * y[..., i, None, :] for i in range(x.shape[-2]))
    return sum(others, first)


@partial(jax.jit, static_argnames=("precision", "preferred_element_type"))
def _product_of_rows(
    x: Float[Array, "*further k"], rows: Float[Array, "clients n k"], **given: Any
) -> Float[Array, "*further clients n"]:
    clients, n, k = rows.shape
    product = lax.dot_general(x, rows.reshape(clients * n, k), (((x.ndim - 1,), (1,)), ((), ())), **given)
    return product.reshape(*x.shape[:-1], clients, n)
