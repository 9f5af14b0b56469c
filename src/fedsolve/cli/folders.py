"""Folders of runs, comparisons and sweeps: made with their configuration, gone on with, and what is left in them."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import shlex
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np

from fedsolve.cli.configuration.command_options import Request
from fedsolve.cli.configuration.config import CONFIG, Config, to_toml
from fedsolve.cli.configuration.trust import trust_words
from fedsolve.cli.console import emit, emit_rich, say
from fedsolve.core.errors import Diverged, Interrupted, InvalidInput
from fedsolve.core.fleets import Timeline
from fedsolve.engine.identity import provenance
from fedsolve.engine.load import START
from fedsolve.engine.running_page import page_so_far
from fedsolve.engine.sweep_grid import check_seeds
from fedsolve.folders.files import locked, slug, write_atomically
from fedsolve.folders.run_folder import RUN, SWEEP, occupied_error
from fedsolve.folders.sealed import LARGEST
from fedsolve.folders.untrusted import read_bytes
from fedsolve.report import plots
from fedsolve.report.figures import CAPTION, labels_by_client, waiting
from fedsolve.report.page import PAGE, write_page
from fedsolve.report.table import result_table
from fedsolve.results.history import History
from fedsolve.results.record_files import FAILURE, HISTORY, MODEL, method_folders, seed_folder
from fedsolve.tasks.task import Task

TRIAL_FOLDERS = "lanes"
"""Where a sweep keeps its checkpoints."""
FLOWER = "flower"
"""What a real federation of `fedsolve federate demo` leaves beside its runs."""


@contextlib.contextmanager
def new_run_folder(request: Request, config: Config, stem: str, what: str = "") -> Iterator[Path]:
    """The folder of a run, new or resumed, with its configuration; as it was found if the run is refused."""
    # `stem` is the name of a new folder in `runs`, without its number; `what` is begun, in words that are printed.
    folder = request.resume or new_folder(request.out, stem, command_of(config))
    with restore_on_error(folder, fresh=request.out is None and request.resume is None):
        with locked(folder):
            save_config(folder, config)
        if what and not request.as_json:
            say(f"{what}, into {folder}")
        yield folder


def new_folder(out: Path | None, stem: str, command: str) -> Path:
    if out is None:
        return _next_folder(Path("runs"), stem)
    if (out / CONFIG).exists() or (out / RUN.file).exists():
        raise occupied_error(out, "run", f" with `fedsolve {command} --resume {out}`")
    return out


def _next_folder(base: Path, stem: str) -> Path:
    for number in itertools.count(1):
        folder = base / f"{slug(stem)}-{number}"
        try:
            folder.mkdir(parents=True)
            return folder
        except OSError as error:
            if not (isinstance(error, FileExistsError) and base.is_dir()):  # else that number is taken
                raise InvalidInput(
                    f"cannot write to {base}: {error.strerror}; choose a folder with --out"
                ) from None
    raise AssertionError("numbers do not end")


@contextlib.contextmanager
def restore_on_error(folder: Path, fresh: bool = False) -> Iterator[None]:
    """Leave a folder as it was found if what is begun in it fails before anything ran that could be resumed."""
    # Much is refused only when the engine prepares a run in its folder, such as a loss that raises. A folder that is
    # `fresh`, made for this run, or that does not exist yet, goes as well.
    fresh = fresh or not folder.exists()
    before, ran = set(folder.rglob("*")), _records(folder)
    files = [path for path in before if path.name == CONFIG and not path.is_symlink()]
    configs = {path: read_bytes(path, LARGEST, follow=False) for path in files}
    try:
        yield
    except (Interrupted, Diverged):
        raise
    except Exception:
        with contextlib.suppress(InvalidInput, OSError):
            if _records(folder) == ran:
                with locked(folder):  # or another run uses it
                    _restore(folder, before, configs)
                for place in (folder, folder.parent) if fresh else ():
                    place.rmdir()  # unless there is something in it
        raise


def _restore(folder: Path, before: set[Path], configs: dict[Path, bytes]) -> None:
    for path, text in configs.items():
        write_atomically(path, text)
    # what is in a folder before the folder
    for path in sorted(set(folder.rglob("*")) - before, reverse=True):
        with contextlib.suppress(OSError):  # there is something else in it
            if path.is_dir():
                path.rmdir()
            elif path.name in (CONFIG, ".lock", START):
                path.unlink()


def _records(folder: Path) -> dict[Path, int]:
    # checkpoints and records, and when they were written: what can be resumed
    names = (RUN.file, SWEEP.file, HISTORY, FAILURE)
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.name in names}


def run_folders(folder: Path, config: Config) -> dict[str, dict[str, Path]]:
    # by method, the folder of each of its runs by name: the method's, or one for each seed below it
    labels = [method.shown for method in config.method]
    # one method alone has no folder of its own
    places = method_folders(folder, labels) if len(labels) > 1 else [folder]
    if config.seeds is None:
        return {label: {label: place} for label, place in zip(labels, places, strict=True)}
    return {
        label: {f"{label}, seed {seed}": seed_folder(place, seed) for seed in check_seeds(config.seeds)}
        for label, place in zip(labels, places, strict=True)
    }


def save_config(folder: Path, config: Config) -> None:
    again = f"run again with: fedsolve {command_of(config)} --config {CONFIG}{trust_words(config, folder)}"
    write_atomically(folder / CONFIG, to_toml(config, f"{provenance()}; {again}"))


def command_of(config: Config) -> str:
    return "sweep" if config.sweep is not None else "run" if len(config.method) == 1 else "compare"


def how_to_resume(command: str, folder: Path, config: Config | None = None) -> str:
    trusted = "" if config is None else trust_words(config, folder)
    return f"resume with: fedsolve {command} --resume {shlex.quote(str(folder))}{trusted}"


# What a run or a comparison leaves in its folder: records, the final model, plots and the page.


_CURVES, _COMPARISON, _CLIENTS, _FLEET = "curves.png", "comparison.png", "clients.png", "fleet.png"


def write_report(
    folder: Path,
    config: Config,
    task: Task,
    histories: Sequence[History],
    notes: Sequence[str] = (),
    timeline: Timeline | None = None,
) -> None:
    several = len(config.method) > 1
    pictures = {}
    if can_draw():
        plots.save(plots.comparison(histories), folder / (_COMPARISON if several else _CURVES))
        if timeline is not None:
            pictures[CAPTION] = plots.png(waiting(timeline))
            write_atomically(folder / _FLEET, pictures[CAPTION])
        if _has_labels(task):
            drawn = plots.png(labels_by_client(task.data, title=f"Labels by client: {task.name}"))
            write_atomically(folder / _CLIENTS, drawn)
            pictures["How many examples of each label every client holds."] = drawn
    write_page(
        folder / PAGE,
        histories,
        title=_title(config),
        how_tuned=config.how_tuned,
        notes=notes,
        pictures=pictures,
    )


def page_meanwhile(folder: Path, config: Config) -> AbstractContextManager[None]:
    places = [(label, place) for label, of in run_folders(folder, config).items() for place in of.values()]
    return page_so_far(folder, places, _title(config), config.task, config.run.rounds)


def _title(config: Config) -> str:
    several = len(config.method) > 1
    named = f"{len(config.method)} methods" if several else config.method[0].shown
    return config.title or f"{named} on {config.task}"


def can_draw() -> bool:
    if importlib.util.find_spec("matplotlib") is not None:
        return True
    say("note: no plots, because matplotlib is not installed: install fedsolve[plot]")
    return False


def report_files(folder: Path) -> dict[str, str]:
    names = {"page": PAGE, "picture": _COMPARISON, "curves": _CURVES, "fleet": _FLEET, "clients": _CLIENTS}
    names |= {"model": MODEL}
    found = {kind: folder / name for kind, name in names.items()}
    return {kind: str(path) for kind, path in found.items() if path.exists()}


def document(status: str, folder: Path, task: str, rounds: int, **facts: Any) -> dict[str, Any]:
    about = {"status": status, "folder": str(folder), "task": task, "rounds": rounds}
    return {**about, **facts, "files": report_files(folder)}


def print_result(
    histories: Sequence[History],
    notes: Sequence[str],
    folder: Path,
    title: str = "",
    metrics: Sequence[str] | None = None,
    target: float | None = None,
) -> None:
    if histories:
        emit_rich(result_table(histories, target, metrics).rich(title))
    lines = [*notes, *(f"{kind:8} {path}" for kind, path in report_files(folder).items())]
    emit("\n".join(lines))


def _has_labels(task: Task) -> bool:
    # one label of a finite set for each example
    labels = getattr(task.data.examples, "y", None)
    if labels is None:
        return False
    array = np.asarray(labels)
    return array.ndim == 1 and not np.issubdtype(array.dtype, np.inexact)
