"""How far a run is, by what its folder holds; the page of runs while they go on, and the configuration they leave."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tomli_w

from fedsolve.config.build import recipe_of
from fedsolve.core.algorithm import name_of
from fedsolve.core.errors import Diverged, Interrupted, InvalidInput
from fedsolve.core.sampling import Bernoulli
from fedsolve.engine.compute.sharding import is_first
from fedsolve.engine.compute.workers import where_it_runs
from fedsolve.engine.identity import describe, provenance, task_table
from fedsolve.engine.options import RunOptions, written_options
from fedsolve.engine.record import RecordFile
from fedsolve.engine.scheduler import RunPlan
from fedsolve.folders.files import is_locked, write_atomically
from fedsolve.folders.run_folder import RUN, read_manifest
from fedsolve.folders.untrusted import MALFORMED
from fedsolve.report.page import PAGE, SoFar, write_page, written_meanwhile
from fedsolve.results.history import History
from fedsolve.results.record_files import CONFIG, FAILURE, read_failure, read_history, seed_folder
from fedsolve.tasks.task import Task


def finished(folder: Path, rounds: int) -> History | None:
    # the record of a run that has done all its rounds; None where it has not
    history = None if (folder / FAILURE).exists() else read_history(folder)
    return history if history is not None and history.evaluations["round"][-1] >= rounds else None


def final_history(folder: Path, rounds: int) -> History | None:
    # the record of a run that is finished or has diverged; None where it would go on
    return read_history(folder) if read_failure(folder) is not None else finished(folder, rounds)


@dataclass(frozen=True)
class RunStatus:
    """Where a run stands: finished, diverged, running, unfinished or waiting; its record so far, if any."""

    label: str
    status: str
    history: History | None
    message: str = ""
    where: str = ""

    @property
    def done(self) -> int:
        return 0 if self.history is None else len(self.history.rounds["round"])


def run_status(name: str, method: str, folder: Path, task: str, rounds: int) -> RunStatus:
    # where a run of a method stands, by its own name and the method's
    done = finished(folder, rounds)
    if done is not None:
        return RunStatus(name, "finished", done)
    failure = read_failure(folder)
    if failure is not None:
        return RunStatus(name, "diverged", read_history(folder), failure)
    history = None
    if (folder / RUN.file).exists():
        history = record_so_far(folder / RUN.file, method, task)
    status = "running" if is_locked(folder) else "waiting" if history is None else "unfinished"
    there = where_it_runs(folder)
    return RunStatus(name, status, history, where="" if there is None else there.remark)


def record_so_far(path: Path, label: str, task: str) -> History:
    # the record that a checkpoint speaks of
    manifest = read_manifest(path)
    try:
        recorder = RecordFile(path.parent).restore(manifest["record"])
        return recorder.history(label, task, manifest["identity"], 0.0, ())
    except InvalidInput:
        raise
    except MALFORMED:
        raise InvalidInput(f"the checkpoint {path} holds no record: another version wrote it") from None


def page_so_far(
    folder: Path, places: Sequence[tuple[str, Path]], title: str, task: str, rounds: int
) -> AbstractContextManager[None]:
    """Keep the page of some runs in a folder up to date within the block; its last one is for the caller to write."""
    # `places` are the method's label and the folder of each run, those of a method's seeds one after another.
    last: list[object] = []

    def write(goes_on: bool) -> bool:
        if goes_on and not any(is_locked(place) for _, place in places):
            return False  # none has begun, or it is refused
        by_label: dict[str, list[RunStatus]] = {}
        for label, place in places:
            by_label.setdefault(label, []).append(run_status(label, label, place, task, rounds))
        histories = [history for runs in by_label.values() for history in _alike(runs)]
        now = [goes_on, [[(run.status, run.done) for run in runs] for runs in by_label.values()]]
        if not histories or now == last:
            return False
        words = "; ".join(_words(label, runs, rounds) for label, runs in by_label.items())
        write_page(folder / PAGE, histories, title=title, so_far=SoFar(words, goes_on))
        last[:] = now
        return True

    return written_meanwhile(write)


@contextlib.contextmanager
def in_folder(
    out: str | Path | None, methods: Sequence[RunPlan], title: str, task: Task, options: RunOptions
) -> Iterator[None]:
    """Keep the page of runs from Python up to date, and leave their configuration, unless they are refused."""
    # Process 0 of several does, and nobody without a folder.
    if out is None or not is_first():
        yield
        return
    places = []
    for method in methods:
        assert method.out is not None
        seeds = [method.out] if method.seeds is None else [seed_folder(method.out, s) for s in method.seeds]
        places += [(method.name, place) for place in seeds]
    try:
        with page_so_far(Path(out), places, title, task.name, options.rounds):
            yield
    except (Interrupted, Diverged):
        _write_config(Path(out), methods, task, options)
        raise
    _write_config(Path(out), methods, task, options)


def _words(label: str, runs: Sequence[RunStatus], rounds: int) -> str:
    # how far the runs of a method are
    if all(run.status == "diverged" for run in runs):
        return f"{label}: diverged"
    done = sum(run.done for run in runs)
    on = "".join(f", {where}" for where in dict.fromkeys(run.where for run in runs) if where)
    if len(runs) == 1:
        return f"{label}: round {done:,} of {rounds:,}{on}"
    return f"{label}: {done:,} of {len(runs) * rounds:,} rounds of {len(runs)} seeds{on}"


def _alike(runs: Sequence[RunStatus]) -> list[History]:
    # the records of a method's runs, cut where the shortest of those that go on ends: a mean has no gaps
    known = [(run, run.history) for run in runs if run.history is not None]
    last = min((h.evaluations["round"][-1] for run, h in known if run.status != "diverged"), default=math.inf)
    return [
        replace(h, evaluations={k: v[h.evaluations["round"] <= last] for k, v in h.evaluations.items()})
        for _, h in known
    ]


# The configuration that runs from Python leave: what the command line runs again, where its parts have names.
#
# A method, a task or a sampling that no configuration can name is told in words, and the file is there to be shown
# alone.


def _write_config(folder: Path, methods: Sequence[RunPlan], task: Task, options: RunOptions) -> None:
    if not folder.is_dir():
        return
    unnamed: dict[str, str] = {}
    if task.made_by is None:
        unnamed["task"] = f"{task.name}, {task.data.num_clients:,} clients"
        table: dict[str, Any] = {"task": task.name}
    else:
        table = task_table(task.made_by, unnamed)
    table["run"] = _run_section(options.with_defaults(task), unnamed)
    if (seeds := methods[0].seeds) is not None:
        table["run"].pop("seed", None)
        table["seeds"] = list(seeds)
    table["method"] = [_method_section(method, unnamed) for method in methods]
    table |= {"unnamed": unnamed} if unnamed else {}
    words = "; what [unnamed] tells in words is in no configuration" if unnamed else ""
    write_atomically(folder / CONFIG, f"# {provenance()}; left by Python{words}\n{tomli_w.dumps(table)}")


def _run_section(options: RunOptions, unnamed: dict[str, str]) -> dict[str, Any]:
    section: dict[str, Any] = {}
    for option in written_options():
        value = getattr(options, option.name, None)
        if isinstance(value, str | int | float | Mapping):
            section[option.name] = value
        elif value is not None:
            unnamed[option.name] = describe(value)
    sampling = options.sampling
    if isinstance(sampling, Bernoulli):
        section["participation"] = sampling.p
    elif sampling is not None:
        unnamed["sampling"] = describe(sampling)
    return section


def _method_section(plan: RunPlan, unnamed: dict[str, str]) -> dict[str, Any]:
    recipe = recipe_of(plan.algorithm)
    if recipe is None:
        unnamed[f"method {plan.name}"] = describe(plan.algorithm)
        return {"name": name_of(plan.algorithm), "label": plan.name}
    name, settings = recipe
    return {"name": name, "label": plan.name, "settings": settings}
