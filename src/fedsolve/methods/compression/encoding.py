"""Codes in place of the large leaves of a model or a client update, and the randomness that they follow from."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fedsolve.core.algorithm import Algorithm
from fedsolve.core.errors import InvalidInput
from fedsolve.core.types import Params, Scalar, replace
from fedsolve.methods.compression.compressor import Compressor, Encoded
from fedsolve.methods.wrappers.wrapper import Wrapper

_SEED = 0xC0DE  # of random numbers that nobody need hide: the same in simulation and deployment


def encode_leaves(
    compressor: Compressor,
    update: Params,
    common: Any,
    client: Any,
    *,
    smallest: int,
    title: str,
    shrinks: bool = False,
) -> Any:
    """An update or a model with codes in place of its large leaves.

    Randomness follows from round, client and leaf. With `shrinks`, an unbiased compressor is divided by 1 + omega,
    which makes it a contraction.

    Args:
        compressor: of one leaf.
        update: the shapes of the model.
        common: `round_key` of the round.
        client: the client's number.
        smallest: leaves with fewer entries stay as they are.
        title: of the method, for an error.
        shrinks: see above.

    Raises:
        InvalidInput: no leaf is large enough.
    """
    leaves, structure = jax.tree.flatten(update)
    chosen = [x.size >= smallest and compressor.fits(x.shape) for x in leaves]
    if not any(chosen):
        raise InvalidInput(
            f"{title} compresses nothing: no leaf of the model has {smallest} entries"
            " and a smaller code; set smallest="
        )
    encoded = []
    for i, (x, is_chosen) in enumerate(zip(leaves, chosen, strict=True)):
        if not is_chosen:
            encoded.append(x)
            continue
        of_leaf = jax.random.fold_in(common, i)
        own = jax.random.fold_in(of_leaf, jnp.asarray(client, jnp.uint32))
        factor = 1 / (1 + compressor.error(x.size)) if shrinks and compressor.is_unbiased else 1.0
        encoded.append(Encoded.of(compressor, x, own, of_leaf, factor))
    return structure.unflatten(encoded)


def decode_leaves(update: Any, common: Any) -> Params:
    """The arrays that stand for codes; those that were sent as they are."""
    leaves, structure = jax.tree.flatten(update, is_leaf=lambda x: isinstance(x, Encoded))
    decoded = [
        x.decode(jax.random.fold_in(common, i)) if isinstance(x, Encoded) else x for i, x in enumerate(leaves)
    ]
    return structure.unflatten(decoded)


def adds_codes(compressor: Compressor, inner: Any) -> bool:
    """Whether codes are added up as they are: they are linear, and no inner method reads single messages."""
    while isinstance(inner, Wrapper) and type(inner).receive is Wrapper.receive:
        inner = inner.inner
    return compressor.is_linear and type(inner).receive is Algorithm.receive


def round_key(round: Scalar) -> Any:
    """Randomness of a round that everybody knows."""
    return jax.random.fold_in(jax.random.key(_SEED), jnp.asarray(round, jnp.uint32))


def field_of(part: Any, name: str) -> Any:
    """A field of a broadcast or message, wherever wrappers have put it."""
    return field_of(part.inner, name) if hasattr(part, "inner") else getattr(part, name)


def with_field(part: Any, name: str, value: Any) -> Any:
    """A broadcast or message with another value of a field, wherever wrappers have put it."""
    if hasattr(part, "inner"):
        return replace(part, inner=with_field(part.inner, name, value))
    if not hasattr(part, name):
        raise InvalidInput(f"{type(part).__name__} has no field `{name}` to compress")
    return replace(part, **{name: value})


def check_compressor(title: str, compressor: Any) -> None:
    """Raise `InvalidInput` unless it is one."""
    if not isinstance(compressor, Compressor):
        raise InvalidInput(
            f"{title} needs a compressor such as fs.compression.TopK(0.01), not {compressor!r}"
        )
