"""The table behind `fedsolve settings`, from what the studies of `experiments/` have kept, and its page of the docs.

A study whose kept data and programs are as they were keeps its part of the table: `make generate` takes seconds.
Whether a study trains on a task of the catalogue as it is, is measured: both are built and compared, which needs the
task's data folder. `python tools/settings_table.py` makes the whole table anew.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib
import inspect
import json
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np

import fedsolve.core.building
from fedsolve.config.build import call_text, recipe_of
from fedsolve.core.building import Made
from fedsolve.core.errors import FedsolveError
from fedsolve.data.partitions import PARTITIONS, Partition
from fedsolve.engine.identity import arrays_digest, code_digest, describe, task_table
from fedsolve.results.columns import plain
from fedsolve.results.intervals import interval
from fedsolve.studies import Cells, Method, Problem, Study
from fedsolve.studies.cells import Cell
from fedsolve.studies.experiment import ARCHIVE, Context
from fedsolve.studies.reproduce import import_programs, program_folders
from fedsolve.studies.runner import solve
from fedsolve.studies.settings import KnownSetting, choose, known_settings
from fedsolve.tasks.catalogue import entry
from fedsolve.tasks.task import Task

ROOT = Path(__file__).parent.parent
TABLE = "src/fedsolve/studies/settings.json.gz"
_IRRELEVANT = ("seed", "data_dir")  # of a task: which data set is drawn, and where files lie


def studies() -> dict[str, Study]:
    """The studies of `experiments/` that have kept data, by name; other experiments have no grids."""
    import_programs()
    found = {}
    for name, folder in program_folders().items():
        if (folder / ARCHIVE).is_file():
            made = importlib.import_module(f"experiments.{folder.parent.name}.{folder.name}.study").STUDY
            found |= {name: made} if isinstance(made, Study) else {}
    return found


def text(anew: Collection[str] = ()) -> str:
    """The table as JSON, a line for each method of a problem: these studies anew, and all that have changed."""
    before = json.loads(stored())
    digests, rows = {name: digest(name) for name in studies()}, []
    for name, study in studies().items():
        known = [row for row in before.get("settings", ()) if row["study"] == name]
        if name in anew or before.get("digests", {}).get(name) != digests[name]:
            print(f"{TABLE}: {name}", file=sys.stderr)
            known = of_study(name, study, {row["problem"] for row in known if row.get("same_task")})
        rows += known
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    return f'{{"digests": {json.dumps(digests)}, "settings": [\n{lines}\n]}}\n'


def stored() -> str:
    """The table as the package has it."""
    return gzip.decompress((ROOT / TABLE).read_bytes()).decode() if (ROOT / TABLE).exists() else "{}"


def update(anew: Collection[str] = ()) -> bool:
    """Write the table where it has changed; whether it has. Compressed it is a tenth as large."""
    new = text(anew)
    if changed := new != stored():
        (ROOT / TABLE).write_bytes(gzip.compress(new.encode(), mtime=0))
        known_settings.cache_clear()
    return changed


def digest(name: str) -> str:
    """Of a study's kept data and of its programs."""
    folder = program_folders()[name]
    files = sorted([*folder.glob("*.py"), *folder.parent.glob("*.py"), folder / ARCHIVE])
    return hashlib.sha256(b"".join(hashlib.sha256(f.read_bytes()).digest() for f in files)).hexdigest()[:12]


@dataclass(frozen=True)
class _Reading(Context):
    """Kept parts alone, with the seconds and the origin of each method's on each problem."""

    cost: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    origin: dict[tuple[str, str], set[str]] = field(default_factory=dict)

    def part(self, name: str, settings: Mapping[str, Any], compute: Any, version: str = "") -> Any:
        self.made_with.clear()
        found = super().part(name, settings, compute, version)
        of = settings["problem"], settings["method"]
        self.cost.setdefault(of, []).append(self.earlier[-1])
        self.origin.setdefault(of, set()).update(self.made_with)
        return found


def of_study(name: str, study: Study, same: Collection[str]) -> list[dict[str, Any]]:
    """Its rows; `same` are the problems whose tasks were found as in the catalogue, where they cannot be built now."""
    context = _Reading(program_folders()[name], stored_only=True)
    cells = solve(study, context)
    _forget()
    made = {problem: built_from(one, study.seeds[0]) for problem, one in study.problems.items()}
    rows = []
    for problem, one in study.problems.items():
        task = _task(made[problem], one, study.seeds[0], problem in same)
        for label in cells.methods(problem):
            method, of = study.methods_of(problem)[label], (problem, label)
            row = {"study": name, "problem": problem, "label": label, **task}
            row |= _row(cells.cell(*of), method)
            row |= {"run": _plain({**one.options, **method.options}), "metric": one.metric, "last": one.last}
            row |= _score(cells, problem, label) | {"seconds": _short(sum(context.cost[of]))}
            row |= {"usable": _is_usable(row), "made_with": sorted(context.origin[of])}
            tuning = _plain({key: value for key, value in one.tuning.items() if key != "seeds"})
            rows.append(row | ({"tuning": tuning} if "grid" in row and tuning else {}))
    return rows


