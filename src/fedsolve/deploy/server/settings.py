"""What `server_app` can be told, also anew by the configuration of each run: each option is a field, written once."""

from __future__ import annotations

import dataclasses
import math
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import Field, fields
from typing import Any, Literal, TypeVar

import numpy as np

from fedsolve.config.signatures import P, about_of, option, options_class, shows
from fedsolve.core.algorithm import Algorithm, name_of
from fedsolve.core.errors import (
    SEED_BITS,
    InvalidInput,
    check_flag,
    check_integer,
    check_range,
    shown,
    unknown,
)
from fedsolve.core.sampling import Sampling, Uniform
from fedsolve.core.trees import as_array
from fedsolve.core.types import Params
from fedsolve.data.schema import Schema
from fedsolve.deploy.metrics import check_address
from fedsolve.deploy.reply_checks import check_metric_names, check_unprotected
from fedsolve.engine.simulated_time import check_outermost
from fedsolve.methods.robust.wrapper import fewest_messages
from fedsolve.results.callbacks import Callback, check_callbacks

# The options of an app are the fields of a dataclass, each with its words and its check: a new one is one field.
#
# The app's signature and docstring follow from them; an argument that it does not have is refused in one line.


T = TypeVar("T")


def _no_argument(function: str, name: str, known: Iterable[str]) -> InvalidInput:
    return unknown(f"argument of {function}", name, known)


