"""The persistent worker of a node: it runs one message after another for the shim, in one process.

A message that fails, or that Flower stops, ends the worker, as it ends Flower's own process: nothing half-done is
seen by the next. So do its parent's end, an app bundle other than the one that it has imported, its limits, and the
loss of its socket. The shim starts another for the next message; clients' states are on disk.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Protocol

from fedsolve.deploy.host import VARIABLE, nodes_here, share_of_cores
from fedsolve.deploy.persistent import shim
from fedsolve.deploy.persistent.node_folder import remove_if_over
from fedsolve.folders.untrusted import loads

# What the shim asks of the worker, and what the worker answers.


@dataclass
class Request:
    """A message as the shim hands it on: the arguments of Flower's program, and the process that started it."""

    # The worker ends with that. `pulled` is what an earlier process has pulled of the message already, b"" if
    # nothing.

    arguments: list[str]
    cwd: str
    parent: int
    more: bytes = b""
    pulled: bytes = b""

    @classmethod
    def read(cls, data: bytes) -> Request:
        """The request of a line, and what comes after it; `ValueError` if it is none."""
        line, _, more = data.partition(b"\n")
        document = loads(line)
        match document:
            case {"arguments": list(arguments), "cwd": str(cwd), "parent": int(parent)}:
                if all(isinstance(word, str) for word in arguments) and parent > 0:
                    return cls(arguments, cwd, parent, more)
        raise ValueError("a line that is no request")


def receive(connection: socket.socket) -> Request | None:
    data, descriptors, _, _ = socket.recv_fds(connection, shim.LONGEST, 2)
    try:
        while data and b"\n" not in data and len(data) < shim.LONGEST:
            data += (more := connection.recv(shim.LONGEST))
            if not more:
                break
        if not data:
            return None
        if len(descriptors) != 2:
            raise ValueError("a request without its two outputs")
        request = Request.read(data)
        os.chdir(request.cwd)
        for number, descriptor in enumerate(descriptors, start=1):
            os.dup2(descriptor, number)
        return request
    except (ValueError, OSError) as error:
        answer(connection, {"refused": f"the node's worker was asked wrongly ({error})"})
        return None
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def answer(connection: socket.socket, document: dict[str, Any]) -> None:
    """Say a line to the shim, if it still listens."""
    with contextlib.suppress(OSError):
        connection.sendall(json.dumps(document).encode() + b"\n")


class ShimFollower:
    """Follows a shim while its message runs: its signals are this process's, and its death too."""

    def __init__(self, connection: socket.socket, read: bytes = b"") -> None:
        self._connection, self._left, self._is_over = connection, read, False
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def stop(self) -> None:
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


RESUME = "--resume"
_LOOK_SECONDS = 1.0  # how often one looks whether a process or a socket is still there
_STOP_SECONDS = 8.0  # that a message has to end once the parent has; Flower's own limit is 5


class Program(Protocol):
    """What a worker runs messages with: see `FlowerProgram`."""

    def run(self, arguments: Sequence[str], restart: Callable[[bytes], NoReturn], pulled: bytes) -> None:
        """Run the message of these arguments; SystemExit if it fails. `restart` goes on in a new process."""
        ...


