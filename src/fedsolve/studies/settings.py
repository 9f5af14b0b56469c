"""The settings that the stored studies found: `fs.settings` lists them, `fs.tuned` makes a method with one."""

from __future__ import annotations

import gzip
import importlib.resources
import inspect
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from fedsolve.config.build import build, call_text
from fedsolve.config.catalogue import current_name
from fedsolve.core.building import Made, record_of
from fedsolve.core.errors import InvalidInput, check_known, nearest
from fedsolve.data.partitions import PARTITIONS, as_partition
from fedsolve.engine.identity import describe
from fedsolve.engine.options import RunOptions
from fedsolve.results.columns import number
from fedsolve.results.intervals import Interval
from fedsolve.tasks.catalogue import entry

if TYPE_CHECKING:
    from fedsolve.core.algorithm import Algorithm
    from fedsolve.tasks.task import Task

TABLE = "settings.json.gz"
"""What the package has of the studies, beside this module: `make generate` writes it in a clone, which has them."""
_MANY = 6  # names in an error


@dataclass(frozen=True, kw_only=True)
class KnownSetting:
    """What a stored study found for one method on one of its problems.

    Attributes:
        task: the task of the catalogue that the study builds; "" where it makes its own.
        task_options: the options of that task, without its seed and data folder; in words what no configuration holds.
        same_task: whether clients' examples, model, loss and batches are those of the catalogue's task.
        study, problem, label: the study's name, and what it calls the problem and the method.
        method: the method's name in the catalogue; "" of a study's own.
        settings: the best setting, all that is not a default, as `fs.build` takes it; of a study's own method its axes.
        within: the wrapper of the study, if any, within which the method is evaluated; it trains as without.
        grid: axis -> the values tried, or how many settings were drawn at random; empty where the study tried one.
        select, tuned_on: the criterion, as `fs.sweep` takes it, and how many seeds it is the mean of.
        edges: axis (of three values or more) -> the end at which the best lies, "low", "high" or, of drawn ones, "any".
        near_best: the share of the grid at most 5 % worse than the best (`Sweep.share_within`); None without a grid.
        run: options of `fs.run` that the study ran with; what is missing had its default.
        tuning: options that were others while the grid ran, such as fewer rounds.
        metric, last: what `score` is of: a column of the evaluations, its mean over so many last rounds.
        score: its mean over seeds, and Student's 95 % interval; None where every seed diverged.
        seeds, lost: how many seeds there are, and how many of them diverged or collapsed, which the mean leaves out.
        seconds: processor seconds of the grid and of the seeds together.
        made_with: versions, commit and machine, of every part.
        usable: whether `fs.tuned` can take it: of a method and a task of the catalogue, as they are there.
    """

    study: str
    problem: str
    label: str
    task: str = ""
    task_options: dict[str, Any] = field(default_factory=dict)
    same_task: bool = False
    method: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    within: str = ""
    grid: dict[str, list[Any] | int] = field(default_factory=dict)
    select: str = ""
    tuned_on: int = 0
    edges: dict[str, str] = field(default_factory=dict)
    near_best: float | None = None
    run: dict[str, Any]
    tuning: dict[str, Any] = field(default_factory=dict)
    metric: str
    last: int
    seeds: int
    lost: int = 0
    score: Interval | None = None
    seconds: float
    made_with: list[str]
    usable: bool

    def in_words(self) -> tuple[str, ...]:
        """The task, the setting, its score, how it was chosen, and its origin: a row of `fedsolve settings`."""
        task = call_text(self.task, self.task_options).removesuffix("()") or f"own task of {self.study}"
        changed = ", changed by the study" if self.task and not self.same_task else ""
        lost = f", {self.lost} diverged or collapsed" if self.lost else ""
        score = f"{self.metric} {self.score:.4g}, {self.seeds} seeds{lost}" if self.score else "diverged"
        grid = [(a, v) for a, v in self.grid.items() if isinstance(v, int) or len(v) > 1]
        spans = [f"{a} {v[0]} to {v[-1]}" if isinstance(v, list) else f"{a} drawn" for a, v in grid]
        count = math.prod(v if isinstance(v, int) else len(v) for v in self.grid.values())
        chosen = [f"best of {count} by {self.select}" if self.grid else "given, not tuned", *spans]
        chosen += [] if self.near_best is None else [f"{100 * self.near_best:.0f} % within 5 %"]
        chosen += [f"best at the {end} end of {axis}" for axis, end in self.edges.items()]
        origin = f"{self.study} ({self.problem}); {self.seconds:,.0f} s; {'; '.join(self.made_with)}"
        setting = call_text(self.method or self.label, self.settings)
        return task + changed, setting, score, "; ".join(chosen), origin