def shows_fields(options: Any) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Put the fields of a dataclass in the place of `**options`, as `shows` does with words of several lines."""
    return shows(fields(options), _no_argument, _words)


def _words(option: Field[Any]) -> str:
    # lines as they are indented below a function's `Args:`
    lines = textwrap.wrap(f"{option.name}: {about_of(option).text}", 112, break_on_hyphens=False)
    return ("\n" + 12 * " ").join(lines).removeprefix(f"{option.name}: ")


def named_arguments(function: Callable[P, T]) -> Callable[P, T]:
    """Make a function raise `InvalidInput` in place of `TypeError` for an argument that it does not have.

    >>> @named_arguments
    ... def area(*, width=1.0, height=1.0):
    ...     return width * height
    >>> area(widht=2.0)
    Traceback (most recent call last):
    ...
    fedsolve.InvalidInput: unknown argument of area 'widht': did you mean 'width'? Known: height, width
    """
    return shows((), _no_argument)(function)


Evaluate = Callable[[Params, dict[str, np.ndarray]], Mapping[str, float]]
"""(model, buffers) -> metrics, with the names that simulations use, such as test_accuracy."""


def _whole(least: int, none: str = "", bits: int = 31) -> Callable[[str, Any], Any]:
    return lambda name, value: check_integer(name, value, least, none=none, bits=bits)


def _number(*, infinite: bool = False, **bounds: Any) -> Callable[[str, Any], Any]:
    # A check of a number in its bounds; where it may be infinite, None passes too.
    def check(name: str, value: Any) -> Any:
        if not (infinite and (value is None or value == math.inf)):
            check_range(name, value, **bounds)
        return value

    return check


def _flag(name: str, value: Any) -> Any:
    check_flag(name, value)
    return value


def _folder(name: str, value: Any) -> Any:
    if not isinstance(value, str) or not value:
        raise InvalidInput(f"{name} = {value!r} must be the name of a folder")
    return value


def _shortfall(name: str, value: Any) -> Any:
    if value not in ("repeat", "skip"):
        raise InvalidInput(f"{name} = {value!r} must be 'repeat' or 'skip'")
    return value


def _one_of(kind: Any, what: str) -> Callable[[str, Any], Any]:
    def check(name: str, value: Any) -> Any:
        if value is not None and not isinstance(value, kind):
            raise InvalidInput(f"{name} = {shown(value)} must be {what} or None")
        return value

    return check


def _label(name: str, value: Any) -> Any:
    if value is not None and not (isinstance(value, str) and value.strip() and value.isprintable()):
        raise InvalidInput(f"{name} = {shown(value)} must be text of one line or None")
    return value


def _buffers(name: str, value: Any) -> Any:
    given = _one_of(Mapping, "a mapping from names to arrays")(name, value)
    for key, array in (given or {}).items():
        if not isinstance(key, str):
            raise InvalidInput(f"{name} has {shown(key)} where a name stands: give names as text")
        as_array(f"{name}: {key}", array)
    return value


@options_class
class Settings:
    """The options of `server_app`: see there what each means."""

    rounds: int = option("number of communication rounds, >= 1.", checked_by=_whole(1))
    population: int = option(
        "number of clients, >= 1; they are numbered from 0 by their nodes' `client-id`.", checked_by=_whole(1)
    )
    clients_per_round: int | None = option(
        "number of clients in a round, drawn uniformly, 1 .. population; None for all.",
        checked_by=_whole(1, none="all"),
        default=None,
    )
    sampling: Sampling | None = option(
        "client sampling (`fedsolve.sampling`), in place of `clients_per_round`.",
        checked_by=_one_of(Sampling, "one such as fs.sampling.Uniform(10)"),
        default=None,
        configurable=False,
    )
    seed: int = option(
        "random seed of cohorts and shuffles, >= 0.", checked_by=_whole(0, bits=SEED_BITS), default=0
    )
    buffers: Mapping[str, np.ndarray] | None = option(
        "buffers of the model by name, such as BatchNorm's statistics, which are averaged: `torch_buffers(module)`.",
        checked_by=_buffers,
        default=None,
        configurable=False,
    )
    initial: str | None = option(
        "folder of a finished run, or a model's file, whose model replaces `params` and `buffers`; a relative path "
        "starts where that of `out` does.",
        checked_by=lambda name, value: None if value in (None, "") else _folder(name, value),
        default=None,
    )
    schema: Schema | None = option(
        "schema of the clients' tables, kept with the model, which that of `initial` must equal; the job `statistics` "
        "writes it again with new constants.",
        checked_by=_one_of(Schema, "one such as fs.data.Schema.read('schema.toml')"),
        default=None,
        configurable=False,
    )
    evaluate: Evaluate | None = option(
        'function (model, buffers) -> metrics on the server, such as {"test_accuracy": 0.9}; None for the '
        "clients' metrics, or the losses of their local steps.",
        checked_by=_one_of(Callable, "a function of (model, buffers)"),
        default=None,
        configurable=False,
    )
    eval_every: int = option("number of rounds between evaluations, >= 1.", checked_by=_whole(1), default=1)
    client_metrics: str | Sequence[str] = option(
        "names of metrics of the clients' oracles, which all connected clients compute at each evaluation on "
        'their training and validation examples, such as ("loss", "accuracy") or "loss, accuracy"; () for '
        "none. Evaluations then have the columns of simulations: train_NAME, client_NAME_mean, _p10, _p90 and "
        "_worst, validation_NAME, and `clients_measured`, the number of clients that reported. Refused with "
        "private methods.",
        checked_by=lambda _, names: check_metric_names(names),
        default=(),
    )
    callbacks: Sequence[Callback] = option(
        "called after each evaluation, as in `fs.run`: `fs.callbacks.EarlyStopping`, `KeepBest`, functions of "
        "an `fs.callbacks.Evaluated`, and with `client_metrics` also `EachClient` and `FineTuning`.",
        checked_by=lambda _, callbacks: tuple(check_callbacks(callbacks)),
        default=(),
        configurable=False,
    )
    label: str | None = option(
        "the method's name in tables; default its own.", checked_by=_label, default=None, configurable=False
    )
    out: str = option(
        "output folder; a relative path starts at the folder in which the SuperLink was started.",
        checked_by=_folder,
        default="fedsolve-run",
    )
    resume: bool = option(
        "whether to continue from the checkpoint in `out`; without it a folder that holds a run is refused.",
        checked_by=_flag,
        default=False,
    )
    quorum: int | None = option(
        "number of clients that must be connected before the first round, 1 .. population; None for all.",
        checked_by=_whole(1, none="all"),
        default=None,
    )
    connect_seconds: float = option(
        "seconds to wait for these clients, and in a round for its cohort, to connect, > 0.",
        checked_by=_number(above=0),
        default=120.0,
    )
    round_seconds: float = option(
        "seconds to wait for the replies of a round, > 0.", checked_by=_number(above=0), default=600.0
    )
    min_replies: int | None = option(
        "number of valid replies that a round needs, 1 .. population; None for half of its cohort, rounded "
        "up, or the number that a robust reduction needs if it is larger.",
        checked_by=_whole(1, none="half of a cohort"),
        default=None,
    )
    grace: float | None = option(
        "seconds that a round stays open after `min_replies` valid replies, >= 0; None for `round_seconds`.",
        checked_by=_number(at_least=0, infinite=True),
        default=None,
    )
    shortfall: Literal["repeat", "skip"] = option(
        'handling of a round with fewer valid replies: "repeat" asks the clients without a valid reply again, '
        '"skip" leaves the model unchanged and continues with the next round.',
        checked_by=_shortfall,
        default="repeat",
    )
    repeats: int = option(
        "number of times that a round is repeated before the run ends, >= 0.", checked_by=_whole(0), default=3
    )
    over_select: float = option(
        "fraction of clients asked in addition to `clients_per_round`, >= 0: 0.3 asks 30 % more, and the first "
        "replies count.",
        checked_by=_number(at_least=0),
        default=0.0,
    )
    takeover: bool = option(
        "whether another node may take a client's number when the node that had it is no longer connected. "
        "A node without its own key (`--auth-supernode-private-key`) is a new node after each start.",
        checked_by=_flag,
        default=True,
    )
    norm_bound: float | None = option(
        "largest Euclidean norm of a valid message, > 0; None rejects messages whose norm is more than 100,000 "
        "times the usual norm of this and earlier rounds (docs/deployment.md).",
        checked_by=_number(above=0, infinite=True),
        default=None,
    )
    max_share: float | None = option(
        "largest fraction of a round's weights for one client, in (0, 1], if a method weighs by examples; "
        "None for no limit.",
        checked_by=_number(above=0, at_most=1, optional=True),
        default=None,
    )

    metrics_address: str | None = option(
        'where Prometheus can scrape the run while it goes on: a port of this machine, such as "9464", or a host '
        'and a port, such as "0.0.0.0:9464", with `fedsolve[monitor]`; None or "" for nowhere.',
        checked_by=check_address,
        default=None,
    )

    def __post_init__(self) -> None:
        for f in dataclasses.fields(self):
            object.__setattr__(self, f.name, about_of(f).check(f.name, getattr(self, f.name)))
        if self.sampling is not None and self.clients_per_round is not None:
            raise InvalidInput("give clients_per_round or sampling, not both")
        for name in ("quorum", "min_replies"):
            value = getattr(self, name)
            if value is not None and value > self.population:
                raise InvalidInput(f"{name} = {value} but the federation has {self.population} clients")

    def configurable(self) -> dict[str, Any]:
        """The options that a run's configuration may give anew, which are plain data."""
        options = dataclasses.fields(self)
        return {f.name: getattr(self, f.name) for f in options if about_of(f).configurable}

    def overridden(self, config: Mapping[str, Any]) -> Settings:
        """With what a run's configuration says instead; keys of other parts of the app are left alone.

        >>> Settings(rounds=5, population=3).overridden({"rounds": 9, "batch-size": 32}).rounds
        9
        """
        names = self.configurable()
        given = {key.replace("-", "_"): value for key, value in config.items()}
        return dataclasses.replace(self, **{k: v for k, v in given.items() if k in names})

    def replies_wanted(self, cohort: int) -> int:
        """Replies that end a round of so many clients: all, or where more are asked the first `clients_per_round`."""
        return min(cohort, self.clients_per_round or cohort) if self.over_select else cohort

    def replies_needed(self, wanted: int) -> int:
        """Replies that must count for a round to be used, of so many that are wanted."""
        return -(-wanted // 2) if self.min_replies is None else min(self.min_replies, wanted)

    def cohort_sampling(self, algorithm: Algorithm) -> Sampling:
        """How cohorts are drawn: as given, else uniformly; of more clients than needed where `over_select` says so."""
        if self.client_metrics:
            check_unprotected(algorithm)
        self._check_replies(algorithm)
        size = self.clients_per_round or self.population
        if not self.over_select:
            return self.sampling or Uniform(size)
        if self.clients_per_round is None:
            raise InvalidInput(
                f"over_select = {self.over_select} needs clients_per_round, to which it adds clients: give it"
            )
        if algorithm.traits.privacy:
            raise InvalidInput(
                f"over_select = {self.over_select}: {name_of(algorithm)} accounts for cohorts drawn at random, not for "
                "the clients that answer first: leave it out"
            )
        return Uniform(min(self.population, math.ceil(size * (1 + self.over_select))))

    def _check_replies(self, algorithm: Algorithm) -> None:
        # Refuse rounds that would end with fewer replies than the method's own reduction is meant for.
        reduction, fewest = algorithm.traits.reduction, math.ceil(float(fewest_messages(algorithm)))
        for name in ("min_replies", "clients_per_round"):
            value = getattr(self, name)
            if value is not None and value < fewest:
                raise InvalidInput(
                    f"{name} = {value} but {reduction!r} protects rounds of at least {fewest} replies: "
                    f"give at least {fewest}"
                )


def check_buffered(algorithm: Algorithm, settings: Settings) -> None:
    """Raise `InvalidInput` unless a method with a buffer can run with these settings; others pass."""
    check_outermost(algorithm, "on a federation")
    if not algorithm.traits.buffer:
        return
    name = name_of(algorithm)
    for setting, given in (
        ("sampling", settings.sampling),
        ("over_select", settings.over_select),
        ("buffers", settings.buffers),
        ("shortfall = 'skip'", settings.shortfall == "skip"),
    ):
        if given:
            raise InvalidInput(f"{name} has no synchronous rounds, which {setting} is for: leave it out")
    if algorithm.traits.buffer > settings.population:
        raise InvalidInput(
            f"buffer = {algorithm.traits.buffer} but the federation has {settings.population} clients, which have one "
            f"reply in it each: choose at most {settings.population}"
        )
