"""Whether questions to clients, and their answers, can be used: every fact is checked first. No Flower here."""

from __future__ import annotations

import math

from fedsolve.core.algorithm import Algorithm, name_of
from fedsolve.core.errors import InvalidInput
from fedsolve.deploy.messages.measured import Answer, Measured, Question
from fedsolve.deploy.messages.order_checks import check_number
from fedsolve.deploy.messages.plain_text import printable
from fedsolve.deploy.messages.validation import check_addressed, check_examples
from fedsolve.engine.compute.clients import MOST_STEPS

MOST_METRICS = 32
_MOST = 2**31 - 1
_MOST_COUNT = 2**53
"""Parts of examples, such as tokens, that are counted exactly."""


def check_metric_names(names: object) -> tuple[str, ...]:
    """Names of metrics as a tuple; of text, such as "loss, accuracy", its words.

    Raises:
        InvalidInput: what is no name, a name twice, or too many.
    """
    if isinstance(names, str):
        names = names.replace(",", " ").split()
    if not isinstance(names, list | tuple) or not all(isinstance(n, str) and n for n in names):
        raise InvalidInput(
            f"client_metrics = {printable(repr(names), 80)} must be names of metrics, such as ('loss', 'accuracy')"
        )
    if len(set(names)) < len(names) or len(names) > MOST_METRICS:
        raise InvalidInput(
            f"client_metrics = {printable(names, 80)} must be different names, at most {MOST_METRICS}"
        )
    return tuple(names)


def check_unprotected(algorithm: Algorithm) -> None:
    """Raise `InvalidInput` if a method protects what its clients send: their own metrics would travel beside it."""
    if algorithm.privacy:
        raise InvalidInput(
            f"{name_of(algorithm)} protects what clients send, and metrics of each client would tell of its examples "
            "beside that: leave client_metrics out, and let the server evaluate on examples of its own"
        )


def check_question(question: Question) -> None:
    """Raise `InvalidInput`, naming the first, unless the facts of a question are in their ranges."""
    if len(question.key) != 2:
        raise InvalidInput(f"its key has {len(question.key)} words, not 2")
    for name, value, least, most in (
        ("round", question.round, 0, _MOST - 1),
        ("population", question.population, 1, _MOST),
        ("client", question.client, 0, question.population - 1),
        ("last_used_round", question.last_used_round, -1, question.round - 1),
        ("steps", question.steps, 0, MOST_STEPS),
        *(("key", word, 0, 2**32 - 1) for word in question.key),
    ):
        check_number(name, value, least, most)
    if not check_metric_names(question.metrics):
        raise InvalidInput("it asks for no metric")
    if (question.solver is None) != (question.steps == 0):
        raise InvalidInput(f"it asks for {question.steps} steps, and a solver is due with steps alone")


def check_answer(answer: Answer, question: Question) -> None:
    """Raise `InvalidInput` unless an answer is one to this question, and every number of it can be believed."""
    check_addressed(answer, question.experiment, question.round, question.client)
    if answer.steps != question.steps:
        raise InvalidInput(f"it is of {printable(answer.steps)} steps, not of {question.steps}")
    if "train" not in answer.parts:
        raise InvalidInput("it lacks train: what the client measured on the examples that it trains on")
    for part, found in answer.parts.items():
        check_examples(found.examples)
        for name, mean in found.means.items():
            _check_mean(f"{part} {name}", mean, found.counts[name], found)


def _check_mean(what: str, mean: object, count: object, found: Measured) -> None:
    if type(count) not in (int, float) or not (math.isnan(count) or 0 <= count <= _MOST_COUNT):  # pyright: ignore
        raise InvalidInput(f"its {what} is a mean over {printable(repr(count), 80)}, which is no count")
    if type(mean) is not float or (count and not math.isfinite(mean)):
        raise InvalidInput(f"its {what} is {printable(repr(mean), 80)}, no finite number")
    if what.endswith(" loss") and type(count) is int and count != found.examples:
        raise InvalidInput(f"its {what} is a mean over {count} of its {found.examples} examples")
