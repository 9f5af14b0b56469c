"""A study of one's own as TOML: a configuration's task, run and methods, grids beside these, and claims."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import Field

from fedsolve.cli.configuration.config import (
    Configured,
    MethodSection,
    Positive,
    Section,
    Seed,
    parse_as,
    read_toml,
)
from fedsolve.cli.configuration.trust import admit
from fedsolve.core.errors import InvalidInput, unknown
from fedsolve.studies import rules
from fedsolve.studies.rules import Rule

RuleName = Literal["better", "better_than_all", "each_better", "close", "at_least_as_good"]
RULES: dict[str, Callable[..., Rule]] = {name: getattr(rules, name) for name in get_args(RuleName)}
"""What may decide a claim: functions of `fedsolve.studies.rules`."""


class StudySection(Section):
    """The section `[study]`: what is compared at the end, how rates are chosen, and the seeds.

    `metric` is a column of the evaluations, averaged over the last `last` rounds; `seeds` is how many (0, 1, ...) or
    which, of which the first alone is tuned on.
    """

    metric: str = "test_accuracy"
    last: Positive = 1
    select: str = "training-loss"
    seeds: Positive | list[Seed] = 5


class StudyMethod(MethodSection):
    """A section `[[method]]` of a study: its settings, and the grid over which it is tuned, if it is."""

    grid: dict[str, Any] = Field(default_factory=dict)


class ClaimSection(Section):
    """A section `[[claim]]`: what is said, and the rule that decides it with the rule's own arguments."""

    says: str
    theirs: str = ""
    rule: RuleName
    a: str | None = None
    b: str | None = None
    others: list[str] | None = Field(default=None, min_length=1)
    pairs: list[Annotated[list[str], Field(min_length=2, max_length=2)]] | None = Field(
        default=None, min_length=1
    )
    margin: float | None = Field(default=None, ge=0)

    @property
    def methods(self) -> Sequence[str]:
        """The labels of the methods that it names."""
        return [m for m in (self.a, self.b) if m is not None] + [
            *(self.others or ()),
            *(m for pair in self.pairs or () for m in pair),
        ]

    def build(self, problem: str) -> Rule:
        """The rule on a problem.

        Raises:
            InvalidInput: an argument that the rule needs and has not, or has and does not take.
        """
        takes = [p for p in inspect.signature(RULES[self.rule]).parameters if p not in ("problem", "which")]
        given = {name: getattr(self, name) for name in _ARGUMENTS if getattr(self, name) is not None}
        for name in takes:
            if name not in given:
                raise InvalidInput(f"{self.rule} needs {name}: it takes {', '.join(takes)}")
        for name in given:
            if name not in takes:
                raise InvalidInput(f"{self.rule} takes {', '.join(takes)} and no {name}")
        return RULES[self.rule](problem, **given)


_ARGUMENTS = ("a", "b", "others", "pairs", "margin")


class StudyConfig(Configured):
    """A whole study."""

    study: StudySection = StudySection()
    method: list[StudyMethod] = Field(min_length=2)  # pyright: ignore[reportIncompatibleVariableOverride] (frozen)
    claim: list[ClaimSection] = Field(default_factory=list)


def load_study(path: Path, trust: Sequence[str] | None = None) -> StudyConfig:
    """The study in a TOML file, whose claims fit its methods; the code that it names is imported.

    Raises:
        InvalidInput: as `parse` of a configuration; a claim that names no method of the study, or lacks an argument;
            an option of a run that a study has elsewhere; code that may not run. The file is named.
    """
    config = parse_study(read_toml(path), str(path))
    admit(config, path, trust)
    return config


def parse_study(table: Mapping[str, Any], origin: str) -> StudyConfig:
    """The same from plain data; `origin` is named in errors."""
    config = parse_as(StudyConfig, table, origin)
    labels = [method.shown for method in config.method]
    for number, claim in enumerate(config.claim, 1):
        for name in claim.methods:
            if name not in labels:
                raise InvalidInput(f"{origin}: claim {number}: {unknown('method', name, labels)}")
        try:
            claim.build("")
        except InvalidInput as error:
            raise InvalidInput(f"{origin}: claim {number}: {error}") from None
    if "seed" in config.run.model_fields_set:
        raise InvalidInput(f"{origin}: run.seed: a study has several, write them as study.seeds = [0, 1, 2]")
    if (config.run.devices or 1) > 1:
        raise InvalidInput(
            f"{origin}: run.devices = {config.run.devices}: a study runs on one device; leave it out"
        )
    return config
