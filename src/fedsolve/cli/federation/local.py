"""Flower's own commands, and a real federation on one machine: a SuperLink and SuperNodes on loopback."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedsolve.cli.federation.node import POLL, POLL_SECONDS
from fedsolve.cli.processes import HOST, free_port, is_listening, is_taken
from fedsolve.core.errors import InvalidInput
from fedsolve.deploy.host import VARIABLE, share_of_cores
from fedsolve.deploy.persistent.node_folder import remove_folders_left, workers_in
from fedsolve.deploy.processes import descendants, is_alive, send_signal
from fedsolve.folders.files import write_atomically

_COLOURS = ("FORCE_COLOR", "CLICOLOR_FORCE")


class FlowerCommands:
    """`flwr` on one SuperLink: `connection` is its name in `$FLWR_HOME/config.toml`, '' for the default one there."""

    connection = ""

    @property
    def env(self) -> dict[str, str]:
        # what notebooks and some CI set would put colours into the JSON that the commands answer
        return {name: value for name, value in os.environ.items() if name not in _COLOURS}

    def flwr(self, *arguments: str) -> str:
        done = subprocess.run(
            [program("flwr"), *arguments], env=self.env, capture_output=True, text=True, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        if done.returncode:
            raise InvalidInput(f"flwr {arguments[0]} failed: {last_line(done.stderr or done.stdout)}")
        return done.stdout

    def submit(self, app: Path, config: Mapping[str, Any], text: str = "") -> int:
        """Start a run of an app; its number. `text` is further configuration, as `flwr run --run-config` takes it."""
        words = [text, *(f"{name}={_toml(value)}" for name, value in config.items())]
        given = " ".join(word for word in words if word)
        options = ["--format", "json", *(["--run-config", given] if given else [])]
        said = _document(self.flwr("run", str(app), *self._where, *options))
        if "run-id" not in said:  # it ends with 0 all the same
            raise InvalidInput(f"flwr run failed: {last_line(str(said.get('error-message', '')))}")
        return int(said["run-id"])

    def status(self, run: int) -> str:
        """Where a run stands: pending, starting, running, or finished:completed, :failed, :stopped."""
        said = self.flwr("list", *self._where, "--run-id", str(run), "--format", "json")
        return str(_document(said)["runs"][0]["status"])

    def log(self, run: int) -> str:
        return self.flwr("log", str(run), *self._where, "--show")

    def stop_run(self, run: int) -> None:
        with contextlib.suppress(InvalidInput):
            self.flwr("stop", str(run), *self._where)

    @property
    def _where(self) -> list[str]:
        return [self.connection] if self.connection else []


def program(name: str) -> str:
    here = Path(sys.executable).parent / name
    return str(here) if here.exists() else name


def last_line(text: str) -> str:
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line).strip() for line in text.splitlines()]
    return next((line for line in reversed(lines) if line), "nothing was said")


def _document(said: str) -> dict[str, Any]:
    return json.loads(said[said.index("{") :])


def _toml(value: Any) -> str:
    if isinstance(value, str) and '"' in value and "'" not in value:
        return f"'{value}'"  # Flower finds the end of a text at its next quotation mark, escaped or not
    return json.dumps(value)  # strings, numbers and booleans are written alike


# A real federation on one machine: a SuperLink and SuperNodes of Flower on loopback, stopped however it ends.
#
# Nothing here leaves the machine: telemetry, update checks and installation of apps' dependencies are switched off.


OFFLINE = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
"""What keeps Flower's processes from reaching out."""

_START_SECONDS, _STOP_SECONDS = 60.0, 15.0


