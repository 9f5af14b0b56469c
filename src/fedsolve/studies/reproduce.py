"""Experiments by name: those of a clone's `experiments/`, and entry points of the group `fedsolve.studies`."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from threading import Lock
from typing import Any

from fedsolve.config.references import (
    construct,
    is_reference,
    load_reference,
    split_reference,
    user_code_error,
)
from fedsolve.core.errors import InvalidInput, of_type, unknown
from fedsolve.studies.experiment import Claim, Context, Experiment, Outcome, command, has_parts

GROUP = "fedsolve.studies"
PROGRAMS = "experiments"
"""The folder of a clone with the studies of the papers, which is a package of that name."""
_NAME = re.compile(r"\w[\w+.-]*")  # it names a folder too


def repository() -> Path | None:
    # the clone of fedsolve that has the studies: around the current folder, else that which this package runs from
    here, own = Path.cwd(), Path(__file__).resolve().parents[3]
    for folder in (here, *here.parents, own):
        if (folder / PROGRAMS / "__init__.py").is_file() and (folder / "src" / "fedsolve").is_dir():
            return folder
    return None


def program_folders() -> Mapping[str, Path]:
    # the folder of each study of a clone by the study's name, empty where there is no clone
    root = repository()
    paths = sorted((root / PROGRAMS).glob("*/*/study.py")) if root else []
    return {path.parent.name.replace("_", "-"): path.parent for path in paths}


def entries() -> Mapping[str, EntryPoint]:
    # every experiment by name: those of the clone, then those of other distributions, none of which takes a name
    own = {
        name: EntryPoint(name, f"{PROGRAMS}.{folder.parent.name}.{folder.name}.study:STUDY", GROUP)
        for name, folder in program_folders().items()
    }
    return own | {name: entry for name, entry in _installed().items() if name not in own}


@cache
def _installed() -> Mapping[str, EntryPoint]:
    # an installation of fedsolve 0.1 from before its studies moved out of the package still names them
    return {e.name: e for e in entry_points(group=GROUP) if e.dist is None or e.dist.name != "fedsolve"}


def find(name: str) -> Experiment:
    """The experiment of a name, or of a user's own study: `module:function`, or a Python file with `STUDY`."""
    from fedsolve.studies.runner import experiment

    if is_reference(name):
        from fedsolve.studies import Study

        return experiment(construct("study", name, Study, load_reference("study", name, Study), {}))
    if name.endswith(".py"):
        return _of_file(Path(name))
    known = entries()
    if name in known:
        return loaded(known[name])
    if repository() is None:
        raise InvalidInput(
            f"experiment {name!r}: the studies of the papers are not installed with the package; run "
            f"`fedsolve reproduce {name}` in a clone of fedsolve's repository, which has them in {PROGRAMS}/"
        )
    raise unknown("experiment", name, known)


def _of_file(path: Path) -> Experiment:
    if not path.is_file():
        raise InvalidInput(f"{path}: there is no such file")
    root, file = repository(), path.resolve()
    if root is not None and file.is_relative_to(root.resolve() / PROGRAMS):
        module = ".".join(file.relative_to(root.resolve()).with_suffix("").parts)
    else:
        module, _ = split_reference("study", f"{file.stem}:STUDY")
        sys.path.insert(0, str(file.parent))
    return loaded(EntryPoint(file.stem, f"{module}:STUDY", GROUP))


def loaded(entry: EntryPoint) -> Experiment:
    """What an entry point names: a `Study` or `Experiment`, a function that returns one, or a mapping with its name."""
    from fedsolve.studies import Study
    from fedsolve.studies.runner import experiment

    whose = f" of {entry.dist.name} {entry.dist.version}" if entry.dist else ""
    what = f"experiment {entry.name!r}{whose} ({entry.value})"
    if not _NAME.fullmatch(entry.name):
        raise InvalidInput(f"{what}: a name has letters, digits, '.', '+', '-' and '_'; rename it")
    if entry.value.startswith(f"{PROGRAMS}."):
        import_programs()
    try:
        entry_object: Any = entry.load()
        entry_object = entry_object[entry.name] if isinstance(entry_object, Mapping) else entry_object
        entry_object = entry_object() if callable(entry_object) else entry_object
    except (Exception, SystemExit) as error:
        raise user_code_error(what, error) from None
    if isinstance(entry_object, Study):
        return experiment(entry_object)
    if not isinstance(entry_object, Experiment):
        raise InvalidInput(f"{what} is {of_type(entry_object)}: name a fedsolve.studies.Study")
    return entry_object


