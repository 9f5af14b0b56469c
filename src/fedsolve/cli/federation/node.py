"""`fedsolve federate node`: Flower's SuperNode, with a persistent worker for its messages."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from fedsolve.cli.console import say
from fedsolve.cli.processes import is_taken
from fedsolve.core.errors import InvalidInput
from fedsolve.deploy.flower import check_flower
from fedsolve.deploy.oracles.node_oracle import STATE_FOLDER
from fedsolve.deploy.persistent.flower_program import PROGRAM, UnknownFlower, check_version
from fedsolve.deploy.persistent.node_folder import BIN, WorkerLimits, hold, make_folder, start_worker
from fedsolve.folders.untrusted import loads_toml, read_user_toml

POLL = "FLWR_SUPEREXEC_TASK_POLL_INTERVAL"
"""Flower's variable for the seconds after which a SuperExec looks for a message again."""
POLL_SECONDS = "0.1"
"""A look costs 5 ms of a processor. Flower's 1.0 s adds half a second to a message, this 0.05 s."""
_LARGEST = 2**20  # bytes of a node's configuration
_FILE = re.compile("--.*(certificates|-file|certfile|keyfile|private-key|entities)")  # options of Flower
_SETTING = re.compile(r"(\S+?)=('[^']*'|\"[^\"]*\"|\S+)")  # as Flower reads --node-config


def node_command(arguments: Sequence[str], limits: WorkerLimits, fresh: bool) -> NoReturn:
    """Become `flower-supernode`, whose messages a persistent worker runs, or with `fresh` a process each."""
    check_flower()
    check_options(arguments)
    environment = dict(os.environ)
    if not fresh and (reason := why_fresh(arguments)):
        say(f"each message runs in a process of its own: {reason}")
        fresh = True
    if not fresh:
        folder = make_folder(state_folder(arguments), limits, flower(PROGRAM))
        hold(folder)
        here = [str(folder / BIN), str(Path(sys.executable).parent), os.environ.get("PATH", "")]
        environment |= {"PATH": os.pathsep.join(here), POLL: os.environ.get(POLL, POLL_SECONDS)}
        start_worker(folder, environment)
    program = flower("flower-supernode")
    sys.stdout.flush()
    os.execve(program, [program, *arguments], environment)


def check_options(arguments: Sequence[str]) -> None:
    """Refuse in one line what Flower reports in a traceback or never: files, `--node-config`, the port."""
    given = _values(arguments)
    for option, value in given.items():
        is_config = option == "--node-config"
        if _FILE.fullmatch(option) or (is_config and value.endswith(".toml")):
            try:
                Path(value).expanduser().open("rb").close()
            except OSError as error:
                raise InvalidInput(f"{option} {value}: {error.strerror}") from None
        elif is_config and (rest := _SETTING.sub("", value).split()):
            raise InvalidInput(f'--node-config has {rest[0]}: give NAME=VALUE, such as "client-id=0"')
    port = given.get("--port", "9094")
    if re.fullmatch(r"[0-9]{4,5}", port) and 1024 <= int(port) < 2**16 and is_taken(int(port)):
        raise InvalidInput(f"port {port} of this machine is in use: give the node another with --port")


def why_fresh(arguments: Sequence[str]) -> str:
    """Why a persistent worker cannot run the messages of a node with these arguments; '' if it can."""
    words = [part for word in arguments for part in word.split("=", 1)]
    if ("--isolation", "process") in itertools.pairwise(words):
        return "with --isolation process, you start Flower's SuperExec yourself"
    if "--allow-runtime-dependency-installation" in words:
        return "with --allow-runtime-dependency-installation, each message has an environment of its own"
    try:
        check_version()
    except UnknownFlower as error:
        return str(error)
    return ""


def state_folder(arguments: Sequence[str]) -> Path:
    """The `state-dir` of a node's configuration, or where states are without it.

    >>> state_folder(["--insecure", "--node-config", "client-id=0 state-dir='my states'"])
    PosixPath('my states')
    >>> state_folder(["--insecure"])
    PosixPath('fedsolve-state')
    """
    given = _values(arguments).get("--node-config", "")
    try:
        if given.endswith(".toml"):
            config = read_user_toml(Path(given).expanduser(), _LARGEST)
        else:
            lines = (f"{name} = {value}" for name, value in _SETTING.findall(given))
            config = loads_toml("\n".join(lines))
    except (OSError, ValueError):  # Flower says what is wrong
        config = {}
    return Path(str(config.get("state-dir", STATE_FOLDER)))


def _values(arguments: Sequence[str]) -> dict[str, str]:
    words = [part for word in arguments for part in (word.split("=", 1) if word.startswith("--") else [word])]
    return {a: b for a, b in itertools.pairwise(words) if a.startswith("--")}


def flower(name: str) -> str:
    """The path of a program of Flower's, of this environment first."""
    here = Path(sys.executable).parent / name
    path = str(here) if here.exists() else shutil.which(name)
    if path is None:
        raise InvalidInput(f'{name} is not installed: pip install "fedsolve[flower]"')
    return path
