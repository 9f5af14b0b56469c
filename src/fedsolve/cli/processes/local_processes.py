"""Processes and ports of this machine: those of `fedsolve run --processes`, and whether a process still runs."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import IO

from fedsolve.cli.processes.distributed_init import PLACE
from fedsolve.core.errors import Unavailable

HOST = "127.0.0.1"
_PATIENCE = 15.0  # seconds that the others have to say why they end, once one has failed
_QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3"}  # what JAX logs of a lost process is said in a line


def run_locally(arguments: Sequence[str], count: int) -> int:
    """Run a command as so many processes, of which the first is seen, until all have ended.

    Returns:
        The exit code of the first, which has said what there is to say.

    Raises:
        Unavailable: it was killed, or would not end after another had failed.
    """
    with tempfile.TemporaryDirectory() as logs, _started(arguments, count, Path(logs)) as children:
        while all(child.poll() in (None, 0) for child in children):
            if all(child.returncode == 0 for child in children):
                return 0
            time.sleep(0.05)
        lost = next(i for i, child in enumerate(children) if child.returncode)
        code = _last_words(children[0])
        if code is not None and code > 0:
            return code
        words = Path(logs, f"{lost}.log").read_text(errors="replace").strip().splitlines()
    why = f": {words[-1]}" if words else ""
    raise Unavailable(
        f"process {lost} of {count} {_how(children[lost].returncode)}{why}; the last checkpoint is kept: continue with "
        "--resume FOLDER"
    )


def _last_words(first: subprocess.Popen[bytes]) -> int | None:
    """The exit code of the first process, which has some time to notice that another is gone."""
    try:
        return first.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        return None


def _how(code: int) -> str:
    return f"was killed (signal {-code})" if code < 0 else f"ended with exit code {code}"


@contextlib.contextmanager
def _started(arguments: Sequence[str], count: int, logs: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """The processes; Ctrl-C is passed on to each, and whichever is left at the end is killed."""
    address = f"{HOST}:{free_port()}"
    children: list[subprocess.Popen[bytes]] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        for child in children:
            child.send_signal(number)

    old = {s: signal.signal(s, pass_on) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        for index in range(count):
            with open(logs / f"{index}.log", "wb") as log:
                children.append(_start(arguments, f"{address} {count} {index}", log if index else None))
        yield children
    finally:
        for child in children:
            if child.poll() is None:
                child.kill()
            child.wait()
        for number, handler in old.items():
            signal.signal(number, handler)


def _start(arguments: Sequence[str], place: str, output: IO[bytes] | None) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "fedsolve", *arguments],
        env=os.environ | _QUIET | {PLACE: place},
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,  # the terminal's Ctrl-C comes by `pass_on` alone
    )


def free_port() -> int:
    """A port of loopback that nobody listens on now."""
    with socket.socket() as s:
        s.bind((HOST, 0))
        return s.getsockname()[1]


def is_taken(port: int) -> bool:
    """Whether a port of loopback cannot be listened on."""
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            s.bind((HOST, port))
        except OSError:
            return True
    return False


def is_listening(port: int) -> bool:
    """Whether somebody listens on a port of loopback."""
    with socket.socket() as s:
        s.settimeout(1.0)
        return s.connect_ex((HOST, port)) == 0


def descendants(pid: int) -> list[int]:
    """Processes that a process started, and those that they started; empty where /proc tells nothing."""
    pids: list[int] = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, children.read_text().split()):
                pids += [child, *descendants(child)]
    return pids


def send_signal(pids: Sequence[int], number: signal.Signals) -> None:
    """Send a signal to processes; those that have ended are passed over."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def is_alive(pid: int) -> bool:
    """Whether a process is there and has not ended (one that waits to be reaped has)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (OSError, IndexError):
        return False
