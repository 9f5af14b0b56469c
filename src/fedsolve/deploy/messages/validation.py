"""Whether the message of a reply counts: every number of it is checked before any of it is used. No Flower here."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedsolve.core import wire
from fedsolve.core.errors import InvalidInput
from fedsolve.core.types import Claim, is_module
from fedsolve.deploy.host_arrays import all_finite, max_abs, norm
from fedsolve.deploy.messages.message import TrainReply
from fedsolve.deploy.messages.sanitize import sanitize
from fedsolve.deploy.messages.signature import signature, signature_digest
from fedsolve.methods.compression.compressors import is_compressed

_AGREE = 0.01  # a sum of squares in float32 on another machine, relative


class TooLarge(InvalidInput):
    """The numbers of a reply are not finite, beyond a fixed bound or too large to be summed over a cohort."""


def decode_reply(reply: TrainReply, zero_message: Any) -> Any:
    """The message of a reply, decoded only if its shapes and types are those of `zero_message`.

    Raises:
        InvalidInput: other shapes or types, or bytes that are no such message.
    """
    if reply.signature != signature_digest(zero_message):
        raise InvalidInput(f"its message has other shapes or types than {signature(zero_message)[:200]}")
    return wire.decode(reply.message, zero_message)


def check_message(
    sent: Any,
    received: Any,
    weight: float,
    *,
    norm_bound: float | None,
    cohort: int,
    dtype: Any,
    is_noisy: bool,
) -> float:
    """Check the numbers of a message; its Euclidean norm.

    Args:
        sent: the message as the client sent it.
        received: (message as it is reduced, the client's next state).
        weight: of the message in the sum.
        norm_bound: largest norm that is believed, None for any.
        cohort: clients that may send as much.
        dtype: the run's floating-point type.
        is_noisy: whether the client added noise, so that its numbers do not follow from one another.

    Raises:
        InvalidInput: numbers that are not finite, too large, or not what their fields say that they must be.
    """
    if not (all_finite(sent) and all_finite(received)):
        raise TooLarge("it holds numbers that are not finite")
    message, _ = received
    length = norm(message)
    if norm_bound is not None and length > norm_bound:
        raise TooLarge(f"its norm is {length:.6g}, above the bound {norm_bound:.6g}")
    check_size(length, max_abs(message), weight, cohort, dtype)
    if not is_noisy:
        check_claims(sent)
    return length


def check_claims(message: Any, delta: Any = None) -> None:
    """Raise `InvalidInput` if a number of a message is not what its field says that it must be (`Claim`).

    What a number is of the client update is computed here and compared: rounding may differ, a false claim does not
    pass, unless the update is compressed. `delta` is the client update that the message is sent with, if it has none
    itself.
    """
    if not is_module(message):
        for part in jax.tree.leaves(message, is_leaf=is_module):
            if is_module(part):
                check_claims(part, delta)
        return
    delta = getattr(message, "delta", delta)
    if is_compressed(delta):
        delta = None
    for field in dataclasses.fields(message):
        if field.metadata.get("static"):
            continue
        value, claim = getattr(message, field.name), field.metadata.get("claim")
        if claim is None:
            check_claims(value, delta)
        else:
            _check_claim(field.name, value, claim, delta)


def _check_claim(name: str, value: Any, claim: Claim, delta: Any) -> None:
    for x in jax.tree.leaves(value):
        numbers = np.asarray(x)
        right = (numbers >= claim.at_least) & (numbers <= claim.at_most)
        if claim.whole:
            right &= numbers == np.round(numbers)
        if not right.all():
            wanted = f"at least {claim.at_least:g}"
            wanted += f" and at most {claim.at_most:g}" if claim.at_most < np.inf else ""
            wanted += " and whole" if claim.whole else ""
            raise InvalidInput(f"its {name} is {numbers[~right].flat[0]:.6g}: it must be {wanted}")
    if claim.of_delta is not None and delta is not None:
        given, true = float(value), float(claim.of_delta(delta))
        if abs(given - true) > _AGREE * max(abs(given), abs(true)):
            raise InvalidInput(f"its {name} is {given:.6g}, but {true:.6g} by its update")


def check_size(norm: float, largest: float, weight: float, cohort: int, dtype: Any) -> None:
    """Raise `InvalidInput` if a message of this norm and largest number is too large to be summed (`check_message`)."""
    most = float(jnp.finfo(dtype).max)
    if largest * weight * cohort > most or norm**2 > max(most, float(np.finfo(np.float32).max)):
        raise TooLarge(f"its norm is {norm:.6g}, too large for sums in {jnp.dtype(dtype)}")


def check_buffer_values(known: Mapping[str, np.ndarray], buffers: Mapping[str, np.ndarray]) -> None:
    """Raise `InvalidInput` unless a reply's buffers have the server's names, shapes and types, and are finite."""
    for name in sorted(set(known) ^ set(buffers)):
        holder = "has" if name in buffers else "lacks"
        raise InvalidInput(
            f"it {holder} the buffer {sanitize(name)}, unlike the server: give server_app(..., buffers=...) the "
            "buffers of the clients' models, such as fs.flower.torch_buffers(module)"
        )
    for name, value in buffers.items():
        if (known[name].shape, known[name].dtype) != (value.shape, value.dtype):
            raise InvalidInput(
                f"its {name} is {value.dtype} of shape {value.shape}, the server's {known[name].dtype} of "
                f"{known[name].shape}"
            )
        if not np.isfinite(value).all():
            raise InvalidInput(f"its buffer {name} is not finite")
