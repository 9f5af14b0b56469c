"""What a run on a federation can be told, by its app and anew by the configuration of each run."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from fedsolve.core.algorithm import Algorithm, name_of
from fedsolve.core.checks import check_flag, check_integer, check_range
from fedsolve.core.errors import InvalidInput
from fedsolve.core.sampling import Sampling, Uniform
from fedsolve.deploy.messages.fact_checks import check_metric_names, check_unprotected
from fedsolve.methods.robust.cohorts import fewest_messages


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The options of `server_app` that a run's configuration may change: see there what each means."""

    rounds: int
    population: int
    clients_per_round: int | None = None
    seed: int = 0
    out: str = "fedsolve-run"
    resume: bool = False
    eval_every: int = 1
    client_metrics: str | Sequence[str] = ()
    quorum: int | None = None
    connect_seconds: float = 120.0
    round_seconds: float = 600.0
    min_replies: int | None = None
    grace: float | None = None
    shortfall: Literal["repeat", "skip"] = "repeat"
    repeats: int = 3
    over_select: float = 0.0
    takeover: bool = True
    norm_bound: float | None = None
    max_share: float | None = None

    def __post_init__(self) -> None:
        for name, least, none in (
            ("rounds", 1, ""),
            ("population", 1, ""),
            ("seed", 0, ""),
            ("eval_every", 1, ""),
            ("repeats", 0, ""),
            ("clients_per_round", 1, "all"),
            ("quorum", 1, "all"),
            ("min_replies", 1, "half of a cohort"),
        ):
            object.__setattr__(self, name, check_integer(name, getattr(self, name), least, none=none))
        object.__setattr__(self, "client_metrics", check_metric_names(self.client_metrics))
        check_range("connect_seconds", self.connect_seconds, above=0)
        check_range("round_seconds", self.round_seconds, above=0)
        check_range("over_select", self.over_select, at_least=0)
        check_range("max_share", self.max_share, above=0, at_most=1, optional=True)
        if self.grace is not None and self.grace != math.inf:
            check_range("grace", self.grace, at_least=0)
        if self.norm_bound is not None and self.norm_bound != math.inf:
            check_range("norm_bound", self.norm_bound, above=0)
        if self.shortfall not in ("repeat", "skip"):
            raise InvalidInput(f"shortfall = {self.shortfall!r} must be 'repeat' or 'skip'")
        for name in ("resume", "takeover"):
            check_flag(name, getattr(self, name))
        if not isinstance(self.out, str) or not self.out:
            raise InvalidInput(f"out = {self.out!r} must be the name of a folder")
        for name in ("quorum", "min_replies"):
            value = getattr(self, name)
            if value is not None and value > self.population:
                raise InvalidInput(f"{name} = {value} but the federation has {self.population} clients")

    def overridden(self, config: Mapping[str, Any]) -> Settings:
        """With what a run's configuration says instead; keys of other parts of the app are left alone.

        >>> Settings(rounds=5, population=3).overridden({"rounds": 9, "batch-size": 32}).rounds
        9
        """
        names = {f.name for f in dataclasses.fields(self)}
        given = {key.replace("-", "_"): value for key, value in config.items()}
        return dataclasses.replace(self, **{k: v for k, v in given.items() if k in names})

    def replies_wanted(self, cohort: int) -> int:
        """Replies that end a round of so many clients: all, or where more are asked the first `clients_per_round`."""
        return min(cohort, self.clients_per_round or cohort) if self.over_select else cohort

    def replies_needed(self, wanted: int) -> int:
        """Replies that must count for a round to be used, of so many that are wanted."""
        return -(-wanted // 2) if self.min_replies is None else min(self.min_replies, wanted)

    def sampling(self, given: Sampling | None, algorithm: Algorithm) -> Sampling:
        """How cohorts are drawn: as given, else uniformly; of more clients than needed where `over_select` says so.

        Raises:
            InvalidInput: settings that contradict one another or the method.
        """
        if self.client_metrics:
            check_unprotected(algorithm)
        self._check_replies(algorithm)
        size = self.clients_per_round or self.population
        if given is not None and self.clients_per_round is not None:
            raise InvalidInput("give clients_per_round or sampling, not both")
        if not self.over_select:
            return given or Uniform(size)
        if self.clients_per_round is None:
            raise InvalidInput(
                f"over_select = {self.over_select} asks more clients than clients_per_round: give that"
            )
        if algorithm.traits.privacy:
            raise InvalidInput(
                f"over_select = {self.over_select}: {name_of(algorithm)} accounts for cohorts drawn at random, not for "
                "those who answer first: leave it out"
            )
        return Uniform(min(self.population, math.ceil(size * (1 + self.over_select))))

    def _check_replies(self, algorithm: Algorithm) -> None:
        """Refuse rounds that would end with fewer replies than the method's own reduction is meant for."""
        reduction, fewest = algorithm.traits.reduction, math.ceil(float(fewest_messages(algorithm)))
        for name in ("min_replies", "clients_per_round"):
            value = getattr(self, name)
            if value is not None and value < fewest:
                raise InvalidInput(
                    f"{name} = {value} but {reduction!r} protects rounds of at least {fewest} replies: "
                    f"give at least {fewest}"
                )
