"""Folders of runs, comparisons and sweeps: a new one with its configuration, its runs, and how it goes on."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator
from pathlib import Path

from fedsolve.cli.configuration.config import CONFIG, Config, to_toml
from fedsolve.cli.configuration.requests import Request
from fedsolve.cli.configuration.trust import trust_words
from fedsolve.cli.terminal.console import say
from fedsolve.core.errors import Diverged, Interrupted, InvalidInput
from fedsolve.engine.identity import provenance
from fedsolve.engine.sweep_grid import check_seeds
from fedsolve.folders.files import locked, slug, write_atomically
from fedsolve.folders.run_folder import RUN, SWEEP, occupied
from fedsolve.folders.sealed import LARGEST
from fedsolve.folders.untrusted import read_bytes
from fedsolve.results.record_files import FAILURE, HISTORY, method_folders, seed_folder

TRIAL_FOLDERS = "lanes"
"""Where a sweep keeps its checkpoints."""
FLOWER = "flower"
"""What a real federation of `fedsolve federate demo` leaves beside its runs."""


@contextlib.contextmanager
def begun(request: Request, config: Config, stem: str, what: str = "") -> Iterator[Path]:
    """The folder of what is begun within, with its configuration; as it was found if that is refused.

    Args:
        request: what was typed: the folder to write or to go on in, and whether words are printed.
        config: the resolved configuration.
        stem: the name of a new folder in `runs`, without its number.
        what: what is begun, in words that are printed; '' for none.

    Raises:
        InvalidInput: the folder holds a run already, or cannot be made.
    """
    folder = request.resume or new_folder(request.out, stem, command_of(config))
    with undone_if_refused(folder, fresh=request.out is None and request.resume is None):
        with locked(folder):
            save_config(folder, config)
        if what and not request.as_json:
            say(f"{what}, into {folder}")
        yield folder


def new_folder(out: Path | None, stem: str, command: str) -> Path:
    """The folder asked for, or the next free `runs/<stem>-<n>`.

    Raises:
        InvalidInput: it holds a run already, or cannot be made.
    """
    if out is None:
        return _next_folder(Path("runs"), stem)
    if (out / CONFIG).exists() or (out / RUN.file).exists():
        raise occupied(out, "run", f" with `fedsolve {command} --resume {out}`")
    return out


def _next_folder(base: Path, stem: str) -> Path:
    number = 1
    while True:
        folder = base / f"{slug(stem)}-{number}"
        try:
            folder.mkdir(parents=True)
        except FileExistsError as error:
            if not base.is_dir():
                raise InvalidInput(
                    f"cannot write to {base}: {error.strerror}; choose a folder with --out"
                ) from None
            number += 1
        except OSError as error:
            raise InvalidInput(
                f"cannot write to {base}: {error.strerror}; choose a folder with --out"
            ) from None
        else:
            return folder


@contextlib.contextmanager
def undone_if_refused(folder: Path, fresh: bool = False) -> Iterator[None]:
    """Leave a folder as it was found if what is begun in it fails before anything ran that could be resumed.

    Args:
        folder: the folder of a run, a comparison or a sweep.
        fresh: it was made for it, and goes as well; so does one that does not exist yet.
    """
    fresh = fresh or not folder.exists()
    found, done = _files(folder), _done(folder)
    configs = {path: read_bytes(path, LARGEST, follow=False) for path in found if path.name == CONFIG}
    try:
        yield
    except (Interrupted, Diverged):
        raise
    except Exception:
        with contextlib.suppress(InvalidInput, OSError):
            if _done(folder) == done:
                _undo(folder, found, configs)
                for place in (folder, folder.parent) if fresh else ():
                    place.rmdir()  # unless there is something in it
        raise


def _undo(folder: Path, found: set[Path], configs: dict[Path, bytes]) -> None:
    with locked(folder):  # or another run uses it
        for path, text in configs.items():
            if read_bytes(path, LARGEST, follow=False) != text:
                write_atomically(path, text)
        new = [path for path in _files(folder) - found if path.name in (CONFIG, ".lock")]
        for path in sorted(new, reverse=True):
            path.unlink()
            if path.parent != folder:
                with contextlib.suppress(OSError):  # there is something else in it
                    path.parent.rmdir()


def _files(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()}


def _done(folder: Path) -> dict[Path, int]:
    """What has run in a folder: its checkpoints and records, and when they were written."""
    names = (RUN.file, SWEEP.file, HISTORY, FAILURE)
    return {path: path.stat().st_mtime_ns for path in _files(folder) if path.name in names}


def run_folders(folder: Path, config: Config) -> dict[str, dict[str, Path]]:
    """By method, the folder of each of its runs by name: the method's, with the seed where there are several."""
    labels = [method.shown for method in config.method]
    places = method_folders(folder, labels) if len(labels) > 1 else [folder]
    if config.seeds is None:
        return {label: {label: place} for label, place in zip(labels, places, strict=True)}
    return {
        label: {f"{label}, seed {seed}": seed_folder(place, seed) for seed in check_seeds(config.seeds)}
        for label, place in zip(labels, places, strict=True)
    }


def save_config(folder: Path, config: Config) -> None:
    """Write the resolved configuration of a run, a comparison or a sweep into its folder."""
    again = f"run again with: fedsolve {command_of(config)} --config {CONFIG}{trust_words(config, folder)}"
    write_atomically(folder / CONFIG, to_toml(config, f"{provenance()}; {again}"))


def command_of(config: Config) -> str:
    """The command that runs a configuration."""
    return "sweep" if config.sweep is not None else "run" if len(config.method) == 1 else "compare"


def how_to_resume(command: str, folder: Path, config: Config | None = None) -> str:
    """The command that continues a run or a comparison; with the configuration that ran, what it has to trust."""
    trusted = "" if config is None else trust_words(config, folder)
    return f"resume with: fedsolve {command} --resume {shlex.quote(str(folder))}{trusted}"
