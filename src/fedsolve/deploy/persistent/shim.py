"""The `flwr-clientapp` of a node: it hands a message to the node's worker and ends with the exit code that it says.

Flower starts this program for every message, so it imports little, and nothing of fedsolve or Flower. It starts the
worker where none answers, and becomes Flower's own program where the worker cannot do the work.

The worker's socket speaks lines of JSON. To the worker: one request, with the descriptors of stdout and stderr, then
`{"signal": 15}` for each signal. From it: `{"started": true}` before it touches the message, then `{"code": 0}`; or
`{"refused": "why"}`.
"""

import contextlib
import fcntl
import json
import os
import signal
import socket
import sys

SOCKET, LOCK, SETTINGS, REFUSED = "socket", "lock", "settings.json", "refused"
"""Files of a node's folder: the worker's socket, what a shim that starts a worker locks, how to start it, and why this
node's messages run by Flower's own program."""
VALUES, SWITCHES = (
    ("--runtime-api-address", "--token", "--root-certificates", "--parent-pid"),
    ("--insecure",),
)
"""The arguments of Flower's program that the worker knows: with a value, and without."""
PREPARE = "--prepare"
"""In place of a message's arguments: only start the worker."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT)
LONGEST = 65536  # bytes of a line
_ATTEMPTS = 3  # a worker may leave by itself between being found and being asked


def main(folder, arguments):
    """Run one message; the exit code. Where the worker cannot, this process becomes Flower's own program."""
    settings = json.loads(_read(folder, SETTINGS))
    if arguments == [PREPARE]:
        with contextlib.suppress(OSError):  # the first message says so
            _connect(folder, settings).close()
        return 0
    own = [settings["program"], *arguments]
    reason = unknown_argument(arguments) or (
        "" if is_private(folder) else f"{folder} can be opened by others"
    )
    if reason:
        _say(f"{reason}: Flower's own program runs this message")
        os.execv(own[0], own)
    for _ in range(_ATTEMPTS):
        if os.path.exists(os.path.join(folder, REFUSED)):  # the worker has said so
            os.execv(own[0], own)
        try:
            answer = _ask(folder, settings, arguments)
        except OSError as error:
            answer = f"the node's worker cannot be started or asked ({error})"
        if isinstance(answer, int):
            return answer
        if answer:
            if not os.path.exists(os.path.join(folder, REFUSED)):  # else the worker has said so
                _say(f"{answer}: Flower's own program runs this message")
            break
    else:
        _say("the node's workers ended before they began: Flower's own program runs this message")
    os.execv(own[0], own)


def unknown_argument(arguments):
    """What is wrong with arguments of Flower's program that are none of the known ones; '' if nothing is."""
    left = list(arguments)
    while left:
        word = left.pop(0)
        if word in VALUES and left:
            left.pop(0)
        elif word not in SWITCHES:
            return f"the argument {word} of flwr-clientapp is not known to the persistent worker"
    return ""


def is_private(folder):
    """Whether a folder is this user's, and nobody else can open it."""
    status = os.stat(folder)
    return status.st_uid == os.getuid() and not status.st_mode & 0o077


def _ask(folder, settings, arguments):
    """The exit code of a message that the worker ran; None if it left before it began; or why it refuses, in words."""
    request = {"arguments": arguments, "cwd": os.getcwd(), "parent": os.getppid()}
    with _connect(folder, settings) as connection:
        for number in SIGNALS:
            signal.signal(number, lambda number, frame: _send(connection, {"signal": number}))
        try:
            _send(connection, request, descriptors=(1, 2))
            answers = _answers(connection)
            first = next(answers, None)
            if first is None or "refused" in first:
                return first and first["refused"]
            last = next(answers, None)
        finally:
            for number in SIGNALS:
                signal.signal(number, signal.SIG_DFL)
    if last is None:
        _say("the node's worker ended while it ran a message: the next message starts another")
        return 1
    return last["code"]


def _send(connection, document, descriptors=()):
    data = json.dumps(document).encode() + b"\n"
    # the worker has left: its answer is missing
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        sent = socket.send_fds(connection, [data], descriptors) if descriptors else 0
        connection.sendall(data[sent:])


def _answers(connection):
    """What the worker says, until it closes the connection or ends."""
    with connection.makefile("rb") as lines, contextlib.suppress(ConnectionResetError):
        for line in lines:
            yield json.loads(line)


def _connect(folder, settings):
    """A connection to the node's worker, which is started where none listens."""
    back = os.open(".", os.O_RDONLY)
    with open(os.path.join(folder, LOCK), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.chdir(folder)  # a socket's path may have 108 bytes, a folder's more
        connection = socket.socket(socket.AF_UNIX)
        try:
            try:
                connection.connect(SOCKET)
            except (FileNotFoundError, ConnectionRefusedError):
                _start_worker(folder, settings, back)
                connection.connect(SOCKET)
        except BaseException:
            connection.close()
            raise
        finally:
            os.fchdir(back)
            os.close(back)
    return connection


def _start_worker(folder, settings, cwd):
    """Start a worker on a socket that listens already, so that nobody waits for it with open eyes."""
    import subprocess  # a message in a thousand needs it

    with contextlib.suppress(FileNotFoundError):
        os.unlink(SOCKET)
    with socket.socket(socket.AF_UNIX) as listener:
        before = os.umask(0o177)
        listener.bind(SOCKET)
        os.umask(before)
        listener.listen()
        os.fchdir(cwd)
        try:
            subprocess.Popen(
                [*settings["worker"], folder, str(listener.fileno())], pass_fds=[listener.fileno()],
                stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        finally:
            os.chdir(folder)


def _read(folder, name):
    with open(os.path.join(folder, name), encoding="utf-8") as file:
        return file.read()


def _say(line):
    print(f"fedsolve: {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
