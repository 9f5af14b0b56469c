"""A study of one's own as TOML, and what it becomes: its problem, its methods with their grids, and its claims."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import Field

from fedsolve.cli.configuration.config import (
    Config,
    Configured,
    MethodSection,
    Positive,
    Section,
    Seed,
    parse_as,
    read_toml,
)
from fedsolve.cli.configuration.prepare import (
    build_grid,
    build_method,
    metrics_of,
    prepare,
    run_options,
    seed_list,
    with_defaults,
    with_one_weighting,
    with_values,
)
from fedsolve.cli.configuration.trust import check_trusted
from fedsolve.config.build import inline_toml
from fedsolve.core.errors import InvalidInput, unknown
from fedsolve.results.metrics import describe
from fedsolve.results.sweep import Selection
from fedsolve.studies import Method, Problem, Statement, Study, rules
from fedsolve.studies.pictures import Curves, Maps
from fedsolve.studies.rules import Rule
from fedsolve.tasks.catalogue import build as build_task
from fedsolve.tasks.task import Task

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
        return [m for m in (self.a, self.b) if m is not None] + [
            *(self.others or ()),
            *(m for pair in self.pairs or () for m in pair),
        ]

    def build(self, problem: str) -> Rule:
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
    study: StudySection = StudySection()
    method: list[StudyMethod] = Field(min_length=2)  # pyright: ignore[reportIncompatibleVariableOverride] (frozen)
    claim: list[ClaimSection] = Field(default_factory=list)


def parse_study(table: Mapping[str, Any], origin: str) -> StudyConfig:
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


# From a study's configuration to the study that is run: its problem, its methods with their grids, its plots.


def study_in(
    path: Path, trust: Sequence[str] | None = None, *, check: bool = False, data_dir: Path | None = None
) -> Study:
    """The study in a TOML file; with `check` its task and its methods at their first settings are built."""
    config = parse_study(read_toml(path), str(path))
    check_trusted(config, path, trust)
    with _error_place(path):
        seeds = seed_list(config.study.seeds)
        one_weighting = with_one_weighting(_as_config(config, config.method)).method
    methods: dict[str, Method] = {}
    for method, weighted in zip(config.method, one_weighting, strict=True):
        with _error_place(f"{path}: method {method.shown}"):
            grid = build_grid(weighted, method.grid, len(seeds))
            methods[method.shown] = _method(weighted, grid)
    with _error_place(path):
        problem = _problem(config)
        if check:
            _check(config, data_dir)
    name = config.task
    return Study(
        title=config.title or f"{', '.join(methods)} on {name}",
        summary=f"{len(methods)} methods on {name}, {len(seeds)} seeds.",
        problems={name: problem},
        methods=methods,
        seeds=tuple(seeds),
        statements=tuple(Statement(c.says, c.theirs, c.build(name)) for c in config.claim),
        pictures=_pictures(problem, methods),
        needs_data=False,
    )


def _check(config: StudyConfig, data_dir: Path | None) -> None:
    methods = []
    for m in config.method:
        first = {axis: values[0] for axis, values in build_grid(m, m.grid, 1).items()}
        methods.append(m.model_copy(update={"settings": with_values(m.settings, first)}))
    prepared = prepare(_as_config(config, methods, data_dir))
    for algorithm in prepared.algorithms:
        known = metrics_of(prepared.task, algorithm)
        for key, metric in (
            ("study.metric", config.study.metric),
            ("study.select", Selection.parse(config.study.select).metric),
        ):
            if metric not in known:
                raise unknown(f"metric of {key}", metric, known)


def _as_config(config: StudyConfig, methods: Any, data_dir: Path | None = None) -> Config:
    plain = [MethodSection(name=m.name, label=m.label, settings=m.settings) for m in methods]
    return Config(
        task=config.task,
        weighting=config.weighting,
        task_options=_task_options(config, data_dir),
        run=config.run.model_copy(update={"devices": 1}),
        method=plain,
    )


def _task_options(config: StudyConfig, data_dir: Path | None) -> dict[str, Any]:
    return config.task_options | ({} if data_dir is None else {"data_dir": str(data_dir)})


def _method(method: MethodSection, grid: Mapping[str, list[Any]]) -> Method:
    # over its grid; without one at the numbers that were given, or at the first of its defaults

    def make(**values: Any) -> Any:
        return build_method(method, values)

    if grid:
        axes = {axis: tuple(None if v == "none" else v for v in values) for axis, values in grid.items()}
        return Method(make, grid=axes)
    numbers = {k: v for k, v in method.settings.items() if _is_number(v)}
    if not numbers:
        defaults = with_defaults(method.name, method.settings).items()
        numbers = dict([(k, v) for k, v in defaults if _is_number(v)][:1])
    return Method(make, published=numbers)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _problem(config: StudyConfig) -> Problem:
    def task(data_dir: Path | None) -> Task:
        return build_task(config.task, **_task_options(config, data_dir))

    # rounds is always given: it has another default elsewhere
    given = {"rounds", *config.run.model_fields_set}
    written = {"sampling" if name == "participation" else name for name in given}
    options = {name: getattr(run_options(config.run), name) for name in sorted(written)}
    return Problem(
        config.task,
        ", ".join(
            f"{k} {v if isinstance(v, str) else inline_toml(v)}" for k, v in config.task_options.items()
        )
        or "as it is",
        task,
        options,
        metric=config.study.metric,
        last=config.study.last,
        select=config.study.select,
    )


def _pictures(problem: Problem, methods: Mapping[str, Method]) -> dict[str, Curves | Maps]:
    # curves, and maps of grids of two axes, those of equal grids side by side
    title = describe(problem.metric).title
    found: dict[str, Curves | Maps] = {"curves": Curves(f"{title} by round at the chosen settings.")}
    equal: dict[Any, list[str]] = {}
    for label, method in methods.items():
        if len(method.grid) == 2 and all(_is_number(v) for values in method.grid.values() for v in values):
            equal.setdefault(tuple(method.grid.items()), []).append(label)
    caption = f"{title} at every pair of settings; a dash diverged."
    maps = [Maps(caption, problem.metric, methods=tuple(labels)) for labels in equal.values()]
    return found | {f"grid{number}": one for number, one in enumerate(maps, 1)}


@contextmanager
def _error_place(where: object) -> Iterator[None]:
    try:
        yield
    except InvalidInput as error:
        raise InvalidInput(f"{where}: {error}") from None
