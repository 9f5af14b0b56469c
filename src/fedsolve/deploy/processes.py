"""Commands that end with the process that started them, and the processes that a process has started.

Run as a program, this file is the watcher of a command: it ends the command, and all that this has started, when its
time is over or when its own standard input closes. The kernel closes that however its owner ends, also by a kill.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

TIMED_OUT, NOT_STARTED, SIGNALLED = 124, 127, 128
"""Exit codes of the watcher beside the command's own, as shells have them; the last plus the number of the signal."""
_PATIENCE = 15.0  # seconds between SIGTERM and SIGKILL
_POLL = 0.05


def run_watched(command: Sequence[str], seconds: float, log: Path) -> int:
    """The exit code of a command that runs at most `seconds` (see above); what it prints is written to `log`."""
    watcher = [sys.executable, "-I", "-S", __file__, str(seconds), *command]
    options = {"stdin": subprocess.PIPE, "stderr": subprocess.STDOUT, "start_new_session": True}
    with open(log, "wb") as output, subprocess.Popen(watcher, stdout=output, **options) as process:
        return process.wait()  # an exception closes the watcher's standard input


def watch(command: Sequence[str], seconds: float) -> int:
    end = time.monotonic() + seconds
    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    except (OSError, ValueError) as error:
        print(f"cannot start {command[0]}: {error}", file=sys.stderr)
        return NOT_STARTED
    code = None
    while code is None and time.monotonic() < end and not select.select([sys.stdin], [], [], _POLL)[0]:
        code = process.poll()
    # torchrun's workers have sessions of their own, and it ends them on SIGTERM; of a command that has ended by itself
    # only its group is known
    family = descendants(process.pid) if code is None else []
    for number in (signal.SIGTERM, signal.SIGKILL) if code is None else (signal.SIGKILL,):
        with contextlib.suppress(ProcessLookupError, PermissionError):  # nobody is left in it
            os.killpg(process.pid, number)
        send_signal(family, number)
        end = time.monotonic() + _PATIENCE
        while (process.poll() is None or any(map(is_alive, family))) and time.monotonic() < end:
            time.sleep(_POLL)
    return TIMED_OUT if code is None else code if code >= 0 else SIGNALLED - code


def descendants(pid: int) -> list[int]:
    # empty where /proc tells nothing
    pids: list[int] = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, children.read_text().split()):
                pids += [child, *descendants(child)]
    return pids


def send_signal(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def is_alive(pid: int) -> bool:
    # one that waits to be reaped has ended
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (OSError, IndexError):
        return False


if __name__ == "__main__":
    sys.exit(watch(sys.argv[2:], float(sys.argv[1])))
