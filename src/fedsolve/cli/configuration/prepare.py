"""From a configuration to the objects that run or sweep: task, algorithms, sampling, grid, every default filled in."""

from __future__ import annotations

import dataclasses
import inspect
import re
import shlex
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from fedsolve.cli.configuration.config import Config, MethodSection, RunSection, SweepSection
from fedsolve.cli.configuration.values import DRAWN, axis_values
from fedsolve.config.build import arguments, build, inline_toml
from fedsolve.config.weighting import check_one_weighting, check_weighs
from fedsolve.core.algorithm import Algorithm
from fedsolve.core.errors import InvalidInput, unknown
from fedsolve.core.sampling import Bernoulli
from fedsolve.data.partitions import Partition
from fedsolve.engine.compute.casting import start_key
from fedsolve.engine.compute.layout import LocalStep, chunk_size, mesh_of
from fedsolve.engine.compute.sharding import CLIENT_AXIS
from fedsolve.engine.load import begin_from, kept_start
from fedsolve.engine.options import RunOptions
from fedsolve.engine.resolve import choose_devices, choose_sampling
from fedsolve.engine.sweep_grid import GRID, Search, SweepOptions, check_grid, check_seeds
from fedsolve.geometry.diagnostics import Point
from fedsolve.results.history import Setting
from fedsolve.results.metrics import AVERAGED
from fedsolve.results.sweep import Selection, points_of
from fedsolve.tasks.catalogue import build as build_task
from fedsolve.tasks.catalogue import entry
from fedsolve.tasks.task import Task

# The settings of a method, which `config.build.build` checks: with their defaults, and at one setting of a grid.


