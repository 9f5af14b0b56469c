"""`fedsolve watch DIR`, and `--watch` of the commands that run something."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from fedsolve.cli.terminal.console import emit, say
from fedsolve.core.errors import InvalidInput


def watch(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder of one or several runs, such as runs/.")
    ] = Path("runs"),
    port: Annotated[
        int,
        typer.Option(
            min=0, max=65535, help="Port on this machine (default: a free one).", show_default=False
        ),
    ] = 0,
) -> None:
    """Serve a live page of the runs in a folder: curves, a table, the time left and a button to stop.

    The page is served on this machine only. Anyone who knows the printed address can read it and stop runs.
    """
    if not folder.is_dir():
        raise InvalidInput(f"{folder} is not a folder: give one that holds runs, such as runs/")
    from fedsolve.cli.watch.server import serving

    with serving(folder, port) as server:
        emit(server.address)
        say(
            f"it shows the runs in {folder}; anyone with the address can read and stop them; press Ctrl-C to end"
        )
        with contextlib.suppress(KeyboardInterrupt):
            while True:
                time.sleep(3600)


@contextlib.contextmanager
def watched(folder: Path, asked: bool) -> Iterator[None]:
    """Serve the page of what runs in a folder meanwhile, if that was asked for."""
    if not asked:
        yield
        return
    from fedsolve.cli.watch.server import serving

    with serving(folder) as server:
        say(f"watch it at {server.address}")
        yield
