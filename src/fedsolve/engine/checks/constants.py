"""What a function's program holds as constants: a draw that would serve every step, arrays in the type of one run.

A loss that draws is compiled with one constant draw, unless its key is among its inputs. And a NumPy array that a
function closes over gets one type from JAX, for as long as a program with it is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal

from fedsolve.core.errors import InvalidInput
from fedsolve.core.types import Batch, Params
from fedsolve.core.xla.compiler import all_programs, equations_of, programs_inside
from fedsolve.tasks.loss_arguments import call

Function = Callable[..., Any]

_DRAWS = {"random_bits", "random_gamma", "threefry2x32", "rng_bit_generator", "rng_uniform"}
_REMEDY = (
    "a loss that draws asks for a key by an argument of that name, loss(params, batch, key=None), None in evaluation; "
    "else dropout is switched off (flax: deterministic=True; equinox: eqx.nn.inference_mode(model)), and what is meant "
    "to be fixed is drawn once, outside the loss"
)
_LAST = {
    "wide": False
}  # whether the last program with such an array had 64-bit types; at first as JAX has it


def check_frozen(name: str, loss: Callable[[Params, Batch], Any], params: Params, batch: Batch) -> None:
    """A loss may draw from the key that it asks for, from none of its own; nor may two traces differ (`np.random`).

    Args:
        name: what the error calls it.
        loss: as `fedsolve.tasks.loss_arguments` has it.
        params, batch: shapes and types to trace it with.

    Raises:
        InvalidInput: it does, with what would work.
    """
    leaves, structure = jax.tree.flatten((params, batch))
    source = _chance(loss, structure, tuple((a.shape, a.dtype) for a in leaves))
    if source == "np.random":
        raise InvalidInput(
            f"{name} differs between two evaluations of one model on one batch (np.random, or other chance, in it): "
            f"it would be compiled with one constant draw; {_REMEDY}"
        )
    if source == "a key":
        raise InvalidInput(
            f"{name} draws with a key that is the same at every step, so that one draw would serve every step: "
            f"{_REMEDY}"
        )


@lru_cache(maxsize=64)
def _chance(loss: Callable[[Params, Batch], Any], structure: Any, shapes: tuple[Any, ...]) -> str | None:
    """Where a loss has its randomness from, None if it has none; kept, since tracing takes longer than a small run."""
    params, batch = structure.unflatten([jax.ShapeDtypeStruct(*one) for one in shapes])
    key = jax.eval_shape(jax.random.key, 0)
    first, again = (
        jax.make_jaxpr(lambda p, b, k: call(loss, p, b, key=k)[0])(params, batch, key) for _ in range(2)
    )
    if not _same(first, again):
        return "np.random"
    return "a key" if _draws(first.jaxpr, [True] * len(first.jaxpr.invars)) else None


def _same(a: Any, b: Any) -> bool:
    """Whether two programs have the same operations on the same constants."""
    if a is b:
        return True
    consts = zip(getattr(a, "consts", ()), getattr(b, "consts", ()), strict=True)
    inner: list[Any] = equations_of(a)
    other: list[Any] = equations_of(b)
    if len(inner) != len(other) or not all(_equal(x, y) for x, y in consts):
        return False
    return all(
        e.primitive is f.primitive
        and all(
            _equal(x.val, y.val)
            for x, y in zip(e.invars, f.invars, strict=True)
            if _literal(x) and _literal(y)
        )
        and all(_same(x, y) for x, y in zip(programs_inside(e), programs_inside(f), strict=True))
        for e, f in zip(inner, other, strict=True)
    )


def _literal(x: Any) -> bool:
    return isinstance(x, Literal)


def _equal(a: Any, b: Any) -> bool:
    if a is b:
        return True
    if hasattr(a, "dtype") and jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
        a, b = jax.random.key_data(a), jax.random.key_data(b)
    a, b = np.asarray(a), np.asarray(b)
    return a.shape == b.shape and a.tobytes() == b.tobytes()


def _draws(jaxpr: Any, given: list[bool]) -> bool:
    """Whether anything is drawn from constants alone; `given` says which inputs come from model or batch."""
    known = dict(zip(jaxpr.invars, given, strict=True))
    for equation in jaxpr.eqns:
        inputs = [not _literal(v) and known.get(v, False) for v in equation.invars]
        if equation.primitive.name in _DRAWS and not any(inputs):
            return True
        for some in programs_inside(equation):
            body = getattr(some, "jaxpr", some)
            # a branch is not given which it is, a loop's body not what its condition needs
            size = len(body.invars)
            if _draws(body, inputs[-size:] if 0 < size <= len(inputs) else [any(inputs)] * size):
                return True
        known.update(dict.fromkeys(equation.outvars, any(inputs)))
    return False


@partial(jax.jit, static_argnums=0)
def of_call(function: Function, params: Params, batch: Batch) -> Any:
    """A function's value, for what only looks at its program: equal shapes are traced once."""
    return call(function, params, batch)[0]


def closes_over_floats(function: Function, params: Params, batch: Batch) -> bool:
    """Whether a function's program has a NumPy array of floats among its constants; not of one that fails."""
    try:
        programs = [*all_programs(of_call.trace(function, params, batch).jaxpr)]
    except Exception:  # whatever the user's code raises: said where it is called in earnest
        return False
    constants = [c for program in programs for c in getattr(program, "consts", ())]
    return any(isinstance(c, np.ndarray) and jnp.issubdtype(c.dtype, jnp.inexact) for c in constants)


def renew(functions: Iterable[Function], params: Params, batch: Batch) -> None:
    """Drop what was compiled, where a function's arrays were in a program of other types before.

    JAX makes float32 or float64 of a NumPy array once and takes that for the next program too, whether this has types
    of 64 bits or not; the program then fails, or computes with rounded constants.

    Args:
        functions: losses and metrics, as `fedsolve.tasks.loss_arguments` has them.
        params, batch: shapes and types to trace them with, those of the run.
    """
    if not any([closes_over_floats(function, params, batch) for function in functions]):
        return
    wide = bool(jax.config.jax_enable_x64)  # pyright: ignore[reportAttributeAccessIssue]
    if wide != _LAST["wide"]:
        jax.clear_caches()
    _LAST["wide"] = wide
