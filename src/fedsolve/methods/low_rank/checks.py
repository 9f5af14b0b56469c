"""What a low-rank wrapper accepts: its options, and which methods it can go around."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fedsolve.core import introspect
from fedsolve.core.algorithm import Algorithm, name_of
from fedsolve.core.errors import InvalidInput, check_integer, check_range, is_one_of, shown
from fedsolve.core.types import Params
from fedsolve.methods.compression.compressed import Compressed
from fedsolve.methods.compression.compressor import is_compressed
from fedsolve.methods.server.fedopt import FedOpt
from fedsolve.methods.server.server_optimizer import ServerOptimizer


def check_options(rank: Any, average: Any, leaves: Any, alpha: Any) -> tuple[str, ...]:
    """The patterns of `leaves`.

    Raises:
        InvalidInput: an option out of its range.
    """
    check_integer("rank", rank, 1, bits=31)
    if not is_one_of(average, ("both", "A", "exact", "stack")):
        raise InvalidInput(f"average = {shown(average)} must be 'both', 'A', 'exact' or 'stack'")
    check_range("alpha", alpha, above=0, optional=True)
    given = (leaves,) if isinstance(leaves, str) else leaves
    patterns = tuple(given) if isinstance(given, list | tuple) else ()
    if not patterns or not all(isinstance(pattern, str) and pattern for pattern in patterns):
        raise InvalidInput(
            f"leaves = {shown(leaves)} must be patterns of paths, such as ('*.query.weight', 'head.*')"
        )
    return patterns


def check_inner(inner: Algorithm, title: str, average: str) -> None:
    """Raise `InvalidInput` if the factors of a method cannot be averaged so."""
    traits, name = inner.traits, f"{title} cannot wrap {name_of(inner)}"
    if traits.factors:
        raise InvalidInput(f"{name}, which has factors already: one of the two is enough")
    if traits.buffer:
        raise InvalidInput(f"{name}: its clients start from models of different age; take synchronous rounds")
    if average not in ("exact", "stack"):
        return
    if not _sends_updates(inner):
        raise InvalidInput(
            f"{name}: it sends no plain client updates to multiply; use average = 'both' or 'A'"
        )
    if traits.privacy in ("central", "distributed"):
        raise InvalidInput(
            f"{name}: products of factors exceed its bound on updates; use average = 'both' or 'A'"
        )
    if average == "exact" and traits.reduction is not None:
        raise InvalidInput(f"{name}: the residual is of means; use average = 'both', 'A' or 'stack'")


def _sends_updates(method: Algorithm) -> bool:
    """Whether the field `delta` of messages is each client's own update."""
    while not isinstance(method, FedOpt):
        if isinstance(method, Compressed) and method.memory == "ef21":
            return False
        if not isinstance(inner := getattr(method, "inner", None), Algorithm):
            return False
        method = inner
    return type(method.server_optimizer).direction is ServerOptimizer.direction


def check_stacking(inner: Algorithm, params: Params) -> None:
    """Raise `InvalidInput` if a method broadcasts more than the model, or its clients keep a state."""
    entries: Callable[[Any], int] = lambda tree: sum(x.size for x in jax.tree.leaves(tree) if jnp.ndim(x))  # noqa: E731
    broadcast = introspect.broadcast_shape(inner, params, 1)
    kept = jax.tree.leaves(jax.eval_shape(inner.init_client, broadcast))
    if kept or entries(broadcast) != entries(params):
        name = name_of(inner)
        more = f"the clients of {name} keep a state" if kept else f"{name} sends more than the model"
        raise InvalidInput(
            f"average = 'stack' begins each round with new factors, and {more}: use average = 'exact'"
        )


def check_decoded(inner: Algorithm, update: Any) -> None:
    """Raise `InvalidInput` if a client update is still a code, of which the server adds up all."""
    if is_compressed(update):
        raise InvalidInput(
            f"average = 'exact' or 'stack' needs each client's factors, and {name_of(inner)} decodes their mean alone: "
            "take a compressor that is not linear, such as EDEN, or average = 'both'"
        )
