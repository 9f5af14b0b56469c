"""The folders of runs and comparisons: new ones, the names of their files, and which are finished."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from fedsolve.cli.configuration.config import CONFIG, Config, to_toml
from fedsolve.cli.configuration.trust import trust_words
from fedsolve.core.errors import Diverged, Interrupted, InvalidInput
from fedsolve.engine.sweep.grid import check_seeds
from fedsolve.folders.files import slug, write_atomically
from fedsolve.folders.lock import locked
from fedsolve.folders.run_folder import RUN, SWEEP, occupied
from fedsolve.results.history import History
from fedsolve.results.record_files import FAILURE, HISTORY, method_folders, read_history, seed_folder

CURVES = "curves.png"
COMPARISON = "comparison.png"
CLIENTS = "clients.png"
FLEET = "fleet.png"
FLOWER = "flower"
"""What a real federation of `fedsolve federate demo` leaves beside its runs."""


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
    configs = {path: path.read_bytes() for path in found if path.name == CONFIG}
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
            if path.read_bytes() != text:
                write_atomically(path, text)
        new = [path for path in _files(folder) - found if path.name in (CONFIG, ".lock")]
        for path in sorted(new, reverse=True):
            path.unlink()
            if path.parent != folder:
                with contextlib.suppress(OSError):  # there is something else in it
                    path.parent.rmdir()


def _files(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file()}


def _done(folder: Path) -> dict[Path, int]:
    """What has run in a folder: its checkpoints and records, and when they were written."""
    names = (RUN.file, SWEEP.file, HISTORY, FAILURE)
    return {path: path.stat().st_mtime_ns for path in _files(folder) if path.name in names}


def save_config(folder: Path, config: Config, comment: str) -> None:
    """Write the resolved configuration of a run, a comparison or a sweep into its folder."""
    again = f"run again with: fedsolve {command_of(config)} --config {CONFIG}{trust_words(config, folder)}"
    write_atomically(folder / CONFIG, to_toml(config, f"{comment}; {again}"))


def command_of(config: Config) -> str:
    """The command that runs a configuration."""
    return "sweep" if config.sweep is not None else "run" if len(config.method) == 1 else "compare"


def read_failure(folder: Path) -> str | None:
    """Why a run diverged; None if it has not."""
    try:
        return (folder / FAILURE).read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"cannot read {folder / FAILURE}: {error}") from None


def finished(folder: Path, rounds: int) -> History | None:
    """The record of a run that has done all its rounds; None where it has not."""
    history = None if (folder / FAILURE).exists() else read_history(folder)
    return history if history is not None and history.evaluations["round"][-1] >= rounds else None


def ended(folder: Path, rounds: int) -> History | None:
    """The record of a run that is finished or has diverged; None where it would go on."""
    return read_history(folder) if read_failure(folder) is not None else finished(folder, rounds)
