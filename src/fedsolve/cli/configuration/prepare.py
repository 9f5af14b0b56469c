"""From a configuration to the objects that run: task, algorithms, sampling, and every default filled in."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from fedsolve.cli.configuration.config import Config, MethodSection, RunSection
from fedsolve.cli.configuration.settings import build_method, resolve_settings, with_one_weighting
from fedsolve.config.weighting import check_weighs
from fedsolve.core.algorithm import Algorithm
from fedsolve.core.errors import unknown
from fedsolve.core.sampling import Bernoulli
from fedsolve.data.partitions import Partition
from fedsolve.engine.compute.casting import start_key
from fedsolve.engine.compute.layout import chunk_size, mesh_of
from fedsolve.engine.compute.sharding import CLIENT_AXIS
from fedsolve.engine.options import RunOptions
from fedsolve.engine.resolve import choose_devices, choose_sampling
from fedsolve.engine.sweep_grid import check_seeds
from fedsolve.geometry.diagnostics import Point
from fedsolve.results.history import Setting
from fedsolve.results.metrics import AVERAGED
from fedsolve.tasks.catalogue import build as build_task
from fedsolve.tasks.catalogue import entry
from fedsolve.tasks.task import Task

_KEYS = [f.name for f in dataclasses.fields(RunOptions) if f.name in RunSection.model_fields]


@dataclass(frozen=True)
class Prepared:
    """What a configuration describes, ready to run.

    Attributes:
        config: the configuration with every default filled in.
        task: the task.
        algorithms: one for each method, in its order.
        options: the run's.
        seeds: of each method; None for the one of the options.
    """

    config: Config
    task: Task
    algorithms: tuple[Algorithm, ...]
    options: RunOptions
    seeds: tuple[int, ...] | None

    @property
    def rounds(self) -> int:
        """Rounds of a method, of all its seeds together."""
        return self.options.rounds * len(self.seeds or (0,))

    def settings(self, method: MethodSection) -> dict[str, Setting]:
        """The resolved configuration of one method as flat text and numbers, for reports."""
        run = self.config.run.model_dump(exclude_none=True)
        found = {"algorithm": method.name, **run, **method.settings}
        found |= {f"task.{name}": value for name, value in self.config.task_options.items()}
        return {k: v if isinstance(v, Setting) else _inline(v) for k, v in found.items()}


def prepare(config: Config) -> Prepared:
    """Build everything a configuration names, and fill in its defaults.

    Raises:
        InvalidInput: an unknown name (with the nearest match), or a value that does not fit.
    """
    config = with_one_weighting(config)
    seeds = None if config.seeds is None else check_seeds(config.seeds)
    algorithms = tuple(map(build_method, config.method))
    for method, algorithm in zip(config.method, algorithms, strict=True):
        if config.weighting is not None:
            check_weighs(method.shown, algorithm, config.weighting, "--weighting {}")
    mesh = mesh_of(config.run.devices, config.run.mesh)
    devices = mesh.size if config.run.mesh is None else None
    task = build_task(config.task, **config.task_options)
    if config.validation is not None:
        task = task.hold_out(config.validation)
    if config.run.devices is None and config.run.mesh is None:
        asked = run_options(config.run)
        devices, _ = choose_devices(asked, task, choose_sampling(asked, task))
    run = resolve_run(config.run.model_copy(update={"devices": devices}), task)
    options = run_options(run)
    sampling = choose_sampling(options, task)
    for algorithm in algorithms:
        algorithm.check(sampling, task.data.num_clients)
        _check_model(algorithm, task, run)
    resolved = config.model_copy(
        update={
            "task_options": task_defaults(config.task) | config.task_options,
            "run": run,
            "method": [
                MethodSection(name=m.name, label=m.shown, settings=resolve_settings(m.name, m.settings))
                for m in config.method
            ],
            "seeds": None if seeds is None else list(seeds),
        }
    )
    return Prepared(resolved, task, algorithms, options, seeds)


def metrics_of(task: Task, algorithm: Algorithm, validation: bool = False) -> list[str]:
    """The columns of the evaluations of a method on a task, with or without examples held out of training."""
    model = jax.eval_shape(task.init, jax.random.key(0))
    known = ["train_loss"]
    for measure in (*task.diagnostics, *algorithm.diagnostics()):
        known += jax.eval_shape(lambda p, m=measure: m(Point(p, jnp.zeros(()), p)), model)
    held_out = ["test"] * (task.test is not None) + ["unseen"] * (task.unseen is not None)
    held_out += ["validation"] * (validation or task.validation is not None)
    return known + [f"{part}_{name}" for part in held_out for name in _measures(task)]


def check_shown(metrics: Sequence[str] | None, task: Task, algorithm: Algorithm) -> None:
    """Raise `InvalidInput`, before anything runs, for a metric that no table of a task's runs can have."""
    measured = metrics_of(task, algorithm, validation=True)
    for name in metrics or ():
        base = name.removesuffix(AVERAGED).removeprefix("train_")
        if name not in measured and base not in _measures(task) and not name.startswith("client_"):
            raise unknown("metric", name, [*measured, *_measures(task)])


