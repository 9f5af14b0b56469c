"""Flower's own commands on a SuperLink: submit a run of an app, ask for it, read its log, stop it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedsolve.core.errors import InvalidInput

_COLOURS = ("FORCE_COLOR", "CLICOLOR_FORCE")


class FlowerCommands:
    """`flwr` on one SuperLink.

    Attributes:
        connection: the name of the SuperLink in `$FLWR_HOME/config.toml`; '' for the default one there.
    """

    connection = ""

    @property
    def env(self) -> dict[str, str]:
        """The environment of the commands."""
        # what notebooks and some CI set would put colours into the JSON that the commands answer
        return {name: value for name, value in os.environ.items() if name not in _COLOURS}

    def flwr(self, *arguments: str) -> str:
        """What a command says.

        Raises:
            InvalidInput: it failed; its last words.
        """
        done = subprocess.run(
            [program("flwr"), *arguments], env=self.env, capture_output=True, text=True, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        if done.returncode:
            raise InvalidInput(f"flwr {arguments[0]} failed: {last_line(done.stderr or done.stdout)}")
        return done.stdout

    def submit(self, app: Path, config: Mapping[str, Any], text: str = "") -> int:
        """Start a run of an app; its number.

        Args:
            app: its folder.
            config: of the run, by key.
            text: further configuration, as `flwr run --run-config` takes it.

        Raises:
            InvalidInput: Flower does not take it; its reason.
        """
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
        """What the run's server app has printed."""
        return self.flwr("log", str(run), *self._where, "--show")

    def stop_run(self, run: int) -> None:
        """End a run."""
        with contextlib.suppress(InvalidInput):
            self.flwr("stop", str(run), *self._where)

    @property
    def _where(self) -> list[str]:
        return [self.connection] if self.connection else []


def program(name: str) -> str:
    """A program of Flower's: that of this environment if there is one."""
    here = Path(sys.executable).parent / name
    return str(here) if here.exists() else name


def last_line(text: str) -> str:
    """The last line that says something, without colours."""
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line).strip() for line in text.splitlines()]
    return next((line for line in reversed(lines) if line), "nothing was said")


def _document(said: str) -> dict[str, Any]:
    return json.loads(said[said.index("{") :])


def _toml(value: Any) -> str:
    return json.dumps(value)  # strings, numbers and booleans are written alike