@cache
def known_settings() -> tuple[KnownSetting, ...]:
    # all of them, in the order of studies, problems and methods
    source = importlib.resources.files("fedsolve.studies") / TABLE
    rows = json.loads(gzip.decompress(source.read_bytes()))["settings"]
    scores = [Interval(*map(number, row.pop("score"))) if "score" in row else None for row in rows]
    return tuple(KnownSetting(**row, score=score) for row, score in zip(rows, scores, strict=True))


def settings(task: str | None = None, method: str | None = None) -> list[KnownSetting]:
    """The settings that the stored studies found: what was tried, what was best, and how sure that is.

    The studies lie in a clone of the repository; the package has this table of them.

    Args:
        task: of this task of the catalogue, or of this study; None for all.
        method: of this method of the catalogue, or what a study calls it; None for all.

    Returns:
        One for each method on each problem, in the order of the studies.

    Raises:
        InvalidInput: no study has that task, that method, or both together (the nearest are named).

    >>> {found.task for found in settings("lasso-1", "FedDualAvg")}
    {'lasso'}
    """
    every = known_settings()
    if task is not None:
        check_known("task or study", task, {n for s in every for n in (s.task, s.study) if n})
    found = [s for s in every if task is None or task in (s.task, s.study)]
    if method is None:
        return found
    name = current_name(method)
    check_known("method of the stored studies", name, {n for s in every for n in (s.method, s.label) if n})
    found = [s for s in found if name in (s.method, s.label)]
    if not found:
        raise _unknown_pair(name, str(task), every)
    return found


def _unknown_pair(method: str, task: str, every: Iterable[KnownSetting], how: str = "") -> InvalidInput:
    # the nearest pairs: other methods on the task, that of the nearest name first, and other tasks of the method
    methods = {s.method or s.label for s in every if task in (s.task, s.study)}
    near = nearest(method, methods)
    there = _few(sorted(methods, key=lambda name: (name != near, name)))
    tasks = _few(sorted({s.task or s.study for s in every if method in (s.method, s.label)}))
    return InvalidInput(
        f"no stored study has {method} on {task}{how}: {task} has {there}; {method} is known on {tasks}"
    )


def _few(names: list[str]) -> str:
    return ", ".join([*names[:_MANY], *[f"{len(names) - _MANY} more"] * (len(names) > _MANY)])


# One of them for a run: of the same method and the same task, whose options are those of the run.

# options of a task on which no setting depends: its draw, and where files lie
_ELSEWHERE = ("seed", "data_dir")
# options of a run of which the same is true
_LAYOUT = ("seed", "eval_every", "chunk", "devices", "mesh", "start")


def tuned(method: str, task: Task | str, **run: Any) -> Algorithm:
    """A method with the setting that a stored study found best for it on a task; prints what it took.

    Where several studies have the pair, that whose run is most like this one. The rates are those for the study's
    rounds and clients; `fs.sweep` tunes for others.

    Args:
        method: a name of the catalogue, such as "FedAdam" or "SCAFFOLD+FedAvg".
        task: a task that a builder of `fedsolve.tasks` made, or the name of one with its defaults.
        **run: the options that `fs.run` is going to have, such as rounds and clients_per_round.

    Returns:
        The method, as `fs.build` makes it.

    Raises:
        InvalidInput: no stored study has tuned that method on that task (the nearest pairs are named), or with these
            options (the difference is named).

    >>> method = tuned("FedYogi", "femnist", rounds=60, clients_per_round=10)  # doctest: +ELLIPSIS
    tuned: FedYogi(client_lr=0.0316227766, ...
    """
    for option in run:
        check_known("option of fs.run", option, RunOptions.__dataclass_fields__)
    made = Made(task, {}) if isinstance(task, str) else record_of(task)
    if made is None:
        raise InvalidInput(
            f"{task} is not as a builder of fedsolve.tasks makes it: give one that is, or a name"
        )
    found, words = choose(method, made.name, made.options, run | {"validation": made.validation}, {})
    print(words)
    return build(found.method, found.settings)