class Worker:
    """One worker: its folder, its socket, and what it has done so far."""

    def __init__(self, folder: Path, listener: socket.socket, load: Callable[..., Program]) -> None:
        self.folder, self.listener, self.load = folder, listener, load
        self.environment = dict(os.environ)  # as it was given; an app may change it
        self.settings = json.loads((folder / shim.SETTINGS).read_text(encoding="utf-8"))
        self.parent, self.done, self.is_orphan = 0, 0, False
        self.connection: socket.socket | None = None  # of the message that runs
        self.inode = (folder / shim.SOCKET).stat().st_ino
        self.removal = threading.Lock()
        os.register_at_fork(after_in_child=self._close_in_child)

    def serve(self, resumed: tuple[socket.socket, Request] | None = None) -> int:
        """Run messages until this worker has to end; its exit code."""
        try:
            program = self.load(lambda: bool(select.select([self.listener], [], [], 0)[0]))
        except Exception as error:
            self._refuse_all(f"{error}" or type(error).__name__)
            return 0
        self.listener.settimeout(_LOOK_SECONDS)
        try:
            if resumed:
                self._run(program, *resumed)
            while not self._is_over():
                with contextlib.suppress(TimeoutError):
                    connection = self.listener.accept()[0]
                    connection.settimeout(None)
                    with connection:
                        if request := receive(connection):
                            self._run(program, connection, request)
        except SystemExit as end:
            return exit_code(end)
        finally:
            if self.is_orphan:
                self._remove_folder()
        return 0

    def _remove_folder(self) -> bool:
        # Remove the folder of a node that has ended; no thread ends the process while the other removes it.
        with self.removal:
            return remove_if_over(self.folder)

    def _is_over(self) -> bool:
        # Whether a limit is reached, or the socket is not this worker's any more.
        most, megabytes = self.settings["messages"], self.settings["megabytes"]
        if self.done and ((most and self.done >= most) or (megabytes and resident_megabytes() > megabytes)):
            return True
        if self.parent == 0 and self._remove_folder():  # the node ended before its first message
            return True
        try:
            return (self.folder / shim.SOCKET).stat().st_ino != self.inode
        except FileNotFoundError:
            return True

    def _run(self, program: Program, connection: socket.socket, request: Request) -> None:
        """Run a message and say how it ended; `SystemExit` if it failed, or was stopped: the worker ends."""
        if self.parent not in (0, request.parent):  # another SuperExec, perhaps of another environment
            self._restart(connection, request)
        if self.parent == 0:
            # by now all nodes have started
            os.environ.setdefault(VARIABLE, str(share_of_cores(nodes_here())))
            self.parent = request.parent
            threading.Thread(target=self._end_with, args=(request.parent,), daemon=True).start()
        self.connection, code = connection, 1
        follower = ShimFollower(connection, request.more)
        if not request.pulled:  # else the process before this one has said so
            answer(connection, {"started": True})
        try:
            program.run(
                request.arguments, lambda pulled: self._restart(connection, request, pulled), request.pulled
            )
            code = 0
        except SystemExit as end:
            code = exit_code(end)
            raise
        except BaseException as error:
            traceback.print_exc()
            raise SystemExit(code) from error
        finally:
            self.connection = None
            _release_outputs()
            for number in shim.SIGNALS:  # an idle worker ends by them
                signal.signal(number, signal.SIG_DFL)
            follower.stop()
            self.done += 1
            answer(connection, {"code": code})

    def _restart(self, connection: socket.socket, request: Request, pulled: bytes = b"") -> NoReturn:
        # Replace this process by a new worker that runs the message: nothing of what was imported is left.
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        with tempfile.TemporaryFile() as file:
            head = {"arguments": request.arguments, "cwd": request.cwd, "parent": request.parent}
            file.write(json.dumps(head).encode() + b"\n" + pulled)
            file.seek(0)
            kept = [self.listener.fileno(), connection.fileno(), file.fileno()]
            for descriptor in kept:
                os.set_inheritable(descriptor, True)
            command = [*self.settings["worker"], str(self.folder), str(kept[0]), RESUME, *map(str, kept[1:])]
            os.execve(command[0], command, self.environment)

    def _close_in_child(self) -> None:
        # In a forked process of the app, which must not keep the sockets of a worker that has ended open.
        self.listener.close()
        if self.connection:
            self.connection.close()

    def _refuse_all(self, why: str) -> None:
        # Let this node's messages run by Flower's own program.
        print(f"fedsolve: {why}: Flower's own program runs this node's messages", file=sys.stderr, flush=True)
        (self.folder / shim.REFUSED).write_text(why, encoding="utf-8")
        self.listener.settimeout(0.0)
        with contextlib.suppress(OSError):
            while True:
                with self.listener.accept()[0] as connection:
                    connection.recv(shim.LONGEST)
                    answer(connection, {"refused": why})

    def _end_with(self, parent: int) -> NoReturn:
        # Wait for the parent's end; end the message, as Flower's own program would, and this process.
        wait_for_end(parent)
        self.is_orphan = True
        if self.connection:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            time.sleep(_STOP_SECONDS)
        self._remove_folder()
        os._exit(0)


def _release_outputs() -> None:
    # Close the outputs of a message: whoever reads them waits for their end.
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    nothing = os.open(os.devnull, os.O_WRONLY)
    for number in (1, 2):
        os.dup2(nothing, number)
    os.close(nothing)


def exit_code(end: SystemExit) -> int:
    return end.code if isinstance(end.code, int) else int(end.code is not None)


def _load(is_next_waiting: Callable[[], bool]) -> Program:
    from fedsolve.deploy.persistent.flower_program import FlowerProgram

    return FlowerProgram(is_next_waiting)


def main(arguments: Sequence[str], load: Callable[..., Program] = _load) -> int:
    """Serve: FOLDER and the number of the listening socket; after a restart also the message's connection and file."""
    folder, listener, *rest = arguments
    worker = Worker(Path(folder), socket.socket(fileno=int(listener)), load)
    os.set_inheritable(int(listener), False)
    if not rest:
        return worker.serve()
    connection, file = (int(number) for number in rest[1:])
    for descriptor in (connection, file):
        os.set_inheritable(descriptor, False)
    with os.fdopen(file, "rb") as stored:
        request = Request.read(stored.readline())
        request.pulled = stored.read()
    with socket.socket(fileno=connection) as resumed:
        return worker.serve((resumed, request))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
