"""What requests and replies must be before anything is done with them: facts, and every number. No Flower here."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedsolve.core import wire
from fedsolve.core.algorithm import Algorithm, name_of
from fedsolve.core.errors import InvalidInput, unknown
from fedsolve.core.types import MessageBounds, is_module
from fedsolve.deploy.host import all_finite, max_abs, norm
from fedsolve.deploy.message import (
    PARTS,
    EvaluateReply,
    EvaluateRequest,
    PartMetrics,
    Reply,
    Request,
    TrainReply,
)
from fedsolve.deploy.sanitize import sanitize
from fedsolve.deploy.signature import signature, signature_digest
from fedsolve.engine.compute.clients import MOST_STEPS
from fedsolve.methods.compression.compressors import is_compressed

_AGREE = 0.01  # a sum of squares in float32 on another machine, relative


class TooLarge(InvalidInput):
    """The numbers of a reply are not finite, beyond a fixed bound or too large to be summed over a cohort."""


def decode_reply(reply: TrainReply, zero_message: Any) -> Any:
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
        received: (message as it is reduced, the client's next state).
        norm_bound: largest norm that is believed, None for any.
        cohort: clients that may send as much.
        dtype: the run's floating-point type.
        is_noisy: whether the client added noise, so that its numbers do not follow from one another.
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
    """Raise `InvalidInput` if a number of a message is not what its field says that it must be (`MessageBounds`)."""
    # What a number is of the client update is computed here and compared: rounding may differ, a false claim does not
    # pass, unless the update is compressed. `delta` is the client update that the message is sent with, if it has
    # none itself.
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


def _check_claim(name: str, value: Any, claim: MessageBounds, delta: Any) -> None:
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


# What the facts of requests and replies must be before anything is done with them. No Flower here.


MOST_EXAMPLES = 2**31 - 1
"""The largest number of examples that is believed of a client: simulations count in 32 bits, too."""
MOST_METRICS = 32
_MOST = 2**31 - 1
_MORE = 2  # times the examples that it trains on: a loader may leave some out
_MOST_COUNT = 2**53
"""Parts of examples, such as tokens, that are counted exactly."""


def check_request(request: Request) -> None:
    """Raise `InvalidInput`, naming the first, unless the facts of a request are in their ranges."""
    if len(request.key) != 2:
        raise InvalidInput(f"its key has {len(request.key)} words, not 2")
    for name, value, least, most in _ranges(request):
        if type(value) is not int or not least <= value <= most:
            raise InvalidInput(
                f"its {name} is {sanitize(repr(value), 80)}, not an integer from {least} to {most}"
            )
    if isinstance(request, EvaluateRequest):
        if not check_metric_names(request.metrics):
            raise InvalidInput("it asks for no metric")
        if request.summed_parts not in (None, b"train", " ".join(PARTS).encode()):
            raise InvalidInput(f"it asks for metrics of {sanitize(request.summed_parts, 80)}")
        if (request.solver is None) != (request.steps == 0):
            raise InvalidInput(f"it asks for {request.steps} steps, and a solver is due with steps alone")


def _ranges(request: Request) -> Iterator[tuple[str, Any, int, int]]:
    # The name, the value, the least and the most of each number of a request.
    yield "round", request.round, 0, _MOST - 1
    yield "population", request.population, 1, _MOST
    yield "client", request.client, 0, request.population - 1
    yield "last_used_round", request.last_used_round, -1, request.round - 1
    if isinstance(request, EvaluateRequest):
        yield "steps", request.steps, 0, MOST_STEPS
    for word in request.key:
        yield "key", word, 0, 2**32 - 1


def check_addressed(reply: Reply, experiment: str, round: int, client: int) -> None:
    """Raise `InvalidInput` unless a reply answers this round's request to this client."""
    for name, wanted in (("experiment", experiment), ("round", round), ("client", client)):
        if (given := getattr(reply, name)) != wanted:
            raise InvalidInput(f"it is of {name} {sanitize(given)}, not of {wanted}")


def check_examples(examples: Any) -> None:
    """Raise `InvalidInput` unless a number of examples is whole and within its bounds."""
    if isinstance(examples, bool) or not isinstance(examples, int):
        raise InvalidInput(f"its number of examples is {sanitize(repr(examples))}, not an integer")
    if not 1 <= examples <= MOST_EXAMPLES:
        raise InvalidInput(f"it counts {sanitize(examples)} examples, not 1 to {MOST_EXAMPLES:,}")


def check_train_reply(reply: TrainReply, experiment: str, round: int, client: int) -> None:
    """Raise `InvalidInput` unless a reply answers this round's request to this client, and its facts can be."""
    check_addressed(reply, experiment, round, client)
    check_examples(reply.examples)


