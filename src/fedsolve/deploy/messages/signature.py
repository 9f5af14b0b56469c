"""Shapes and types of a model and of its messages in one line, by which server and clients compare what they have."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedsolve.core.errors import InvalidInput
from fedsolve.core.types import Params
from fedsolve.engine.records.identity import digest
from fedsolve.tasks.leaves import refuse_halves


def signature(tree: Any) -> str:
    """Shapes and types of all leaves in one line.

    >>> signature({"w": np.zeros((2, 3), np.float32)})
    "['w'] float32[2,3]"
    """
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return "; ".join(
        f"{jax.tree_util.keystr(path) or 'value'} {jnp.dtype(x.dtype)}{list(np.shape(x))}".replace(", ", ",")
        for path, x in leaves
    )


def signature_digest(tree: Any) -> str:
    """A digest of `signature`, for every message."""
    return digest(signature(tree))


def compare_signatures(ours: str, theirs: str, client: int) -> None:
    """Raise `InvalidInput`, naming the first difference, unless a client's model is the server's."""
    if ours == theirs:
        return
    pairs = zip_longest(ours.split("; "), theirs.split("; "), fillvalue="nothing")
    mine, wanted = next((a, b) for a, b in pairs if a != b)
    raise InvalidInput(
        f"the model of client {client} has {mine} where the server's has {wanted}: build both from the same code"
    )


def constant_digests(constants: Mapping[str, Any]) -> list[str]:
    """`name digest` of each array, in the order of names: of its shape, type and bytes."""

    def of(array: np.ndarray) -> str:
        return hashlib.sha256(f"{array.dtype}{array.shape}".encode() + array.tobytes()).hexdigest()[:16]

    return [f"{name} {of(x)}" for name, x in sorted(constants.items())]


def check_constants(digests: Any) -> list[str]:
    """What another one sent as `constant_digests`; `InvalidInput` for anything else."""
    if not isinstance(digests, list) or not all(
        isinstance(d, str) and " " in d and len(d) < 1000 for d in digests
    ):
        raise InvalidInput("its constants are no names and digests: another version of fedsolve?")
    return digests


def usual_constants(clients: Sequence[Sequence[str]]) -> dict[str, str]:
    """For each name the digest that most clients have, "" for none; of as many the first one's."""
    own = [dict(pair.rsplit(" ", 1) for pair in digests) for digests in clients]
    usual = {}
    for name in dict.fromkeys(name for one in own for name in one):
        having = [one for one in own if name in one] if _may_lack(name) else own
        usual[name] = Counter(one.get(name, "") for one in having).most_common(1)[0][0]
    return usual


def _may_lack(name: str) -> bool:
    """Whether a client may not have it: arrays in place of a table, a buffer that changes with some data alone, a
    setting of another framework's or version's loss.
    """
    return name == "columns" or name.startswith(("buffer ", "schema.toml, ", "loss: ", "layer "))


def other_constant(digests: Sequence[str], usual: Mapping[str, str]) -> str | None:
    """The first name under which a client has another digest than is usual; None if all are the usual ones."""
    own = dict(pair.rsplit(" ", 1) for pair in digests)
    names = (name for name in usual if name in own or not _may_lack(name))
    return next((name for name in names if own.get(name, "") != usual[name]), None)


def float_type(params: Params) -> Any:
    """The common type of a model's leaves, float64 also where JAX has 64-bit types switched off.

    Raises:
        InvalidInput: leaves that are no floating-point arrays, or such of 16 bits, or none.
    """
    leaves = jax.tree.leaves(params)
    if not leaves or not all(hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jnp.floating) for x in leaves):
        raise InvalidInput(
            "the model must be floating-point arrays, at least one, in any tree: give its parameters"
        )
    refuse_halves("the model", params)
    return jnp.dtype(np.result_type(*(np.dtype(x.dtype) for x in leaves)))


def precision_of(params: Params) -> Any:
    """The context in which a model's floating-point type exists."""
    return jax.enable_x64(float_type(params) == jnp.float64)
