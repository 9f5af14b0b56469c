"""The runs of a folder as they stand now: those of comparisons, sweeps and experiments, and deployments too."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from fedsolve.cli.configuration.config import CONFIG, Config, load
from fedsolve.cli.terminal.folders import FLOWER, TRIALS
from fedsolve.cli.terminal.progress_file import PROGRESS, Progressed, read_progress
from fedsolve.cli.terminal.run_status import record_so_far, run_folders, standing
from fedsolve.cli.watch.watched import Watched
from fedsolve.core.errors import InvalidInput
from fedsolve.folders.lock import held
from fedsolve.folders.run_folder import RUN
from fedsolve.report.page import PAGE
from fedsolve.results.record_files import FAILURE, HISTORY, read_history
from fedsolve.results.sweep_files import SUMMARY

_DEPTH = 4
_MOST = 500
_MOST_BYTES = 2**26
_SECONDS_BETWEEN = 1.0
_NOT_RUNS = {FLOWER, TRIALS, "app", "cache", "parts", "followed"}
RESULTS = "results.json"
_GOES_ON = {"stopped", "waiting"}
_TELLING = (CONFIG, HISTORY, RUN.file, FAILURE, PROGRESS, SUMMARY, RESULTS)


class Folder:
    """The runs below a folder, looked at once a second at most; `version` grows when anything has changed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self.version = 0
        self._lock = threading.Lock()
        self._looked = float("-inf")
        self._runs: dict[str, Watched] = {}
        self._known: dict[Path, tuple[object, Watched]] = {}

    def look(self) -> dict[str, Watched]:
        """The runs by name, in the order of their names."""
        with self._lock:
            if time.monotonic() - self._looked >= _SECONDS_BETWEEN:
                found = {run.name: run for run in self._found()}
                if found != self._runs or not self.version:
                    self._runs, self.version = found, self.version + 1
                self._looked = time.monotonic()
            return self._runs

    @property
    def gone(self) -> bool:
        """Whether the folder is not there any more."""
        return not self.folder.is_dir()

    def _found(self) -> Iterator[Watched]:
        """The runs, parents before what lies in them; the methods of a comparison in its order."""
        own: set[Path] = set()
        count = 0
        for place, inside, files in os.walk(self.folder):
            here = Path(place)
            depth = len(here.relative_to(self.folder).parts)
            inside[:] = (
                sorted(d for d in inside if d not in _NOT_RUNS and not d.startswith("."))
                if depth < _DEPTH
                else []
            )
            if here in own or not set(_TELLING) & set(files):
                continue
            for run in self._in(here, files):
                own |= {
                    run.folder,
                    *(part.folder for part in run.parts),
                }  # a method's folder has a configuration, too
                count += 1
                if count > _MOST:
                    return
                yield run

    def _in(self, here: Path, files: list[str]) -> Iterator[Watched]:
        """What the files of a folder tell of."""
        config: Config | None = None
        try:
            _check_files(here)
            config = load(here) if CONFIG in files else None
        except Exception as error:  # of a file that anybody may have written: any
            yield self._unreadable(here, error)
            return
        if config is None or config.sweep is not None:
            yield self._one(here, here, config, ("", ""))
            return
        methods: list[Watched] = []
        for label, places in run_folders(here, config).items():
            runs = [self._one(place, here, config, (name, label)) for name, place in places.items()]
            where = runs[0].folder.parent
            methods.append(runs[0] if config.seeds is None else self._together(where, here, label, runs))
        if len(methods) > 1:
            title = config.title or f"{len(methods)} methods"
            yield replace(self._together(here, here, title, methods), listed=True)
        yield from methods

    def _one(self, place: Path, parent: Path, config: Config | None, names: tuple[str, str]) -> Watched:
        """One run, by its own name and its method's; read again only where its files have changed."""
        stamp = (_stamp(place), _stamp(parent), names)
        if place in self._known and self._known[place][0] == stamp:
            run = self._known[place][1]
        else:
            try:
                if not place.resolve().is_relative_to(self.folder.resolve()):
                    raise InvalidInput(
                        f"{place} leads out of {self.folder} by a symbolic link: it is not read"
                    )
                _check_files(place)
                run = self._read(place, parent, config, names)
            except Exception as error:  # one folder takes the page from no other
                run = self._unreadable(place, error)
            self._known[place] = (stamp, run)
        if run.status in _GOES_ON and (held(place) or held(place / TRIALS)):
            return replace(run, status="running")
        return run

    def _together(self, place: Path, parent: Path, label: str, parts: Sequence[Watched]) -> Watched:
        """Several runs as one: the seeds of a method, or the methods of a comparison."""
        count = len(parts)
        statuses = {part.status for part in parts}
        status = next((s for s in ("running", "unreadable") if s in statuses), "")
        if not status:
            status = (
                statuses.pop() if len(statuses) == 1 else "diverged" if not statuses & _GOES_ON else "stopped"
            )
        if status in _GOES_ON and held(parent):
            status = "running"
        seconds = sum(h.seconds for part in parts for h in part.every_history)
        done, total = sum(part.done for part in parts), sum(part.total or 0 for part in parts)
        failed = sum(part.status == "diverged" for part in parts)
        return Watched(
            self._name(place), place, label, parts[0].task, status,
            message=f"{failed} of {count} diverged" if failed else "",
            progress=Progressed(label, "", done, total, seconds), page=_page_of(place, parent), parts=tuple(parts),
        )  # fmt: skip

    def _read(self, place: Path, parent: Path, config: Config | None, names: tuple[str, str]) -> Watched:
        name, page = self._name(place), _page_of(place, parent)
        progress = read_progress(place)
        ended = (place / SUMMARY).exists() or (place / RESULTS).exists()
        if ended or progress is not None or (config is not None and config.sweep is not None):
            label = (
                progress.title if progress else f"Sweep of {config.method[0].shown}" if config else place.name
            )
            return Watched(
                name, place, label, config.task if config else "", "finished" if ended else "stopped",
                message=progress.part if progress else "", progress=progress, page=page,
            )  # fmt: skip
        if config is None:
            return self._deployed(name, place, page)
        at = standing(*names, place, config.task, config.run.rounds)
        status = "stopped" if at.status == "unfinished" else at.status
        return Watched(
            name, place, at.label, config.task, status, at.history, config.run.rounds, at.message, page=page
        )

    def _deployed(self, name: str, place: Path, page: Path | None) -> Watched:
        """A run on a federation, which has no configuration of ours."""
        history = read_history(place)
        if history is not None:
            return Watched(name, place, history.label, history.task, "finished", history, page=page)
        if not (place / RUN.file).exists():
            return Watched(name, place, place.name, status="stopped", page=page)
        so_far = record_so_far(place / RUN.file, place.name, "")
        return Watched(name, place, place.name, status="stopped", history=so_far, page=page)

    def _unreadable(self, place: Path, error: Exception) -> Watched:
        """A folder whose files tell nothing, and why."""
        own = isinstance(error, InvalidInput)
        why = str(error) if own else f"{place} cannot be read: {type(error).__name__}"
        return Watched(self._name(place), place, place.name, message=why)

    def _name(self, place: Path) -> str:
        return place.relative_to(self.folder).as_posix()


def _page_of(*folders: Path) -> Path | None:
    """The first of some folders that has a page."""
    return next((f for f in folders if (f / PAGE).is_file() and not (f / PAGE).is_symlink()), None)


def _check_files(folder: Path) -> None:
    """Raise `InvalidInput` if a telling file of a folder is too large."""
    for name in _TELLING:
        path = folder / name
        if name != RUN.file and path.exists() and path.stat().st_size > _MOST_BYTES:
            raise InvalidInput(f"{path} has more than {_MOST_BYTES:,} bytes: open it with fs.load")


def _stamp(folder: Path) -> tuple[object, ...]:
    """What changes when a telling file of a folder does."""
    stamps: list[object] = []
    for name in (*_TELLING, PAGE, ".lock"):
        try:
            at = os.stat(folder / name)
            stamps.append((name, at.st_mtime_ns, at.st_size, at.st_ino))
        except OSError:
            continue
    return tuple(stamps)