@dataclass
class LocalFederation(FlowerCommands):
    """Processes of one federation; use it as a context, so that all of them are stopped at the end."""

    folder: Path  # logs, Flower's own files, the SuperLink's database and the clients' states
    clients: int  # number of SuperNodes, of clients 0, 1, ...
    port: int | None = None  # of the SuperLink; the nodes take free ones. None takes a free one too.
    environment: Mapping[str, str] = field(default_factory=dict)
    insecure: bool = True
    # link_options, node_options: further options of the SuperLink and of each SuperNode (a function of the client's
    # number), for certificates and keys; with them `insecure` is False
    link_options: Sequence[str] = ()
    node_options: Any = None
    certificate: Path | None = None
    fresh: bool = False  # each message runs in a process of its own, not in its node's persistent worker

    connection = "here"

    def __post_init__(self) -> None:
        self.folder = self.folder.absolute()
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.port is not None and is_taken(self.port):
            raise InvalidInput(f"port {self.port} of {HOST} is in use: choose another with --port")
        self.port = self.port or free_port()
        self.superlink: subprocess.Popen[bytes] | None = None
        self.nodes: dict[int, subprocess.Popen[bytes]] = {}
        security = (
            "insecure = true" if self.insecure else f"root-certificates = {json.dumps(str(self.certificate))}"
        )
        write_atomically(
            self.folder / "flwr" / "config.toml",
            f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "{HOST}:{self.port}"\n{security}\n',
        )

    @property
    def env(self) -> dict[str, str]:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        variables = {"FLWR_HOME": str(self.folder / "flwr"), "PATH": path, "PYTHONUNBUFFERED": "1"}
        defaults = {VARIABLE: str(share_of_cores(self.clients)), POLL: POLL_SECONDS}
        return {**defaults, **super().env, **OFFLINE, **variables, **self.environment}

    def __enter__(self) -> LocalFederation:
        try:
            self.start_superlink()
            for client in range(self.clients):
                self.start_node(client)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *error: Any) -> None:
        self.stop()

    def start_superlink(self) -> None:
        safety = ["--insecure"] if self.insecure else []
        database = str(self.folder / "superlink.db")
        address = ["--host", HOST, "--port", str(self.port)]
        self.superlink = self._start(
            "superlink", ["flower-superlink", *safety, *address, "--database", database, *self.link_options]
        )
        end = time.monotonic() + _START_SECONDS
        while not is_listening(self.port or 0):
            if self.superlink.poll() is not None or time.monotonic() > end:
                raise InvalidInput(f"the SuperLink does not start: {self.last_words('superlink')}")
            time.sleep(0.1)

    def start_node(self, client: int, config: str = "") -> subprocess.Popen[bytes]:
        facts = f'client-id={client} state-dir="{self.folder / "states"}" {config}'.strip()
        safety = ["--insecure"] if self.insecure else ["--root-certificates", str(self.certificate)]
        addresses = ["--superlink", f"{HOST}:{self.port}", "--host", HOST, "--port", str(free_port())]
        options = self.node_options(client) if self.node_options else []
        program = ["fedsolve", "federate", "node", *(["--fresh"] if self.fresh else [])]
        node = self._start(
            f"client-{client}", [*program, *safety, *addresses, "--node-config", facts, *options]
        )
        self.nodes[client] = node
        return node

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """End a process at once, as a crash would, with the processes that it started."""
        send_signal([*descendants(process.pid), process.pid], signal.SIGKILL)
        process.wait()

    def stop(self) -> None:
        """Stop everything that was started: the nodes, then the SuperLink, then what they started, by their numbers."""
        started = [p for p in [*self.nodes.values(), self.superlink] if p is not None]
        family = [pid for p in started for pid in descendants(p.pid)] + workers_in(self.folder / "states")
        for process in started:
            if process.poll() is None:
                process.terminate()
        end = time.monotonic() + _STOP_SECONDS
        for process in started:
            try:
                process.wait(max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                self.kill(process)
        send_signal(family, signal.SIGTERM)
        while (left := [pid for pid in family if is_alive(pid)]) and time.monotonic() < end:
            time.sleep(0.1)
        send_signal(left, signal.SIGKILL)
        remove_folders_left(self.folder / "states")

    def last_words(self, name: str) -> str:
        """The last line of a process's log that says something."""
        path = self.folder / f"{name}.log"
        return last_line(path.read_text(errors="replace")) if path.exists() else "no log"

    def _start(self, name: str, command: list[str]) -> subprocess.Popen[bytes]:
        with open(self.folder / f"{name}.log", "ab") as log:
            return subprocess.Popen(
                [program(command[0]), *command[1:]], env=self.env, cwd=self.folder, stdin=subprocess.DEVNULL,
                stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
