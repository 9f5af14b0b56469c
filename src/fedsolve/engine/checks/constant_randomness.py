"""Frozen randomness: a loss that draws is compiled with one constant draw, unless its key is among its inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from fedsolve.core.errors import InvalidInput
from fedsolve.core.types import Batch, Params
from fedsolve.tasks.loss_arguments import call

_DRAWS = {"random_bits", "random_gamma", "threefry2x32", "rng_bit_generator", "rng_uniform"}
_REMEDY = (
    "a loss that draws asks for a key by an argument of that name, loss(params, batch, key=None), None in evaluation; "
    "else dropout is switched off (flax: deterministic=True; equinox: eqx.nn.inference_mode(model)), and what is meant "
    "to be fixed is drawn once, outside the loss"
)


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
    found = _chance(loss, structure, tuple((a.shape, a.dtype) for a in leaves))
    if found == "np.random":
        raise InvalidInput(
            f"{name} differs between two evaluations of one model on one batch (np.random, or other chance, in it): "
            f"it would be compiled with one constant draw; {_REMEDY}"
        )
    if found == "a key":
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
    inner, other = getattr(a, "jaxpr", a), getattr(b, "jaxpr", b)
    if len(inner.eqns) != len(other.eqns) or not all(_equal(x, y) for x, y in consts):
        return False
    return all(
        e.primitive is f.primitive
        and all(
            _equal(x.val, y.val)
            for x, y in zip(e.invars, f.invars, strict=True)
            if _literal(x) and _literal(y)
        )
        and all(_same(x, y) for x, y in zip(programs_inside(e), programs_inside(f), strict=True))
        for e, f in zip(inner.eqns, other.eqns, strict=True)
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


def programs_inside(equation: Any) -> Iterator[Any]:
    """The programs inside an operation: of a loop, a branch, a call."""
    for value in equation.params.values():
        for one in value if isinstance(value, tuple | list) else (value,):
            if isinstance(one, ClosedJaxpr | Jaxpr):
                yield one


def _draws(jaxpr: Any, given: list[bool]) -> bool:
    """Whether anything is drawn from constants alone; `given` says which inputs come from model or batch."""
    known = dict(zip(jaxpr.invars, given, strict=True))
    for equation in jaxpr.eqns:
        inputs = [not _literal(v) and known.get(v, False) for v in equation.invars]
        if equation.primitive.name in _DRAWS and not any(inputs):
            return True
        for some in programs_inside(equation):
            body = getattr(some, "jaxpr", some)
            size = len(
                body.invars
            )  # a branch is not given which it is, a loop's body not what its condition needs
            if _draws(body, inputs[-size:] if 0 < size <= len(inputs) else [any(inputs)] * size):
                return True
        known.update(dict.fromkeys(equation.outvars, any(inputs)))
    return False