def choose(
    method: str, task: str, options: Mapping[str, Any], run: Mapping[str, Any], given: Mapping[str, Any]
) -> tuple[KnownSetting, str]:
    """The known setting for a run, whose own settings are `given`, and what is to be said of it."""
    usable = [s for s in known_settings() if s.usable]
    name = current_name(str(method))
    check_known("method with tuned settings", name, {s.method for s in usable})
    check_known("task with tuned settings", task, {s.task for s in usable})
    pair = [s for s in usable if (s.task, s.method) == (task, name)]
    if not pair:
        raise _unknown_pair(name, task, usable, " as it is")
    alike = [s for s in pair if not _other_options(s, options)]
    if not alike:
        near = min(pair, key=lambda s: len(_other_options(s, options)))
        other = _told(_other_options(near, options))
        raise InvalidInput(
            f"{name} was tuned on {task} in {near.study} with {other}: give these, or run a sweep"
        )
    conflicts = {id(s): sum(s.settings.get(key) != value for key, value in given.items()) for s in alike}
    found = min(alike, key=lambda s: (conflicts[id(s)], not s.grid, s.label != name, len(_other_run(s, run))))
    return found, _said(found, run, given, len(alike) - 1)


def _said(found: KnownSetting, run: Mapping[str, Any], given: Mapping[str, Any], others: int) -> str:
    _, setting, score, chosen, _ = found.in_words()
    replaced = {key: value for key, value in given.items() if found.settings.get(key) != value}
    lines = [f"tuned: {setting} of the study {found.study} ({found.problem}): {score}; {chosen}"]
    sets = (_work(found.run), _work(found.tuning), replaced)
    ran, grid, own = (", ".join(f"{key} {value}" for key, value in one.items()) for one in sets)
    other = _told(_other_run(found, run))
    lines.append(f"run with {ran}{grid and f' (its grid with {grid})'}; {other or 'this run has the same'}")
    within = found.within and f"evaluated there within {found.within}, which trains in the same way"
    more = f"other settings of it: {others}, see fedsolve settings {found.task} {found.method}" * bool(others)
    return "\n".join([*lines, *filter(None, (within, own and f"in place of it, as you say: {own}", more))])


def _told(other: Mapping[str, tuple[Any, Any]]) -> str:
    return ", ".join(f"{key} {there} there, {here} here" for key, (there, here) in other.items())


def _other_run(found: KnownSetting, run: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    # the options of the run that differ, with those of the study and of this run
    there, here = _work(found.run), _work(run)
    both = {key: (there.get(key, "default"), here.get(key, "default")) for key in there | here}
    return {key: (there, here) for key, (there, here) in both.items() if there != here}


def _work(run: Mapping[str, Any]) -> dict[str, Any]:
    defaults = (None, "float32")
    return {key: value for key, value in run.items() if key not in _LAYOUT and value not in defaults}


def _other_options(found: KnownSetting, options: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    # all options of the task in words, alike however they were given
    defaults, both = _defaults(found.task), (found.task_options, options)
    there, here = ({name: _in_words(given.get(name, x)) for name, x in defaults.items()} for given in both)
    return {key: (there[key], here[key]) for key in there if there[key] != here[key]}


@cache
def _defaults(task: str) -> dict[str, Any]:
    parameters = inspect.signature(entry(task).builder).parameters
    return {name: parameter.default for name, parameter in parameters.items() if name not in _ELSEWHERE}


def _in_words(value: Any) -> str:
    if isinstance(value, Mapping) or (isinstance(value, str) and value in PARTITIONS):
        value = as_partition(value)
    return value if isinstance(value, str) else describe(value)