def with_defaults(name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """A method's settings in the order of its signature; an argument without a default is left out."""
    known = arguments(name)
    defaults = {k: a.default for k, a in known.items() if isinstance(a.default, bool | int | float | str)}
    return {k: settings.get(k, defaults.get(k)) for k in known if k in settings or k in defaults}


def build_method(method: MethodSection, values: Mapping[str, Any] | None = None) -> Algorithm:
    return build(method.name, with_values(method.settings, values or {}))


def with_values(settings: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """A method's settings at one setting of the grid; `psi.weight` is a key of the table `psi`, 'none' leaves out.

    >>> with_values({"psi": {"name": "L1"}, "tau": 1.0}, {"psi.weight": 0.1, "tau": "none"})
    {'psi': {'name': 'L1', 'weight': 0.1}}
    """
    found = dict(settings)
    for axis, value in values.items():
        head, dot, key = axis.partition(".")
        if dot:
            table = found.get(head)
            if not isinstance(table, Mapping):
                raise InvalidInput(
                    f"the axis {axis} needs {head} as a table: give --set {head}={{name=...}} or the like"
                )
            rest = {k: v for k, v in table.items() if k != key}
            found[head] = rest if value in ("none", None) else {**rest, key: value}
        elif value in ("none", None):
            found.pop(axis, None)
        else:
            found[axis] = value
    return found


def build_grid(
    method: MethodSection, given: Mapping[str, Any], seeds: int, search: Search = GRID
) -> dict[str, Any]:
    """The values of each axis of a method's grid, or its range; each value that is tried builds the method."""
    known = arguments(method.name)
    for axis in given:
        if axis.partition(".")[0] not in known:
            raise unknown(f"setting of {method.name}", axis, known)
    grid: dict[str, Any] = dict(given)
    for axis, values in given.items():
        if search.trials is None or not (isinstance(values, str) and DRAWN.fullmatch(values)):
            grid[axis] = axis_values(f"grid: {axis}", values)
    tried = check_grid(grid, seeds, search) if grid else {}
    for axis, values in tried.items():
        if "none" in values and axis in known and known[axis].default is not None:
            raise InvalidInput(f"grid: {axis}: none is not allowed; give numbers")
    first = {axis: values[0] for axis, values in tried.items()}
    for axis, values in tried.items():
        for value in values:
            build_method(method, first | {axis: value})
    return grid


def seed_list(given: int | list[int]) -> Sequence[int]:
    """Seeds from how many (0, 1, ...) or which."""
    if isinstance(given, int):
        return range(min(given, sys.maxsize))  # no list: that it is too long is found later, with the grid
    seeds = given
    if not seeds:
        raise InvalidInput(
            "seeds = []: give at least one, such as seeds = [0], or how many, such as seeds = 3"
        )
    if len(set(seeds)) < len(seeds):
        raise InvalidInput(f"seeds = {seeds}: a seed comes twice")
    return seeds


def with_one_weighting(config: Config) -> Config:
    """The weighting of all methods, if there is one, among the settings of each method that takes it."""
    if config.weighting is None:
        return config
    methods = []
    for method in config.method:
        own = method.settings.get("weighting", config.weighting)
        check_one_weighting(method.shown, own, config.weighting)
        taken = {"weighting": own} if "weighting" in arguments(method.name) else {}
        methods.append(method.model_copy(update={"settings": method.settings | taken}))
    return config.model_copy(update={"method": methods})


def untuned_note(config: Config) -> list[str]:
    # the defaults suit no task in particular
    named = [m for m in config.method if _tunable(m.settings) == _tunable(with_defaults(m.name, {}))]
    if not named:
        return []
    swept = next((m.name for m in named if "client_lr" in m.settings), None)
    axis = "client_lr=1e-3:10:9log" if swept else "AXIS=VALUES"
    return [
        f"at default settings, not tuned for {config.task}: {', '.join(m.shown for m in named)}; "
        f"tune before comparing: fedsolve sweep {config.task} {swept or named[0].name} --grid {axis}"
    ]


def _tunable(settings: Mapping[str, Any]) -> dict[str, Any]:
    # the weighting chooses the objective: it is not tuned
    return {key: value for key, value in settings.items() if key != "weighting"}


_KEYS = [f.name for f in dataclasses.fields(RunOptions) if f.name in RunSection.model_fields]


@dataclass(frozen=True)
class Prepared:
    """What a configuration describes, ready to run, with every default filled in: an algorithm for each of its methods.

    The `seeds` are of each method; None for the one of the options.
    """

    config: Config
    task: Task
    algorithms: tuple[Algorithm, ...]
    options: RunOptions
    seeds: tuple[int, ...] | None

    @property
    def rounds(self) -> int:
        return self.options.rounds * len(self.seeds or (0,))

    def settings(self, method: MethodSection) -> dict[str, Setting]:
        """The resolved configuration of one method as flat text and numbers, for reports."""
        run = self.config.run.model_dump(exclude_none=True)
        found = {"algorithm": method.name, **run, **method.settings}
        found |= {f"task.{name}": value for name, value in self.config.task_options.items()}
        return {k: v if isinstance(v, Setting) else _inline(v) for k, v in found.items()}


def prepare(config: Config, resumed: Path | None = None) -> Prepared:
    """Build everything a configuration names, and fill in its defaults; `resumed` is the folder of one that goes on."""
    config = with_one_weighting(config)
    seeds = None if config.seeds is None else check_seeds(config.seeds)
    algorithms = tuple(map(build_method, config.method))
    for method, algorithm in zip(config.method, algorithms, strict=True):
        if config.weighting is not None:
            check_weighs(method.shown, algorithm, config.weighting, "--weighting {}")
    # devices first: a mesh says how many, and without either the layout of a round chooses them by the task
    mesh = mesh_of(config.run.devices, config.run.mesh)
    devices = mesh.size if config.run.mesh is None else None
    task = build_task(config.task, **config.task_options)
    if config.validation is not None:
        task = task.hold_out(config.validation)
    if (start := kept_start(resumed) or config.run.start) is not None:
        task = begin_from(task, start, config.run.dtype)
    if config.run.devices is None and config.run.mesh is None:
        asked = run_options(config.run)
        devices, _ = choose_devices(asked, task, choose_sampling(asked, task))
    run = resolve_run(config.run.model_copy(update={"devices": devices}), task)
    options = run_options(run)
    sampling = choose_sampling(options, task)
    # what a method asks of a cohort, and of the model, is checked here, before there is a folder
    for algorithm in algorithms:
        algorithm.check(sampling, task.data.num_clients)
        _check_model(algorithm, task, run)
    resolved = config.model_copy(
        update={
            "task_options": task_defaults(config.task) | config.task_options,
            "run": run,
            "method": [
                MethodSection(name=m.name, label=m.shown, settings=with_defaults(m.name, m.settings))
                for m in config.method
            ],
            "seeds": None if seeds is None else list(seeds),
        }
    )
    return Prepared(resolved, task, algorithms, options, seeds)


def metrics_of(task: Task, algorithm: Algorithm, validation: bool = False) -> list[str]:
    """The columns of the evaluations of a method on a task; nothing is computed, their names follow from shapes."""
    # shapes alone: the names of diagnostics are the keys of what they return
    model = jax.eval_shape(task.init, jax.random.key(0))
    known = ["train_loss"]
    for measure in (*task.diagnostics, *algorithm.diagnostics()):
        known += jax.eval_shape(lambda p, m=measure: m(Point(p, jnp.zeros(()), p)), model)
    held_out = ["test"] * (task.test is not None) + ["unseen"] * (task.unseen is not None)
    held_out += ["validation"] * (validation or task.validation is not None)
    return known + [f"{part}_{name}" for part in held_out for name in _measures(task)]


def check_shown(metrics: Sequence[str] | None, task: Task, algorithm: Algorithm) -> None:
    measured = metrics_of(task, algorithm, validation=True)
    for name in metrics or ():
        base = name.removesuffix(AVERAGED).removeprefix("train_")
        if name not in measured and base not in _measures(task) and not name.startswith("client_"):
            raise unknown("metric", name, [*measured, *_measures(task)])


def _measures(task: Task) -> list[str]:
    columns = [name + suffix for name, f in task.metrics.items() for suffix in getattr(f, "columns", ("",))]
    return ["loss", *columns, *task.whole]


def task_defaults(name: str) -> dict[str, Any]:
    parameters = inspect.signature(entry(name).builder).parameters
    defaults = {option: _toml_default(p.default) for option, p in parameters.items()}
    return {option: value for option, value in defaults.items() if value is not None}


def resolve_run(run: RunSection, task: Task) -> RunSection:
    options = run_options(run).with_defaults(task)
    if options.sampling is None and options.clients_per_round is None:
        options = dataclasses.replace(options, clients_per_round=task.data.num_clients)
    with jax.enable_x64(options.dtype == "float64"):
        shapes, dtype = _shapes(task, options.dtype), jnp.dtype(options.dtype)
        step = LocalStep.of(task, shapes, dtype, options.local_work)
        devices = mesh_of(options.devices, options.mesh).shape[CLIENT_AXIS]
        chunk = chunk_size(
            options.chunk, step, choose_sampling(options, task), task.data.num_clients, devices
        )
    return run.model_copy(update={k: v for k, v in vars(options).items() if k in _KEYS} | {"chunk": chunk})


def run_options(run: RunSection) -> RunOptions:
    sampling = None if run.participation is None else Bernoulli(run.participation)
    return RunOptions(**{key: getattr(run, key) for key in _KEYS}, sampling=sampling)


def _check_model(algorithm: Algorithm, task: Task, run: RunSection) -> None:
    # a penalty or set that does not fit the model is refused before anything is written
    if algorithm.diagnostics():
        with jax.enable_x64(run.dtype == "float64"):
            algorithm.init(task.init(start_key(run.seed)))


def _shapes(task: Task, dtype: str) -> Any:
    with jax.enable_x64(dtype == "float64"):
        shapes = jax.eval_shape(task.init, jax.random.key(0))
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, jnp.dtype(dtype)), shapes)


