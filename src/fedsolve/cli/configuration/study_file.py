"""From a study's configuration to the study that is run: its problem, its methods with their grids, its plots."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedsolve.cli.configuration.config import Config, MethodSection
from fedsolve.cli.configuration.prepare import metrics_of, prepare, run_options
from fedsolve.cli.configuration.settings import (
    build_method,
    checked_grid,
    resolve_settings,
    which_seeds,
    with_one_weighting,
    with_values,
)
from fedsolve.cli.configuration.study_config import StudyConfig, StudyMethod, load_study
from fedsolve.config.build import inline_toml
from fedsolve.core.errors import InvalidInput, unknown
from fedsolve.results.metrics import describe
from fedsolve.results.sweep import Selection
from fedsolve.studies import Method, Problem, Statement, Study
from fedsolve.studies.pictures import Curves, Maps
from fedsolve.tasks.catalogue import build as build_task
from fedsolve.tasks.task import Task


def study_in(
    path: Path, trust: Sequence[str] | None = None, *, check: bool = False, data_dir: Path | None = None
) -> Study:
    """The study in a TOML file.

    Args:
        path: the file.
        trust: modules that it may name though they do not lie beside it.
        check: whether its task and all of its methods at their first settings are built, before anything runs.
        data_dir: the folder of the data of a task that is built.

    Raises:
        InvalidInput: something unknown, ill-typed or empty (the file and the key are named), or code that may not
            run; if it is checked, what does not fit together, or a metric that is not measured.
    """
    config = load_study(path, trust)
    with _at(path):
        seeds = which_seeds(config.study.seeds)
        one_weighting = with_one_weighting(_as_config(config, config.method)).method
    methods: dict[str, Method] = {}
    for method, weighted in zip(config.method, one_weighting, strict=True):
        with _at(f"{path}: method {method.shown}"):
            grid = checked_grid(weighted, method.grid, len(seeds))
            methods[method.shown] = _method(weighted, grid)
    with _at(path):
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
    """Raise `InvalidInput` if what a study names does not fit together, or its metrics are not measured."""
    methods = [m.model_copy(update={"settings": with_values(m.settings, _first(m))}) for m in config.method]
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


def _first(method: StudyMethod) -> dict[str, Any]:
    """The grid's first setting."""
    return {axis: values[0] for axis, values in checked_grid(method, method.grid, 1).items()}


def _method(method: MethodSection, grid: Mapping[str, list[Any]]) -> Method:
    """Over its grid; without one at the numbers that were given, or at the first of its defaults."""

    def make(**values: Any) -> Any:
        return build_method(method, values)

    if grid:
        axes = {axis: tuple(None if v == "none" else v for v in values) for axis, values in grid.items()}
        return Method(make, grid=axes)
    numbers = {k: v for k, v in method.settings.items() if _is_number(v)}
    if not numbers:
        defaults = resolve_settings(method.name, method.settings).items()
        numbers = dict([(k, v) for k, v in defaults if _is_number(v)][:1])
    return Method(make, published=numbers)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _problem(config: StudyConfig) -> Problem:
    def task(data_dir: Path | None) -> Task:
        return build_task(config.task, **_task_options(config, data_dir))

    options = {name: getattr(run_options(config.run), name) for name in _given(config)}
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


def _given(config: StudyConfig) -> list[str]:
    """The options of a run that are written in the file, and rounds, which has another default elsewhere."""
    given = {"rounds", *config.run.model_fields_set}
    return sorted({"sampling" if name == "participation" else name for name in given})


def _pictures(problem: Problem, methods: Mapping[str, Method]) -> dict[str, Curves | Maps]:
    """Curves, and maps of grids of two axes, those of equal grids side by side."""
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
def _at(where: object) -> Iterator[None]:
    """Errors within say where."""
    try:
        yield
    except InvalidInput as error:
        raise InvalidInput(f"{where}: {error}") from None