def _is_usable(row: Mapping[str, Any]) -> bool:
    # a variant of a method to which a study gave one setting shows what that does, and recommends nothing
    named = row.get("same_task") and row.get("method")
    return bool(named and ("grid" in row or row["method"] == row["label"]))


def _score(cells: Cells, problem: str, label: str) -> dict[str, Any]:
    # at the end, over the seeds that neither diverged nor collapsed, of which tables say apart where they end
    ends = cells.final(problem, label)
    kept = ends[~cells.collapsed(problem, label) & np.isfinite(ends)]
    found = {"seeds": len(cells.seeds), "lost": len(cells.seeds) - len(kept)}
    score = interval(kept, overlap=cells.problem(problem).overlap) if len(kept) else None
    return found | ({"score": [_short(x) for x in score]} if score else {})


def _row(cell: Cell, method: Method) -> dict[str, Any]:
    row: dict[str, Any] = {}
    if cell.grid is not None:
        selection = cell.grid.selection
        row["grid"] = {axis: _values(values) for axis, values in cell.grid.grid.items()}
        row |= {"select": f"{selection.metric}:{selection.last}", "tuned_on": len(cell.grid.seeds)}
    if cell.of("tuned") is None:  # all of its grid diverged
        return row
    if cell.grid is not None:
        row["near_best"] = _short(cell.grid.share_within())
    return row | _method(method.make(**cell.chosen), cell.chosen) | {"edges": _edges(cell)}


_EVALUATING = ("MeanOfTwo",)
"""Wrappers of studies that change the model which is evaluated and nothing in training."""


def _method(made: Any, axes: Mapping[str, Any]) -> dict[str, Any]:
    # its name and settings in the catalogue; of a study's own method what was chosen
    within = type(made).__name__ if type(made).__name__ in _EVALUATING else ""
    recipe = recipe_of(made.inner if within else made)
    if recipe is None:
        return {"settings": _plain(axes)}
    name, settings = recipe
    return {"method": name, "settings": settings, "within": within}


def _edges(cell: Cell) -> dict[str, str]:
    grid = {} if cell.grid is None else cell.grid.grid
    drawn = {axis: isinstance(cell.chosen[axis], tuple) for axis in cell.edges}
    return {a: "any" if drawn[a] else "low" if cell.chosen[a] == min(grid[a]) else "high" for a in cell.edges}


def _values(values: tuple[Any, ...]) -> Any:
    # of settings drawn at random, tuples, how many there are
    listed = all(v is None or isinstance(v, int | float | str) for v in values)
    return [_short(v) for v in values] if listed else len(values)


def _short(value: Any, digits: int = 4) -> Any:
    if not isinstance(value, float | np.floating):
        return value
    return plain(float(f"{value:.{digits}g}"))


_LAYOUT = ("chunk", "parallel_trials")  # how a machine is used, which changes no result


def _plain(options: Mapping[str, Any]) -> dict[str, Any]:
    known = {key: value for key, value in options.items() if value is not None and key not in _LAYOUT}
    return {k: v if isinstance(v, bool | int | float | str) else describe(v) for k, v in known.items()}


def _forget() -> None:
    # data that studies keep from one problem to the next: what builds them is then not called
    for name, module in list(sys.modules.items()):
        for function in vars(module).values() if name.startswith("experiments.") else ():
            getattr(function, "cache_clear", int)()


class _Asked(BaseException):
    """A builder of the catalogue was called: nothing else of a task is wanted."""


def built_from(problem: Problem, seed: int) -> Made | None:
    """The task of the catalogue that a problem builds first, with its options; None where it builds none."""
    asked: list[Made] = []

    def look(frame: Any, event: str, argument: Any) -> None:
        # a study's functions replace parts of what a builder returns, which then no longer says how it was made
        code = frame.f_code
        if event == "call" and code.co_name == "call" and code.co_filename == fedsolve.core.building.__file__:
            at = frame.f_locals
            bound = inspect.signature(at["build"]).bind(*at["args"], **at["kwargs"])
            asked.append(Made(at["name"], bound.arguments))
            raise _Asked

    with _profiled(look), suppress(_Asked, FedsolveError):
        _build(problem, seed)
    return asked[0] if asked else None


@contextmanager
def _profiled(look: Any) -> Iterator[None]:
    sys.setprofile(look)
    try:
        yield
    finally:
        sys.setprofile(None)


