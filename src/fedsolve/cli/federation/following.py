"""A run of an app on a SuperLink, followed by the files of its folder until it ends."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from fedsolve.cli.federation.flower_commands import FlowerCommands, last_line
from fedsolve.core.errors import Interrupted, Unavailable
from fedsolve.deploy.run_log import FAILED, read_reason
from fedsolve.folders.files import STOP, Interruptible

_POLL_SECONDS = 0.3
_STATUS_SECONDS = (
    45.0  # between two questions to Flower where a run stands: each takes a second of the machine
)

T = TypeVar("T")


def follow(
    commands: FlowerCommands,
    run: int,
    folder: Path,
    look: Callable[[], T | None],
    interrupt: Interruptible,
    what: str,
    interrupted: str,
) -> T:
    """Look until a run has left what is waited for.

    Args:
        commands: Flower's, on the SuperLink of the run.
        run: its number.
        folder: of the run.
        look: gives what is waited for, None while it is not there.
        interrupt: says whether the user has asked to stop.
        what: what errors call the run.
        interrupted: what is said where the user did.

    Raises:
        Interrupted: Ctrl-C, or a file `stop` in the folder; the run is stopped.
        Unavailable: the run failed; its reason.
    """
    asked = time.monotonic()
    while True:
        if (found := look()) is not None:
            return found
        if interrupt.asked or (folder / STOP).exists():
            commands.stop_run(run)
            raise Interrupted(interrupted)
        if (folder / FAILED).exists():
            raise Unavailable(f"{what}: {read_reason(folder)}")
        if time.monotonic() - asked > _STATUS_SECONDS:
            asked = time.monotonic()
            status = commands.status(run)
            if status.startswith("finished") and (found := look()) is not None:
                return found
            if status in ("finished:failed", "finished:stopped"):
                raise Unavailable(f"{what} failed: {last_line(commands.log(run))}")
            if status == "finished:completed":
                raise Unavailable(
                    f"{what} has finished, and {folder} is not on this machine: start the command on the machine of "
                    "the SuperLink"
                )
        time.sleep(_POLL_SECONDS)
