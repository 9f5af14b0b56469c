"""Matrix products, convolutions and decompositions in forms that are fast or mixed-precision on a device.

A function is traced once more, a gradient after it has been differentiated, and every product of float32 arrays gets
its operands rounded to bfloat16 (8 bits of 24). A matrix product adds up in float32 and gives float32, and so does a
convolution on a CPU; elsewhere it gives bfloat16, which is what accelerators have kernels for. All else stays float32:
parameters, biases, norms, softmax, the mean over examples, the step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import sequential_vmap
from jax.extend import core
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Var, jaxpr_as_fun
from jaxtyping import Array, Float

from fedsolve.core.xla.compiler import all_equations, bind, evaluate, programs_inside, rewrite_inside
from fedsolve.core.xla.direct import DIRECT

_PRODUCTS = ("dot_general", "conv_general_dilated", DIRECT)
_OWN_DERIVATIVE = ("custom_jvp_call", "custom_vjp_call")


def with_half_products(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, every product of float32 arrays in it from operands in bfloat16."""
    # meant for use inside a trace: `function` is traced anew at each call. The result is not to be
    # differentiated again: give the gradient's function, whose products are then all treated alike.

    def half(*arguments: Any) -> Any:
        closed, shape = jax.make_jaxpr(function, return_shape=True)(*arguments)
        results = evaluate(closed, jax.tree.leaves(arguments), _half_product)
        return jax.tree.unflatten(jax.tree.structure(shape), results)

    return half


def _half_product(equation: core.JaxprEqn, values: list[Any]) -> list[Any] | None:
    if _is_product(equation):
        return [_product(equation, values)]
    if not any(_is_product(e) for program in programs_inside(equation) for e in all_equations(program)):
        return None
    if equation.primitive.name in _OWN_DERIVATIVE:  # nothing differentiates it any more
        return evaluate(equation.params["call_jaxpr"], values, _half_product)
    return bind(rewrite_inside(equation, _half_product), values)


def _is_product(equation: core.JaxprEqn) -> bool:
    types = {getattr(v.aval, "dtype", None) for v in (*equation.invars, *equation.outvars)}
    return equation.primitive.name in _PRODUCTS and types == {jnp.dtype("float32")}


def _product(equation: core.JaxprEqn, values: list[Any]) -> Any:
    direct, params = equation.primitive.name == DIRECT, equation.params
    # whose library has products in float32 alone, or none of some forms of bfloat16 (JAX 0.10.2): it adds up in it too
    if equation.primitive.name != "conv_general_dilated" and jax.default_backend() == "cpu":
        return bind(equation, [lax.reduce_precision(v, 8, 7) for v in values])[0]
    operands = [lax.convert_element_type(v, jnp.bfloat16) for v in values]
    if not direct:
        wide = jnp.dtype("float32") if equation.primitive.name == "dot_general" else None
        params = {**params, "preferred_element_type": wide, "precision": None}
    return lax.convert_element_type(bind(equation.replace(params=params), operands)[0], jnp.float32)


# Products of clients side by side, written as a CPU computes them fast (JAX 0.10.2, benchmarks/FINDINGS.md).
#
# A product over few examples is a sum of outer products. XLA's library computes a client's gradient of weights,
# (examples, outputs)' (examples, inputs), and writes it; the step reads it again. Few outer products are added in the
# loop that takes the step: with ten examples the rounds of twenty clients' MLPs of 64 x 64 weights take two thirds of
# the time.
#
# A product of one model with the examples of all clients takes the examples as rows. For `w @ x.T` of clients that
# share w, XLA multiplies w by all examples as columns, and transposes all examples first. Without that the round of
# 1,000 clients that take one step of softmax regression takes four fifths of the time.

_MOST = 16
"""Most terms of a sum: with 20 the loop takes as long as the product at 784 x 200 weights, with 32 longer."""


def with_client_products(function: Callable[..., Any], common: int = 1) -> Callable[..., Any]:
    """`function`, with two kinds of products written in another way.

    * Of (clients, k, m) and (clients, k, n) over k, at most 16, m and n: a sum of k outer products.
    * Of (..., k), the same for all clients, and (clients, n, k) with its last two axes transposed: a product with rows.

    Those in loops and calls inside too. On a CPU; elsewhere it is the function itself. Meant for use inside a trace,
    and for what is not differentiated again: `function` is traced anew at each call. Products with more than `common`
    leading axes, such as those of attention's heads, stay: 1 for clients, 2 for clients and trials. The first factor
    may have further axes, such as trials that meet the same examples.
    """
    if jax.default_backend() != "cpu":
        return function

    def rewritten(*arguments: Any) -> Any:
        closed, shape = jax.make_jaxpr(function, return_shape=True)(*arguments)
        results = jaxpr_as_fun(_rewritten(closed, common))(*jax.tree.leaves(arguments))
        return jax.tree.unflatten(jax.tree.structure(shape), results)

    return rewritten