def _build(problem: Problem, seed: int) -> Task:
    folder = None
    return problem.task(folder, seed) if problem.data_by_seed else problem.task(folder)  # type: ignore[call-arg]


def _task(made: Made | None, problem: Problem, seed: int, known: bool) -> dict[str, Any]:
    # the task of the catalogue, its options as `--task-set` takes them or in words, and whether it is used as it is
    if made is None:
        return {}
    builder = entry(made.name).builder
    models = getattr(sys.modules[builder.__module__], "MODELS", {})
    options = {key: value for key, value in made.options.items() if key not in _IRRELEVANT}
    named = next((name for name, model in models.items() if options.get("model") == model), None)
    options |= {} if named is None else {"model": named}
    partition = options.get("partition")
    own = isinstance(partition, Partition) and partition.name not in PARTITIONS
    unnamed: dict[str, str] = {}
    table = task_table(Made(made.name, options), unnamed)["task_options"]
    table |= {key.removeprefix("task option "): words for key, words in unnamed.items()} | (
        {"partition": describe(partition)} if own else {}
    )
    return {"task": made.name, "task_options": table, "same_task": _is_same(made, problem, seed, known)}


def _is_same(made: Made, problem: Problem, seed: int, known: bool) -> bool:
    # whether clients' examples, the start, the loss and the work of a round are those of the catalogue's task
    try:
        ours, theirs = _build(problem, seed), entry(made.name).builder(**made.options)
    except FedsolveError as error:
        print(f"{problem.title}: not compared with the task {made.name}: {error}", file=sys.stderr)
        return known
    return _trained_on(ours) == _trained_on(theirs)


def _trained_on(task: Task) -> tuple[Any, ...]:
    start = jax.tree.map(np.asarray, task.init(jax.random.key(0)))
    work = task.batch_size, task.epochs, task.local_steps
    return (
        arrays_digest((task.data.examples, task.data.counts)),
        arrays_digest(start),
        code_digest(task.loss),
        work,
    )


PAGE = """# Tuned settings

For readers who ask which hyperparameters a method was tuned to: what the stored studies found, by task and method.

    fedsolve settings femnist              # grids, criteria, scores, costs and origins; --json for programs
    fedsolve settings digits FedAdam
    fedsolve run femnist FedAdam --tuned   # with this setting; --set overrides it
    fedsolve sweep femnist FedAdam --grid client_lr=0.01:1:5log    # tune it yourself

In Python, `fs.settings("femnist", "FedAdam")` lists what was found, and `fs.tuned("FedAdam", task, rounds=100)` makes
the method. Both work without a clone: the package has a table of the studies.

`--tuned` needs the task with the same options, such as its model and partition, and otherwise names what differs. Of
several studies it takes the one whose run is most like yours, and prints that run. Rates depend on the rounds and the
clients of a round. Nothing else uses these settings: without `--tuned` a method has its defaults.

The best of a grid is the best by one criterion, often on one seed, and a little worse on other seeds. `within 5 %` is
the share of the grid whose criterion is at most 5 % worse than the best: the larger, the easier the method is to
tune.

The list has what `--tuned` takes where nothing else is asked. A dagger (†) marks a setting at an end of its grid,
beyond which a better one may lie. Settings with their default are left out.
"""


def page() -> str:
    """`docs/settings.md`: for every method and task what `--tuned` takes."""
    lines, task = list[str](), ""
    for (name, options), found in sorted(_recommended().items()):
        if name != task:
            lines += ["" if task else PAGE, f"## {name}", ""]
        task = name
        methods = [
            _without_spaces(call_text(one.method, one.settings)) + "†" * bool(one.edges) for one in found
        ]
        shown = f"`{_without_spaces(options)}`: " if options else ""
        lines.append(f"* {shown}{' '.join(f'`{m}`' for m in methods)}")
    return "\n".join(lines).replace("†`", "`†") + "\n"


def _recommended() -> dict[tuple[str, str], list[KnownSetting]]:
    # by task and its options in words: of every method the one that `choose` takes for a run of nothing but defaults
    found: dict[tuple[str, str], dict[str, KnownSetting]] = {}
    for one in known_settings():
        options = call_text("", one.task_options)[1:-1]
        if one.usable and one.method not in found.get((one.task, options), {}):
            taken, _ = choose(one.method, one.task, one.task_options, {}, {})
            found.setdefault((one.task, options), {})[one.method] = taken
    return {key: [methods[name] for name in sorted(methods)] for key, methods in found.items()}


def _without_spaces(text: str) -> str:
    return text.replace(", ", ",")


if __name__ == "__main__":
    update(sys.argv[1:] or studies())
