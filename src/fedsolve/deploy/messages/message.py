"""What travels in a deployment besides the method's own bytes: an order down, a reply up. No Flower here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedsolve.core.algorithm import Algorithm, name_of
from fedsolve.core.errors import InvalidInput
from fedsolve.core.types import Params
from fedsolve.engine.records.identity import digest
from fedsolve.tasks.leaves import refuse_halves


@dataclass(frozen=True)
class Order:
    """What a client is asked to do in a round.

    Attributes:
        experiment: name of the experiment that the client's state belongs to.
        round: number of the round, from 0.
        client: the client's number.
        population: clients in all.
        last_used_round: the last round in which the server used an update of this client, from 0; -1 if none.
        key: the round's random key, two words; cohorts, shuffles and dropout follow from it.
        method: the method as data (see `fedsolve.deploy.messages.spec`).
        signature: shapes and types of the model's leaves; a client with another model refuses.
        broadcast: the method's broadcast, as `fedsolve.wire` encodes it.
        first_broadcast: that of the first round, for a client that joins later and keeps a state; else None.
        tracked_state: the client's state as the server tracks it, for one that has lost its own; else None.
        buffers: what is averaged beside the model, by name.
    """

    experiment: str
    round: int
    client: int
    population: int
    last_used_round: int
    key: tuple[int, ...]
    method: Any
    signature: str
    broadcast: bytes
    first_broadcast: bytes | None
    tracked_state: bytes | None
    buffers: dict[str, np.ndarray]


@dataclass(frozen=True)
class Reply:
    """What a client answers.

    Attributes:
        experiment, round, client: those of the order.
        signature: digest of shapes and types of the message.
        examples: the client's number of examples, 1 where the method weights clients alike and need not know.
        message: the method's message, as `fedsolve.wire` encodes it.
        buffers: what is averaged beside the model, after local work.
    """

    experiment: str
    round: int
    client: int
    signature: str
    examples: int
    message: bytes
    buffers: dict[str, np.ndarray]


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


def compare_signatures(ours: str, theirs: str, client: int) -> None:
    """Raise `InvalidInput`, naming the first difference, unless a client's model is the server's."""
    if ours == theirs:
        return
    pairs = zip_longest(ours.split("; "), theirs.split("; "), fillvalue="nothing")
    mine, wanted = next((a, b) for a, b in pairs if a != b)
    raise InvalidInput(
        f"the model of client {client} has {mine} where the server's has {wanted}: build both from the same code"
    )


def check_buffers(algorithm: Algorithm, buffers: Mapping[str, Any] | None) -> None:
    """Raise `InvalidInput` if something would travel beside a protected model without protection."""
    if buffers and algorithm.privacy:
        raise InvalidInput(
            f"{name_of(algorithm)} protects the model, not what is averaged beside it ({', '.join(buffers)}): "
            "take a model without running statistics, such as one with GroupNorm in place of BatchNorm"
        )
