"""Pytrees: the few whole-vector operations that every method is written in, and leaves by their paths.

The path of a leaf is written with dots; a pattern matches a path or the end of one.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jaxtyping import Array

from fedsolve.core.errors import InvalidInput
from fedsolve.core.types import Params, Scalar

_JOINED = 2**14  # entries of a leaf below which it is looked at with others
_NEAR = 3  # paths that an error names


def add(a: Params, b: Params) -> Params:
    """a + b."""
    return jax.tree.map(jnp.add, a, b)


def sub(a: Params, b: Params) -> Params:
    """a - b."""
    return jax.tree.map(jnp.subtract, a, b)


def scale(s: Scalar, a: Params) -> Params:
    """s a, in the type of a."""
    return jax.tree.map(lambda x: (s * x).astype(x.dtype), a)


def axpy(s: Scalar, x: Params, y: Params) -> Params:
    """y + s x, in the type of y."""
    return jax.tree.map(lambda a, b: (b + s * a).astype(b.dtype), x, y)


def zeros_like(a: Params) -> Params:
    """A tree of zeros with the shapes and types of a."""
    return jax.tree.map(jnp.zeros_like, a)


def dot(a: Params, b: Params) -> Array:
    """<a, b> over the whole vector."""
    parts = jax.tree.leaves(jax.tree.map(lambda x, y: jnp.sum(x * y), a, b))
    return sum(parts, jnp.zeros((), parts[0].dtype)) if parts else jnp.zeros(())


def squared_norm(a: Params) -> Array:
    """|a|^2 over the whole vector."""
    return dot(a, a)


def norm(a: Params) -> Array:
    """|a| over the whole vector."""
    return jnp.sqrt(squared_norm(a))


def where(condition: Any, a: Params, b: Params) -> Params:
    """a where a scalar condition holds, otherwise b."""
    return jax.tree.map(lambda x, y: jnp.where(condition, x, y), a, b)


def all_finite(a: Any) -> Array:
    """Whether every floating-point entry of a is finite."""
    floats = [x for x in jax.tree.leaves(a) if jnp.issubdtype(x.dtype, jnp.inexact) and x.size]
    if not floats:
        return jnp.array(True)
    # each reduction costs compile time, each entry of a vector joined of leaves a branch: only small ones are joined
    *rest, largest = sorted(floats, key=lambda x: x.size)
    small = [jnp.ravel(x) for x in rest if x.size < _JOINED]
    parts = [largest, *(x for x in rest if x.size >= _JOINED), *([jnp.concatenate(small)] if small else [])]
    return jnp.stack([array_is_finite(x) for x in parts]).all()


def array_is_finite(x: Array) -> Array:
    """Whether all entries of an array of floating-point or complex numbers are finite, shape ().

    By the bits without the sign, as integers, whose maximum is exact and vectorised: those of infinity and NaN are the
    largest. XLA drops NaN from a maximum of floats that it vectorises on a CPU (JAX 0.10.2;
    https://github.com/openxla/xla/issues/21461), a sum cannot be reordered, and `isfinite(x).all()` is not vectorised.
    """
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        return array_is_finite(jnp.stack([x.real, x.imag]))
    integer = jnp.dtype(f"int{jnp.finfo(x.dtype).bits}")
    bits = lax.bitcast_convert_type(x, integer) & jnp.iinfo(integer).max
    infinity = lax.bitcast_convert_type(jnp.array(jnp.inf, x.dtype), integer)
    return jnp.max(bits) < infinity


def has_codes(a: Any) -> bool:
    """Whether a leaf of a is no floating-point number."""
    return any(not jnp.issubdtype(x.dtype, jnp.inexact) for x in jax.tree.leaves(a))


def size(a: Any) -> int:
    """Number of entries."""
    return sum(x.size for x in jax.tree.leaves(a))


def nbytes(a: Any) -> int:
    """Bytes of all leaves (arrays or shapes) as they are stored."""
    return sum(x.size * jnp.dtype(x.dtype).itemsize for x in jax.tree.leaves(a))


def on_host(a: Any) -> Any:
    """The arrays as NumPy's; on a CPU each is read where it is, which takes a fifth of `jax.device_get`'s time."""
    return jax.tree.map(np.asarray, a) if jax.default_backend() == "cpu" else jax.device_get(a)


def dtype_of(a: Params) -> Any:
    """The common floating-point type of the leaves."""
    return jnp.result_type(*jax.tree.leaves(a))


def is_not_traced(x: Any) -> bool:
    """Whether x is a number or an array whose values can be looked at now."""
    return isinstance(x, int | float | np.ndarray | np.generic) or (
        isinstance(x, jax.Array) and not isinstance(x, Tracer)
    )


def chosen_leaves(tree: Params, pattern: str) -> list[Any]:
    """The leaves whose path matches a pattern.

    Raises:
        InvalidInput: there is none.
    """
    paths, leaves = named_leaves(tree)
    chosen = [leaves[i] for i in matching(paths, pattern)]
    if not chosen:
        raise InvalidInput(f"no leaf of the model is called '{pattern}'; it has {', '.join(paths)}")
    return chosen


def named_leaves(tree: Params) -> tuple[list[str], list[Any]]:
    """The paths of a model's leaves, written with dots, and the leaves."""
    with_paths, _ = jax.tree_util.tree_flatten_with_path(tree)
    return [jax.tree_util.keystr(p, simple=True, separator=".") for p, _ in with_paths], [
        leaf for _, leaf in with_paths
    ]


def all_matching(field: str, paths: list[str], patterns: Iterable[str]) -> set[int]:
    """The numbers of the paths that some patterns match.

    Raises:
        InvalidInput: a pattern of the argument `field` that matches none; the nearest paths are named.
    """
    chosen: set[int] = set()
    for pattern in patterns:
        matched = matching(paths, pattern)
        if not matched:
            near = difflib.get_close_matches(pattern, paths, _NEAR, cutoff=0) or paths[:_NEAR]
            raise InvalidInput(
                f"{field} = '{pattern}': no leaf of the model has this name; the nearest paths are {', '.join(near)}"
            )
        chosen |= set(matched)
    return chosen


def matching(paths: list[str], pattern: str) -> list[int]:
    """The numbers of the paths that a pattern matches, as a whole or at their end."""
    return [
        i for i, path in enumerate(paths) if fnmatchcase(path, pattern) or fnmatchcase(path, f"*.{pattern}")
    ]
