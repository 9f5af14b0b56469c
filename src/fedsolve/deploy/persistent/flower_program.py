"""Flower's own `flwr-clientapp` in this process: loaded by its command's name, and kept from ending the process.

What the program uses inside Flower and is replaced here is checked when it is loaded. Its version is checked as well:
another version runs Flower's own way, until it has been tried.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import inspect
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

PROGRAM = "flwr-clientapp"
VERSION = "1.41"
"""The version of Flower that was tried."""
_HOME = "flwr.supernode.runtime.run_clientapp"
_REPLACED = {
    "flwr_exit": {"code", "message", "event_type"},
    "pull_and_inflate_object_from_tree": {"initial_backoff", "backoff_cap", "max_tries_per_object"},
}
"""Functions that the program calls, with the arguments that are used here."""
_FIRST_WAIT, _LONGEST_WAIT = 0.02, 1.0
"""Seconds between requests for objects that the SuperNode has not stored yet: the first, doubled up to the longest.
Flower starts with 1 s, which a program that imports for seconds does not notice and a worker waits for."""
_ABANDONED = 5.0
"""Seconds after which a message without its objects fails if another waits: a SuperNode fetches one after another, so
they will not come. Flower asks for hours, in a process that no other message needs."""


class UnknownFlower(Exception):
    """The installed Flower is none that the worker knows."""


def check_version() -> None:
    """Raise `UnknownFlower` unless the installed Flower is of the version that was tried."""
    version = importlib.metadata.version("flwr")
    if version.split(".")[:2] != VERSION.split("."):
        raise UnknownFlower(f"the persistent worker was tried with Flower {VERSION}, {version} is installed")


class FlowerProgram:
    """Flower's program, called for one message after another."""

    # `UnknownFlower` if the installed Flower is not the one that was tried, or has other insides.

    def __init__(self, is_next_waiting: Callable[[], bool] = bool) -> None:
        check_version()
        self._main = _entry_point()
        self._insides = importlib.import_module(_HOME)
        _check_insides(self._insides)
        self._bundle = ""
        self._restart: Callable[[bytes], NoReturn] | None = None
        self._pulled = b""
        self._exit = self._insides.flwr_exit
        inside: Any = self._insides
        inside.flwr_exit = self._leave
        inside.pull_and_inflate_object_from_tree = functools.partial(
            _giving_up(inside.pull_and_inflate_object_from_tree, is_next_waiting),
            initial_backoff=_FIRST_WAIT, backoff_cap=_LONGEST_WAIT, max_tries_per_object=None,
        )  # fmt: skip
        inside.RuntimeHttpClient = _client_class(inside.RuntimeHttpClient, self._take_input)

    def run(self, arguments: Sequence[str], restart: Callable[[bytes], NoReturn], pulled: bytes) -> None:
        """Run the message of these arguments, those that Flower's SuperExec gives.

        `pulled` is the input that a process before this one has pulled, b"" if none has; if its bundle is not the one
        that this process has imported, `restart` goes on in a new process with it. `SystemExit`: the message failed,
        or was stopped; Flower then ends this process within seconds.
        """
        self._restart, self._pulled = restart, pulled
        sys.argv = [str(Path(sys.executable).parent / PROGRAM), *without_parent(arguments)]
        self._main()

    def _leave(self, code: int, message: str | None = None, event_type: Any = None, **more: Any) -> None:
        # In place of Flower's exit: after success, what is done at an exit but the exit itself.
        if code != 0:
            self._exit(code, message, event_type, **more)
        handlers = importlib.import_module("flwr.supercore.exit.exit_handler")
        self._insides.event(event_type, {"exit_code": code})
        handlers.trigger_exit_handlers(run_before_force_exit=True)
        handlers.trigger_exit_handlers(run_before_force_exit=False)

    def _take_input(self, pull: Callable[[], Any], response_type: Any) -> Any:
        # The message's input, of the bundle that this process has imported or will import.
        response = response_type.FromString(self._pulled) if self._pulled else pull()
        bundle = response.fab.hash_str
        if self._bundle not in ("", bundle) and self._restart:
            self._restart(response.SerializeToString())
        self._bundle = bundle
        return response


def _giving_up(pull_all: Callable[..., Any], is_next_waiting: Callable[[], bool]) -> Callable[..., Any]:
    @functools.wraps(pull_all)
    def pull(tree: Any, pull_object: Callable[[str], bytes], *others: Any, **options: Any) -> Any:
        start = time.monotonic()

        def pull_one(object_id: str) -> bytes:
            try:
                return pull_object(object_id)
            except Exception:  # not there yet
                if time.monotonic() - start > _ABANDONED and is_next_waiting():
                    raise RuntimeError("the message did not come in full, and the next one waits") from None
                raise

        return pull_all(tree, pull_one, *others, **options)

    return pull


def without_parent(arguments: Sequence[str]) -> list[str]:
    words = list(arguments)
    if "--parent-pid" in words:
        at = words.index("--parent-pid")
        del words[at : at + 2]
    return words


def _entry_point() -> Callable[[], Any]:
    for point in importlib.metadata.entry_points(group="console_scripts", name=PROGRAM):
        return point.load()
    raise UnknownFlower(f"the installed Flower has no program {PROGRAM}")


def _check_insides(insides: Any) -> None:
    # Raise `UnknownFlower` where something is not there or takes other arguments.
    for name, wanted in _REPLACED.items():
        function = getattr(insides, name, None)
        if function is None or not wanted <= set(inspect.signature(function).parameters):
            raise UnknownFlower(
                f"the installed Flower has another {name}: the persistent worker does not know it"
            )
    client = getattr(insides, "RuntimeHttpClient", None)
    handlers = importlib.import_module("flwr.supercore.exit.exit_handler")
    there = [
        all(hasattr(client, name) for name in ("PullTaskInput", "PullMessages", "from_server_address")),
        hasattr(handlers, "trigger_exit_handlers"),
        hasattr(insides, "event"),
    ]
    if not all(there):
        raise UnknownFlower(
            "the installed Flower has other insides: the persistent worker does not know them"
        )


def _client_class(base: Any, take_input: Callable[[Callable[[], Any], Any], Any]) -> Any:
    # The program's connection to its node, which looks at the bundle and waits for a message that is being stored.
    from flwr.proto.runtime_pb2 import PullTaskInputResponse

    class Client(base):
        def PullTaskInput(self, request: Any) -> Any:
            return take_input(lambda: super(Client, self).PullTaskInput(request), PullTaskInputResponse)

        def PullMessages(self, request: Any) -> Any:
            """The SuperNode announces a task before it has stored the message: an empty answer is early."""
            wait = _FIRST_WAIT
            while not (response := super().PullMessages(request)).messages_list and wait <= _LONGEST_WAIT:
                time.sleep(wait)
                wait *= 2
            return response

    return Client