def _toml_default(default: Any) -> Any:
    # a default as TOML can hold it; None if there is none or it cannot be written
    if isinstance(default, Partition):
        return {"name": default.name, **dataclasses.asdict(default)}  # type: ignore[call-overload]
    if isinstance(default, Path):
        return str(default)
    return default if isinstance(default, bool | int | float | str | dict) else None


def _inline(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k} = {_inline(v)}" for k, v in value.items()) + "}"
    return str(value)


# From a configuration to a sweep that can start: the grid checked, each value built once, defaults filled in.


@dataclass(frozen=True)
class PreparedSweep:
    """A sweep ready to run: `config` without the axes among the settings, and `run` at the grid's first setting."""

    config: Config
    run: Prepared

    @property
    def method(self) -> MethodSection:
        return self.config.method[0]

    @property
    def section(self) -> SweepSection:
        assert self.config.sweep is not None
        return self.config.sweep

    @property
    def grid(self) -> dict[str, Any]:
        return self.section.axes

    def algorithm(self, **values: Any) -> Algorithm:
        return build_method(self.method, values)

    def options(self) -> SweepOptions:
        section = self.section
        assert isinstance(section.seeds, list)
        return SweepOptions(
            run=run_options(self.config.run),
            seeds=tuple(section.seeds),
            selection=Selection.parse(section.select or ""),
            search=search_of(section),
            validation=section.validation,
            parallel_trials=section.parallel_trials,
            label=self.method.shown,
        )

    def settings(self) -> dict[str, Setting]:
        # what all trials share: no axis, no seed
        found = self.run.settings(self.method)
        hidden = {"seed", "devices", *(axis.partition(".")[0] for axis in self.grid)}
        if self.config.run.chunk is None:
            hidden.add("chunk")
        shared: dict[str, Setting] = {k: v for k, v in found.items() if k not in hidden}
        return shared | {"validation": self.section.validation}

    def command(self, values: Mapping[str, Any]) -> str:
        return _run_command(_run_at(self.config, values), self.run.task, self.grid)


def search_of(section: SweepSection) -> Search:
    kind, seed = section.search or "grid", section.search_seed or 0
    return Search(kind=kind, trials=section.trials, seed=seed, halving=section.halving)


def command_as_written(config: Config, values: Mapping[str, Any]) -> str:
    # the task is not known: its code is not imported, and all that the file has is written
    return _run_command(_run_at(config, values))


