"""Matrix products and convolutions of bfloat16 numbers in a float32 program, as mixed-precision training has them.

A function is traced once more, a gradient after it has been differentiated, and every product of float32 arrays gets
its operands rounded to bfloat16 (8 bits of 24). A matrix product adds up in float32 and gives float32, and so does a
convolution on a CPU; elsewhere it gives bfloat16, which is what accelerators have kernels for. All else stays float32:
parameters, biases, norms, softmax, the mean over examples, the step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core

from fedsolve.core.xla.convolutions import bind
from fedsolve.core.xla.direct import DIRECT
from fedsolve.core.xla.programs import all_equations, programs_inside

_PRODUCTS = ("dot_general", "conv_general_dilated", DIRECT)
_OWN_DERIVATIVE = ("custom_jvp_call", "custom_vjp_call")


def with_half_products(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, every product of float32 arrays in it from operands in bfloat16.

    Meant for use inside a trace: `function` is traced anew at each call. The result is not to be differentiated again:
    give the gradient's function, whose products are then all treated alike.
    """

    def half(*arguments: Any) -> Any:
        closed, shape = jax.make_jaxpr(function, return_shape=True)(*arguments)
        results = _evaluate(closed.jaxpr, closed.consts, *jax.tree.leaves(arguments))
        return jax.tree.unflatten(jax.tree.structure(shape), results)

    return half


def _evaluate(jaxpr: core.Jaxpr, constants: Sequence[Any], *arguments: Any) -> list[Any]:
    """The results of a traced function, equation by equation."""
    known = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*constants, *arguments), strict=True))
    for equation in jaxpr.eqns:
        values = [v.val if isinstance(v, core.Literal) else known[v] for v in equation.invars]
        if _is_product(equation):
            results = [_product(equation, values)]
        elif not any(map(_has_products, programs_inside(equation))):
            results = bind(equation, values)
        elif equation.primitive.name in _OWN_DERIVATIVE:  # nothing differentiates it any more
            called = equation.params["call_jaxpr"]
            results = _evaluate(called.jaxpr, called.consts, *values)
        else:
            params = {name: _in_bf16(value) for name, value in equation.params.items()}
            results = bind(equation.replace(params=params), values)
        known.update(zip(equation.outvars, results, strict=True))
    return [v.val if isinstance(v, core.Literal) else known[v] for v in jaxpr.outvars]


def _is_product(equation: core.JaxprEqn) -> bool:
    types = {getattr(v.aval, "dtype", None) for v in (*equation.invars, *equation.outvars)}
    return equation.primitive.name in _PRODUCTS and types == {jnp.dtype("float32")}


def _has_products(program: core.ClosedJaxpr | core.Jaxpr) -> bool:
    return any(map(_is_product, all_equations(program)))


def _in_bf16(value: Any) -> Any:
    """A parameter of an operation, the programs in it rewritten; they keep their types."""
    if isinstance(value, core.ClosedJaxpr):
        return jax.make_jaxpr(partial(_evaluate, value.jaxpr, value.consts))(*value.in_avals)
    if isinstance(value, core.Jaxpr):
        return _in_bf16(core.ClosedJaxpr(value, ())).jaxpr
    return type(value)(map(_in_bf16, value)) if type(value) in (tuple, list) else value


def _product(equation: core.JaxprEqn, values: list[Any]) -> Any:
    direct, params = equation.primitive.name == DIRECT, equation.params
    if direct and jax.default_backend() == "cpu":  # whose library has float32 alone: it adds up in it too
        return bind(equation, [lax.reduce_precision(v, 8, 7) for v in values])[0]
    operands = [lax.convert_element_type(v, jnp.bfloat16) for v in values]
    if not direct:
        wide = jnp.dtype("float32") if equation.primitive.name == "dot_general" else None
        params = {**params, "preferred_element_type": wide, "precision": None}
    return lax.convert_element_type(bind(equation.replace(params=params), operands)[0], jnp.float32)
