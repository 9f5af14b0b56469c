"""`fedsolve data`: sources of the tasks' data sets, with download and conversion."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedsolve.cli.configuration.command_options import FOLDER, AsJson
from fedsolve.cli.console import complete_dataset, emit, emit_json, emit_table, say
from fedsolve.core.errors import InvalidInput

if TYPE_CHECKING:
    from fedsolve.tasks.datasets.download import DataSet


ORIGINALS = "originals"
"""Folder in the data folder that keeps what was fetched, a folder for each set."""


def data(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="Data set (default: list all).", autocompletion=complete_dataset),
    ] = None,
    to: Annotated[
        Path | None,
        typer.Option(
            "--to", **FOLDER, help="Data folder to write; missing files are downloaded and converted."
        ),
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option(
            "--from", **FOLDER, help="Folder of the original files; they are converted, not downloaded."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the source of a public data set; with --to, download and convert it for the tasks."""
    from fedsolve.data.sources import CONVERTED
    from fedsolve.tasks.datasets.download import DATASETS

    if name is None:
        if source is not None or to is not None:
            raise InvalidInput("--from and --to need the NAME of a data set: `fedsolve data` lists them")
        _list(DATASETS, as_json)
        return
    found = DATASETS.find(name)
    if to is None and source is not None:
        raise InvalidInput("--from needs --to: the data folder to write")
    if to is None:
        _describe(name, found, as_json)
        return
    if found.convert is None:
        raise InvalidInput(f"{name}: {found.remark}")
    if source is not None and not source.is_dir():
        raise InvalidInput(f"--from {source} is not a folder: give the one with the original files")
    folder = source or _fetched(name, found, to)
    files = found.convert(folder, to)
    if as_json:
        emit_json({"status": "finished", "files": [str(path) for path in files]})
        return
    for path in files:
        known = not path.with_name(path.name + CONVERTED).exists()
        emit(f"{path}  {'known check sum' if known else 'check sum noted beside it'}")
    emit(f"note: {found.remark}")
    emit(f"{found.run} --data-dir {to}")


def _fetched(name: str, found: DataSet, to: Path) -> Path:
    from fedsolve.tasks.datasets.download import fetch

    if not found.originals:
        raise InvalidInput(f"{name} cannot be fetched as a file: {found.remark}")
    folder = to / ORIGINALS / name
    for original in found.originals:
        path = folder / original.name
        if not path.exists():
            say(f"fetching {original.url}")
        with _Progress() as progress:
            fetch(original.url, path, original.most, original.sha256, progress)
    return folder


class _Progress:
    def __enter__(self) -> _Progress:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TransferSpeedColumn

        console = Console(stderr=True)
        columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn())
        self._bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._bar.add_task("", total=None)
        self._bar.start()
        return self

    def __call__(self, done: int, total: int | None) -> None:
        self._bar.update(self._task, completed=done, total=total)

    def __exit__(self, *_: object) -> None:
        self._bar.stop()


def _list(datasets: Mapping[str, DataSet], as_json: bool) -> None:
    if as_json:
        emit_json([_row(name, found) for name, found in datasets.items()])
        return
    rows = [(name, found.task, found.title, found.licence) for name, found in datasets.items()]
    emit_table(("Name", "Task", "What it is", "Licence"), rows, unbroken=2)


def _describe(name: str, found: DataSet, as_json: bool) -> None:
    if as_json:
        emit_json(_row(name, found))
        return
    emit(f"{name}: {found.title}")
    emit(f"from     {found.home}")
    emit(f"licence  {found.licence}")
    emit(f"task     {found.task}, which reads {', '.join(found.files) or 'the package itself'}")
    for original in found.originals:
        emit(
            f"file     {original.url}  {'SHA-256 ' + original.sha256 if original.sha256 else 'no check sum known'}"
        )
    emit(f"note     {found.remark}")
    if found.originals:
        emit(f"fetch    fedsolve data {name} --to DATA    # about {found.megabytes:g} MB")
    if found.convert is not None:
        emit(f"convert  fedsolve data {name} --from ORIGINALS --to DATA")
    emit(f"then     {found.run}{' --data-dir DATA' if found.files else ''}")


def _row(name: str, found: DataSet) -> dict[str, Any]:
    originals = [{"url": o.url, "sha256": o.sha256} for o in found.originals]
    kept = ("title", "home", "licence", "megabytes", "task", "run", "remark")
    row = {"name": name} | {key: getattr(found, key) for key in kept}
    return row | {"files": list(found.files), "originals": originals, "converted": found.convert is not None}