def import_programs() -> None:
    # import the clone's package `experiments`, which need not be on the path, so that its modules can be
    root = repository()
    if root is None or PROGRAMS in sys.modules:
        return
    folder = root / PROGRAMS
    spec = spec_from_file_location(PROGRAMS, folder / "__init__.py", submodule_search_locations=[str(folder)])
    assert spec is not None
    assert spec.loader is not None
    sys.modules[PROGRAMS] = module = module_from_spec(spec)
    spec.loader.exec_module(module)


# Run an experiment by its name and write its page, or evaluate the claims of an earlier run again.


@dataclass(frozen=True)
class Reproduced:
    """What was found, the page that shows it, and the seconds of all parts (NaN if those of a kept one are lost)."""

    outcome: Outcome
    page: Path
    seconds: float


def _check_full(name: str, experiment: Experiment, full: bool) -> None:
    if full and not experiment.full:
        raise InvalidInput(f"{name} has one size: leave out full")


def evaluate_claims(
    name: str, folder: str | Path, *, full: bool = False, experiment: Experiment | None = None
) -> Sequence[Claim]:
    # the claims of an experiment with verdicts, computed again from what an earlier run kept; nothing is run
    experiment = experiment or find(name)
    _check_full(name, experiment, full)
    if not has_parts(Path(folder)):
        raise InvalidInput(f"{folder} keeps no data of {name}: run {command(name)} into it first")
    return experiment.run(Context(Path(folder), full=full, stored_only=True)).claims


def reproduce(
    name: str,
    folder: str | Path,
    *,
    data_dir: str | Path | None = None,
    quick: bool = False,
    full: bool = False,
    experiment: Experiment | None = None,
    say: Callable[[str, int, int], None] = lambda part, done, total: None,
    executor: Any = None,
) -> Reproduced:
    """Run an experiment into a folder: results, pictures and a page of claim / theirs / ours / deviations.

    Parts that are finished stay in `parts/`; the same call goes on where an interrupted one was.

    Args:
        name: one of `fedsolve list experiments`, or `module:function` of a study.
        folder: where to; it is made.
        data_dir: the data folder, default FEDSOLVE_DATA.
        quick: a few rounds and settings, to see that it works; its numbers mean nothing and get no verdict.
        full: the paper's size, of an experiment that has one beside that which two cores finish.
        experiment: what the name stands for where `find` does not know it, such as that of a file.
        say: called with (part, done, total), by one thread at a time.
        executor: what runs the parts of a study on other processes or machines, as `fs.Workers` takes it; None runs
            them here.

    Raises:
        InvalidInput: an unknown name, missing data or matplotlib, a folder that cannot be written, `full` with `quick`
            or of an experiment that has one size.
        Interrupted: Ctrl-C.
    """
    from fedsolve.data import sources
    from fedsolve.engine.compute.workers import open_units
    from fedsolve.engine.identity import provenance
    from fedsolve.report.plots import require_matplotlib
    from fedsolve.studies.pages import write_results

    experiment = experiment or find(name)
    require_matplotlib()
    if full and quick:
        raise InvalidInput("quick and full are two sizes: give one of them")
    _check_full(name, experiment, full)
    if experiment.needs_data and not quick:
        sources.data_dir(data_dir)
    folder = Path(folder)
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        why = "Permission denied" if there.is_dir() else f"{there} is a file"
        raise InvalidInput(f"cannot write to {folder}: {why}; choose another folder")
    begun = time.process_time()
    data = None if data_dir is None else Path(data_dir)
    lock = Lock()

    def say_in_turn(part: str, done: int, total: int) -> None:
        with lock:
            say(part, done, total)

    with open_units(executor, folder) as units:
        if units is not None and (root := repository()) is not None:
            units.path.append(str(root))  # of the package `experiments`
        context = Context(folder, data, quick, full, say=say_in_turn, units=units)
        outcome = experiment.run(context)
    if quick:
        claims = [replace(claim, verdict=None, reason="") for claim in outcome.claims]
        outcome = replace(outcome, claims=claims)
    seconds = time.process_time() - begun + sum(context.earlier)
    made = "; ".join(sorted(context.made_with)) or provenance()
    page = write_results(folder, name, experiment, outcome, seconds, made, quick)
    return Reproduced(outcome, page, seconds)