def check_evaluate_reply(reply: EvaluateReply, request: EvaluateRequest, declared: int | None = None) -> None:
    """Raise `InvalidInput` unless a reply is one to this request, and every number of it can be believed."""
    # `declared` are the training examples by which it counts in training; None if it never said.
    check_addressed(reply, request.experiment, request.round, request.client)
    if reply.steps != request.steps:
        raise InvalidInput(f"it is of {sanitize(reply.steps)} steps, not of {request.steps}")
    if "train" not in reply.parts:
        raise InvalidInput("it lacks train: what the client measured on the examples that it trains on")
    for part, metrics in reply.parts.items():
        check_examples(metrics.examples)
        if part == "train" and declared is not None and metrics.examples > _MORE * declared:
            raise InvalidInput(
                f"it measures {metrics.examples:,} training examples, and it trains on {declared:,}"
            )
        for name, sums in metrics.sums.items():
            try:
                sums.metric.check_sums(sums.values, metrics.examples)
            except InvalidInput as error:
                raise InvalidInput(f"its {part} {name} has {error}") from None
        for name, mean in metrics.means.items():
            _check_mean(f"{part} {name}", mean, metrics.counts[name], metrics)


def _check_mean(what: str, mean: object, count: object, metrics: PartMetrics) -> None:
    if type(count) not in (int, float) or not (math.isnan(count) or 0 <= count <= _MOST_COUNT):  # pyright: ignore
        raise InvalidInput(f"its {what} is a mean over {sanitize(repr(count), 80)}, which is no count")
    if type(mean) is not float or (count and not math.isfinite(mean)):
        raise InvalidInput(f"its {what} is {sanitize(repr(mean), 80)}, no finite number")
    if what.endswith(" loss") and type(count) is int and count != metrics.examples:
        raise InvalidInput(f"its {what} is a mean over {count} of its {metrics.examples} examples")


def check_metric_names(names: object) -> tuple[str, ...]:
    if isinstance(names, str):
        names = names.replace(",", " ").split()
    if not isinstance(names, list | tuple) or not all(isinstance(n, str) and n for n in names):
        raise InvalidInput(
            f"client_metrics = {sanitize(repr(names), 80)} must be names of metrics, such as ('loss', 'accuracy'); "
            "metrics of fs.metrics are given to the oracles, as metrics={'auc': fs.metrics.AUC()}"
        )
    if len(set(names)) < len(names) or len(names) > MOST_METRICS:
        raise InvalidInput(
            f"client_metrics = {sanitize(names, 80)} must be different names, at most {MOST_METRICS}"
        )
    return tuple(names)


def check_known_metrics(request: EvaluateRequest, known: Collection[str] | None) -> None:
    """Raise `InvalidInput` if a client cannot measure a model by a metric that it is asked for."""
    for name in request.metrics:
        if known is not None and name not in known:
            raise unknown(f"metric of client {request.client}", sanitize(name, 80), known)


def check_unprotected(algorithm: Algorithm) -> None:
    """Raise `InvalidInput` if a method protects what its clients send: their own metrics would travel beside it."""
    if algorithm.traits.privacy and not algorithm.traits.secure_sums:
        raise InvalidInput(
            f"{name_of(algorithm)} protects client updates, and metrics of each client would reveal information about "
            "its examples: leave client_metrics out, and evaluate on the server's own examples"
        )


def check_buffers(algorithm: Algorithm, buffers: Mapping[str, Any] | None) -> None:
    """Raise `InvalidInput` if buffers would travel that a method keeps on clients."""
    if buffers and getattr(algorithm, "local_buffers", False):
        raise InvalidInput(
            f"{name_of(algorithm)} keeps buffers ({', '.join(buffers)}) on clients, and a deployment averages them: "
            "take a model without running statistics, such as one with GroupNorm, or Personal in its place"
        )


def protects(algorithm: Algorithm) -> bool:
    """Whether a method protects what clients send; then no buffer of theirs may be sent beside it."""
    return bool(algorithm.traits.privacy or algorithm.traits.secure_sums)


def check_still(algorithm: Algorithm, moving: Collection[str]) -> None:
    """Raise `InvalidInput` if a method protects what clients send, and training changes these buffers."""
    if moving and protects(algorithm):
        raise InvalidInput(
            f"{name_of(algorithm)} protects the parameters, not the buffers that training changes "
            f"({', '.join(sorted(moving))}): take GroupNorm in place of BatchNorm, or BatchNorm that stays in "
            "evaluation mode (.eval()) in a module that is in training mode"
        )
