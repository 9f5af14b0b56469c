"""What a worker follows while it runs: the shim of its message, its parent, and its own memory."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import sys
import threading
import time
from pathlib import Path

from fedsolve.deploy.persistent import shim

_LOOK_SECONDS = 1.0  # how often a process is looked for where the system does not say when it ends


class ShimFollower:
    """Follows a shim while its message runs: its signals are this process's, and its death too."""

    def __init__(self, connection: socket.socket, read: bytes = b"") -> None:
        self._connection, self._left, self._is_over = connection, read, False
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Follow no longer: the message has ended."""
        self._is_over = True
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RD)
        self._thread.join()

    def _follow(self) -> None:
        while data := self._read():
            *lines, self._left = (self._left + data).split(b"\n")
            for line in lines:
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    number = json.loads(line)["signal"]
                    if number in shim.SIGNALS:
                        signal.pthread_kill(threading.main_thread().ident or 0, number)
        if not self._is_over:  # killed, as Flower's own process would have been
            os.kill(os.getpid(), signal.SIGKILL)

    def _read(self) -> bytes:
        try:
            return self._connection.recv(shim.LONGEST)
        except OSError:
            return b""


def wait_for_end(pid: int) -> None:
    """Return when a process has ended."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    except (AttributeError, OSError):  # not on this system
        while True:
            time.sleep(_LOOK_SECONDS)
            try:
                os.kill(pid, 0)
            except OSError:
                return
    select.select([descriptor], [], [])


def resident_megabytes() -> float:
    """Memory of this process; where the system does not say, the most that it ever had."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
    except (OSError, IndexError):
        import resource

        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most / 1e6 if sys.platform == "darwin" else most / 1e3