def _measures(task: Task) -> list[str]:
    """What a task evaluates on each set of examples."""
    columns = [name + suffix for name, f in task.metrics.items() for suffix in getattr(f, "columns", ("",))]
    return ["loss", *columns, *task.whole]


def task_defaults(name: str) -> dict[str, Any]:
    """The options of a task that have a default, and the default."""
    parameters = inspect.signature(entry(name).builder).parameters
    defaults = {option: _plain(p.default) for option, p in parameters.items()}
    return {option: value for option, value in defaults.items() if value is not None}


def resolve_run(run: RunSection, task: Task) -> RunSection:
    """A section `[run]` with what the task and its work decide filled in."""
    options = run_options(run).with_defaults(task)
    if options.sampling is None and options.clients_per_round is None:
        options = dataclasses.replace(options, clients_per_round=task.data.num_clients)
    with jax.enable_x64(options.dtype == "float64"):
        chunk = chunk_size(
            options.chunk,
            task,
            _shapes(task, options.dtype),
            jnp.dtype(options.dtype),
            batch_size=None if options.batch_size == "full" else options.batch_size,
            sampling=choose_sampling(options, task),
            devices=mesh_of(options.devices, options.mesh).shape[CLIENT_AXIS],
        )
    return run.model_copy(update={k: v for k, v in vars(options).items() if k in _KEYS} | {"chunk": chunk})


def run_options(run: RunSection) -> RunOptions:
    """The options that a section `[run]` describes; `participation` is a sampling."""
    sampling = None if run.participation is None else Bernoulli(run.participation)
    return RunOptions(**{key: getattr(run, key) for key in _KEYS}, sampling=sampling)


def _check_model(algorithm: Algorithm, task: Task, run: RunSection) -> None:
    """Refuse a penalty or set that does not fit the model before anything is written."""
    if algorithm.diagnostics():
        with jax.enable_x64(run.dtype == "float64"):
            algorithm.init(task.init(start_key(run.seed)))


def _shapes(task: Task, dtype: str) -> Any:
    """The model's parameters without values."""
    with jax.enable_x64(dtype == "float64"):
        shapes = jax.eval_shape(task.init, jax.random.key(0))
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, jnp.dtype(dtype)), shapes)


def _plain(default: Any) -> Any:
    """A default as TOML can hold it; None if there is none or it cannot be written."""
    if isinstance(default, Partition):
        return {"name": default.name, **dataclasses.asdict(default)}  # type: ignore[call-overload]
    if isinstance(default, Path):
        return str(default)
    return default if isinstance(default, bool | int | float | str | dict) else None


def _inline(value: Any) -> str:
    """A table on one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k} = {_inline(v)}" for k, v in value.items()) + "}"
    return str(value)
