"""`fedsolve watch DIR`, and `--watch` of the commands that run something."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

from fedsolve.cli.terminal.console import emit, say
from fedsolve.cli.watch.server import serving
from fedsolve.core.errors import InvalidInput


def watch_command(folder: Path, port: int) -> None:
    """Serve the page of a folder's runs until Ctrl-C.

    Raises:
        InvalidInput: there is no such folder, or the port is in use.
    """
    if not folder.is_dir():
        raise InvalidInput(f"{folder} is no folder: give one that holds runs, such as runs/")
    with serving(folder, port) as server:
        emit(server.address)
        say(f"it follows the runs in {folder}; who has the address may read and stop them; Ctrl-C ends it")
        with contextlib.suppress(KeyboardInterrupt):
            while True:
                time.sleep(3600)


@contextlib.contextmanager
def watched(folder: Path, asked: bool) -> Iterator[None]:
    """Serve the page of what runs in a folder meanwhile, if that was asked for."""
    if not asked:
        yield
        return
    with serving(folder) as server:
        say(f"watch it at {server.address}")
        yield
