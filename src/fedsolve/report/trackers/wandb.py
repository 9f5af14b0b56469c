"""Weights & Biases: a run of a project, written offline unless WANDB_MODE says otherwise."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from fedsolve.core.checks import check_path
from fedsolve.report.trackers.tracking import CURVES, Tracker, package
from fedsolve.results.history import Setting

_SHORT = {
    "init_timeout": 20,
    "x_graphql_retry_max": 3,
    "x_graphql_retry_wait_max_seconds": 2,
    "x_graphql_timeout_seconds": 5,
}
"""Seconds and retries for a server that cannot be reached: by default the end of a process waits minutes for it."""


class WandB(Tracker):
    """Sends a run to W&B, with rounds as steps and the settings as its configuration; seeds are one group.

    Nothing leaves the machine unless WANDB_MODE=online is set: `wandb sync` sends what was written. The project is
    WANDB_PROJECT (default "fedsolve").

    Args:
        folder: where W&B makes its folder `wandb`.

    Raises:
        InvalidInput: wandb is not installed, or the folder is no path.
    """

    def __init__(self, folder: str | Path = ".") -> None:
        self._package, self._folder = package("wandb", "wandb"), check_path("folder", folder)
        self._run: Any = None

    def begin(self, label: str, task: str, settings: dict[str, Setting]) -> None:
        """See `Tracker`."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._run = self._package.init(
            project=os.environ.get("WANDB_PROJECT", "fedsolve"),
            name=f"{label} on {task}, seed {settings.get('seed')}",
            group=f"{label} on {task}",
            config={"method": label, "task": task, **settings},
            dir=str(self._folder),
            mode=os.environ.get("WANDB_MODE", "offline"),
            settings=self._package.Settings(silent=True, **_SHORT),
            reinit="create_new",  # seeds run side by side
        )

    def log(self, round: int, metrics: dict[str, float]) -> None:
        """See `Tracker`."""
        self._run.log(metrics, step=round)

    def keep(self, files: list[Path]) -> None:
        """See `Tracker`: W&B takes its own copies, of what stays where it is."""
        folder = Path(self._run.dir)
        for path in files:
            self._run.save(shutil.copy(path, folder), base_path=folder, policy="end")
            if path.name == CURVES:
                self._run.summary["curves"] = self._package.Image(str(path))

    def close(self, finished: bool) -> None:
        """See `Tracker`."""
        self._run.finish(exit_code=0 if finished else 1)