def _run_at(config: Config, values: Mapping[str, Any]) -> Config:
    # all seeds are named; a single run has the first
    assert config.sweep is not None
    seeds, swept = config.sweep.seeds, config.method[0]
    first = seeds[0] if isinstance(seeds, list) else 0
    method = swept.model_copy(update={"settings": with_values(swept.settings, values)})
    run = config.run.model_copy(update={"seed": first})
    return config.model_copy(update={"method": [method], "run": run, "sweep": None})


def _run_command(config: Config, task: Task | None = None, always: Collection[str] = ()) -> str:
    # settings in `always` are written; without the task nothing is known of defaults, and all is written
    method = config.method[0]
    words = ["fedsolve", "run", config.task, method.name]
    standard = {} if task is None else with_defaults(method.name, {})
    for key, value in method.settings.items():
        if key in always or standard.get(key) != value:
            words += ["--set", f"{key}={_shell_word(value)}"]
    options = {} if task is None else task_defaults(config.task)
    for key, value in config.task_options.items():
        if options.get(key) != value and key != "data_dir":
            words += ["--task-set", f"{key}={_shell_word(value)}"]
    if "data_dir" in config.task_options:
        words += ["--data-dir", str(config.task_options["data_dir"])]
    given = config.run.model_dump(exclude_none=True, exclude={"chunk"})
    standard_run = RunSection(rounds=config.run.rounds)
    run = standard_run if task is None else resolve_run(standard_run, task)
    usual = run.model_dump(exclude_none=True, exclude={"rounds"})
    for key, value in given.items():
        if usual.get(key) != value:
            words += ["--from" if key == "start" else f"--{key.replace('_', '-')}", str(value)]
    return shlex.join(words)


def _shell_word(value: Any) -> str:
    # a word without quotes
    # TOML would read these words as other values
    word = isinstance(value, str) and re.fullmatch(r"[A-Za-z_][\w-]*", value)
    return value if word and value not in ("true", "false", "nan", "inf") else inline_toml(value)


def prepare_sweep(config: Config, resumed: Path | None = None) -> PreparedSweep:
    """Check the grid, build the method once for each value of each axis, and fill in all defaults."""
    config = with_one_weighting(config).model_copy(update={"weighting": None})  # an axis may replace it
    section, method = config.sweep, config.method[0]
    assert section is not None
    # written out: config.toml says by what the best setting is chosen
    standard = Selection.standard(config.run.rounds)
    if section.select is None:
        section = section.model_copy(update={"select": f"{standard.metric}:{standard.last}"})
    if (config.run.devices or 1) > 1:
        raise InvalidInput(f"run.devices = {config.run.devices}: a sweep runs on one device; leave it out")
    seeds = seed_list([config.run.seed] if section.seeds is None else section.seeds)
    search = search_of(section)
    grid = build_grid(method, section.grid, len(seeds), search)
    tried = check_grid(grid, len(seeds), search)
    first = {axis: values[0] for axis, values in tried.items()}
    at_first = method.model_copy(update={"settings": with_values(method.settings, first)})
    run = config.run.model_copy(update={"devices": 1})
    prepared = prepare(config.model_copy(update={"method": [at_first], "run": run, "sweep": None}), resumed)
    _check_rule(section, prepared)
    settings, options = len(points_of(tried, search.kind)), prepared.options
    search.stops(settings, options.rounds, options.eval_every or 1)
    if section.validation is not None:
        prepared.task.hold_out(section.validation)
    resolved = prepared.config.method[0]
    kept = _without_axes(method.settings, resolved.settings, grid)
    whole = prepared.config.model_copy(
        update={
            "method": [resolved.model_copy(update={"settings": kept})],
            "run": prepared.config.run.model_copy(update={"chunk": config.run.chunk, "seed": 0}),
            "sweep": section.model_copy(update={"grid": grid, "seeds": list(seeds)}),
        }
    )
    return PreparedSweep(whole, prepared)


def _check_rule(section: SweepSection, prepared: Prepared) -> None:
    # what selects the best setting has to be measured
    metric = Selection.parse(section.select or "").metric
    if metric.startswith("validation_") and section.validation is None and prepared.task.validation is None:
        raise InvalidInput(
            f"the rule '{section.select}' needs examples held out of training: give --validation 0.1"
        )
    measured = metrics_of(prepared.task, prepared.algorithms[0], section.validation is not None)
    if metric not in measured:
        raise unknown("metric of the selection", metric, measured)


def _without_axes(
    given: Mapping[str, Any], resolved: Mapping[str, Any], grid: Mapping[str, Any]
) -> dict[str, Any]:
    # a table of which an axis has one key stays as it was given
    heads = {axis: axis.partition(".")[0] for axis in grid}
    kept = {key: value for key, value in resolved.items() if key not in heads.values()}
    tables = [head for axis, head in heads.items() if axis != head and head in given]
    return kept | {head: given[head] for head in tables}
