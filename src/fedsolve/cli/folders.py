"""The folders of runs and comparisons: new ones, the names of their files, and which are finished."""

from __future__ import annotations

from pathlib import Path

from fedsolve.cli.config import CONFIG, Config, MethodSection, to_toml
from fedsolve.engine.checkpoint import CHECKPOINT
from fedsolve.errors import InvalidInput
from fedsolve.files import slug, write_atomically
from fedsolve.report.history import History
from fedsolve.report.record_files import HISTORY

PAGE = "page.html"
FAILURE = "diverged.txt"
CURVES = "curves.png"
COMPARISON = "comparison.png"
CLIENTS = "clients.png"
FLOWER = "flower"
"""What a real federation of `fedsolve federate demo` leaves beside its runs."""


def method_folders(folder: Path, methods: list[MethodSection]) -> list[Path]:
    """The sub-folder of each method of a comparison; names that would coincide are numbered."""
    names: list[str] = []
    for method in methods:
        name, number = slug(method.shown), 2
        while name.lower() in (n.lower() for n in names):
            name, number = f"{slug(method.shown)}-{number}", number + 1
        names.append(name)
    return [folder / name for name in names]


def new_folder(out: Path | None, stem: str, command: str) -> Path:
    """The folder asked for, or the next free `runs/<stem>-<n>`.

    Raises:
        InvalidInput: it holds a run already, or cannot be made.
    """
    if out is None:
        return _next_folder(Path("runs"), stem)
    if (out / CONFIG).exists() or (out / CHECKPOINT).exists():
        raise InvalidInput(
            f"{out} holds a run already: resume it with `fedsolve {command} --resume {out}` "
            "or choose another folder"
        )
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


def save_config(folder: Path, config: Config, comment: str) -> None:
    """Write the resolved configuration of a run, a comparison or a sweep into its folder."""
    command = "sweep" if config.sweep is not None else "run" if len(config.method) == 1 else "compare"
    again = f"run again with: fedsolve {command} --config {CONFIG}"
    write_atomically(folder / CONFIG, to_toml(config, f"{comment}; {again}"))


def read_history(folder: Path) -> History | None:
    """The record of a finished run; None where there is none.

    Raises:
        InvalidInput: the file is damaged.
    """
    path = folder / HISTORY
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"cannot read {path}: {error}") from None
    try:
        return History.from_json(text)
    except InvalidInput as error:
        raise InvalidInput(f"{path}: {error}") from None


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
