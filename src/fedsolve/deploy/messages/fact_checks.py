"""What the facts of requests and replies must be before anything is done with them. No Flower here."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from fedsolve.core.algorithm import Algorithm, name_of
from fedsolve.core.errors import InvalidInput, unknown
from fedsolve.deploy.messages.message import (
    PARTS,
    EvaluateReply,
    EvaluateRequest,
    PartMetrics,
    Reply,
    Request,
    TrainReply,
)
from fedsolve.deploy.messages.sanitize import sanitize
from fedsolve.engine.compute.clients import MOST_STEPS

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
    """The name, the value, the least and the most of each number of a request."""
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
    """Raise `InvalidInput` unless a reply is one to this request, and every number of it can be believed.

    Args:
        reply: what a client measured.
        request: what it was asked.
        declared: the training examples by which it counts in training; None if it never said.
    """
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
    """Names of metrics as a tuple; of text, such as "loss, accuracy", its words.

    Raises:
        InvalidInput: what is no name, a name twice, or too many.
    """
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


def check_known_metrics(request: EvaluateRequest, known: Collection[str]) -> None:
    """Raise `InvalidInput` if a client cannot measure a model by a metric that it is asked for."""
    for name in request.metrics:
        if name not in known:
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