def _rewritten(value: Any, common: int) -> Any:
    # a program, or what else an operation has as a parameter; itself where nothing in it changes
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
    # the equation, or another one that gives the same
    # common: as above
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
    # a call of a compiled function of these factors in place of an equation
    types: list[Any] = [v.aval for v in factors]
    (call,) = jax.make_jaxpr(function)(*(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in types)).eqns
    return call.replace(invars=list(factors), outvars=equation.outvars)


def _is_of_few(equation: JaxprEqn, common: int) -> bool:
    # whether it is over the last axis but one of both factors: there rows lie side by side
    # along the last axis the library is fast
    types: list[Any] = [v.aval for v in (*equation.invars, *equation.outvars)]
    x, y, result = types
    leading = tuple(range(y.ndim - 2))
    if not 1 <= len(leading) <= common or {x.dtype, y.dtype} != {result.dtype}:
        return False
    if equation.params["dimension_numbers"] != (((x.ndim - 2,), (y.ndim - 2,)), (leading, leading)):
        return False
    return 0 < y.shape[-2] <= min(_MOST, x.shape[-1], y.shape[-1])


def _is_of_all_clients(equation: JaxprEqn) -> bool:
    # whether one factor is the same for all clients, over its last axis and the second axis of the clients' own
    factors: list[Any] = [v.aval for v in equation.invars]
    x, y = factors
    over = ((x.ndim - 1,), (1,))
    return y.ndim == 3 and y.size > 0 and equation.params["dimension_numbers"] == (over, ((), ()))


def _transposes_rows(equation: JaxprEqn) -> bool:
    # whether it swaps the last two of three axes
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


# Decompositions of a matrix, which on a CPU are done one after another where they are vmapped.
#
# XLA spreads a batch of LAPACK calls over the threads of its pool and waits for them there. Where several programs do
# so at once, as batches of a sweep do on two cores, all threads wait and none works: the process stands still for good
# (JAX 0.10.2). Derivatives are JAX's own.


def _one_by_one(decompose: Callable[[Array], Any]) -> Callable[[Array], Any]:
    # a decomposition of one matrix that is never a batch of them on a CPU
    in_turn = sequential_vmap(decompose)

    @jax.custom_jvp
    def one(w: Array) -> Any:
        return in_turn(w) if jax.default_backend() == "cpu" else decompose(w)

    @one.defjvp
    def _(w: Any, change: Any) -> Any:
        return jax.jvp(decompose, w, change)

    return one


_svd = _one_by_one(lambda w: tuple(jnp.linalg.svd(w, full_matrices=False)))
_singular_values = _one_by_one(lambda w: jnp.linalg.svd(w, compute_uv=False))
_orthonormal = _one_by_one(lambda w: jnp.linalg.qr(w)[0])
_eigh = _one_by_one(lambda w: tuple(jnp.linalg.eigh(w)))
_solution = _one_by_one(lambda w: jnp.linalg.solve(w[:, :-1], w[:, -1]))


def svd(w: Float[Array, "m n"]) -> tuple[Array, Array, Array]:
    """U of shape (m, k), the singular values from the largest, and V' of shape (k, n), k = min(m, n)."""
    return _svd(w)


def singular_values(w: Float[Array, "m n"]) -> Array:
    """The singular values from the largest, shape (min(m, n),)."""
    return _singular_values(w)


def orthonormal(w: Float[Array, "m n"]) -> Array:
    """Orthonormal columns that span those of a matrix, shape (m, min(m, n))."""
    return _orthonormal(w)


def eigh(w: Float[Array, "n n"]) -> tuple[Array, Array]:
    """The eigenvalues of a symmetric matrix from the least, and its eigenvectors as columns."""
    return _eigh(w)


def solution(w: Float[Array, "n n"], b: Float[Array, " n"]) -> Float[Array, " n"]:
    """The z with w z = b."""
    return _solution(jnp.concatenate([w, b[:, None]], axis=1))
