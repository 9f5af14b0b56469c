"""A node's folder for its worker: the program that Flower starts by name, the worker's socket, and how it is started.

It lies in the node's state folder and is this user's alone. The node's process holds a lock in it while it runs; what a
killed node has left is removed by its worker, or when the next node starts.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fedsolve.core.errors import InvalidInput
from fedsolve.deploy.persistent import shim
from fedsolve.deploy.persistent.flower_program import PROGRAM

WORKER = "fedsolve.deploy.persistent.worker"
"""The module that the shim starts as the worker."""
BIN = "bin"
NODE_LOCK = "node.lock"
"""The file that the node's process holds locked while it runs."""
_PREFIX = ".worker-"


@dataclass(frozen=True)
class WorkerLimits:
    """When a worker leaves by itself: after so many messages, or when it has more memory than that; 0 for never."""

    messages: int = 0
    megabytes: int = 0


def make_folder(states: Path, limits: WorkerLimits, program: str) -> Path:
    """Make a node's folder in the folder of its clients' states; remove those of nodes that have ended."""
    # `limits` say when its workers leave by themselves; `program` is the path of Flower's own `flwr-clientapp`.
    try:
        states.mkdir(parents=True, exist_ok=True)
        remove_folders_left(states)
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=states)).absolute()  # mode 0700
        settings = {
            "program": program,
            "worker": [sys.executable, "-P", "-m", WORKER],
            "messages": limits.messages,
            "megabytes": limits.megabytes,
        }
        (folder / shim.SETTINGS).write_text(json.dumps(settings), encoding="utf-8")
        (folder / BIN).mkdir()
        starter = folder / BIN / PROGRAM
        words = shlex.join([sys.executable, "-I", "-S", shim.__file__, str(folder)])
        starter.write_text(f'#!/bin/sh\nexec {words} "$@"\n', encoding="utf-8")
        starter.chmod(0o700)
    except OSError as error:
        raise InvalidInput(
            f"cannot make the worker's folder in {states}: {error.strerror}; "
            "give another state-dir in --node-config, or --fresh"
        ) from None
    return folder


def start_worker(folder: Path, environment: Mapping[str, str]) -> None:
    """Start the node's worker before its first message, so that it imports Flower while the node connects."""
    with contextlib.suppress(OSError):  # a message says so
        subprocess.Popen(
            [sys.executable, "-I", "-S", shim.__file__, str(folder), shim.PREPARE], env=dict(environment),
            stdin=subprocess.DEVNULL,
        ).wait()  # fmt: skip


def hold(folder: Path) -> int:
    """Lock a node's folder for as long as the descriptor is open; programs that replace this process inherit it."""
    descriptor = os.open(folder / NODE_LOCK, os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    os.set_inheritable(descriptor, True)
    return descriptor


def remove_if_over(folder: Path) -> bool:
    try:
        with open(folder / NODE_LOCK, "rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
    except OSError:
        return False
    return True


def remove_folders_left(states: Path) -> None:
    for left in states.glob(f"{_PREFIX}*"):
        remove_if_over(left)


def workers_in(states: Path, processes: Path = Path("/proc")) -> list[int]:
    """The workers of nodes whose states are in this folder, as far as the system's table of processes tells."""
    start, found = f"{states.absolute()}/{_PREFIX}".encode(), []
    for file in processes.glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # ended meanwhile, or another user's
            if any(word.startswith(start) for word in file.read_bytes().split(b"\0")):
                found.append(int(file.parent.name))
    return found
