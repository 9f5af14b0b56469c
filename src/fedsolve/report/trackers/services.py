"""The trackers that runs can be sent to: TensorBoard (by tensorboardX), MLflow (by mlflow-skinny or mlflow) and W&B."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

from fedsolve.core.errors import InvalidInput, check_path, shown
from fedsolve.report.trackers.tracking import CURVES, Tracker, package
from fedsolve.results.columns import dumps
from fedsolve.results.history import Setting

_LONGEST = 6000  # characters of a parameter's value in MLflow
_SHORT = {
    "init_timeout": 20,
    "x_graphql_retry_max": 3,
    "x_graphql_retry_wait_max_seconds": 2,
    "x_graphql_timeout_seconds": 5,
}
"""Seconds and retries for a server of W&B that cannot be reached: by default a process waits minutes for it."""


class TensorBoard(Tracker):
    """Log a run to TensorBoard event files, with rounds as steps; view them with `tensorboard --logdir FOLDER`.

    The model is no file of TensorBoard's and is not among them.

    Args:
        folder: where the runs' folders are made, each by its method, task and seed, numbered where it exists.

    Raises:
        InvalidInput: tensorboardX is not installed, or the folder is no path.
    """

    def __init__(self, folder: str | Path) -> None:
        self._package = package("tensorboardX", "tensorboard")
        self._folder = check_path("folder", folder)
        self._writer: Any = None

    def begin(self, label: str, task: str, settings: dict[str, Setting]) -> None:
        """See `Tracker`."""
        name = f"{label}-{task}-{settings.get('seed')}".replace("/", "-")
        self._writer = self._package.SummaryWriter(str(_new_folder(self._folder, name)))
        self._writer.add_text("settings", f"```\n{dumps(settings, 1)}\n```", 0)

    def log(self, round: int, metrics: dict[str, float]) -> None:
        """See `Tracker`."""
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, round)
        self._writer.flush()

    def keep(self, files: list[Path]) -> None:
        """See `Tracker`: the plot."""
        for path in files:
            if path.name == CURVES:
                from matplotlib.image import imread

                self._writer.add_image("curves", imread(path)[..., :3], 0, dataformats="HWC")

    def close(self, finished: bool) -> None:
        """See `Tracker`."""
        self._writer.add_text("status", "finished" if finished else "not finished", 0)
        self._writer.close()


def _new_folder(parent: Path, name: str) -> Path:
    """A folder of that name, numbered where there is one; made at once, since runs side by side look for one too."""
    parent.mkdir(parents=True, exist_ok=True)
    folder, number = parent / name, 2
    while True:
        try:
            folder.mkdir()
            return folder
        except FileExistsError:
            folder, number = parent / f"{name}-{number}", number + 1


class MLflow(Tracker):
    """Log a run to MLflow, with rounds as steps and the settings as parameters.

    Where to is MLflow's own setting: MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME (default "fedsolve").

    Args:
        uri: of the tracking server or database, in place of MLFLOW_TRACKING_URI.

    Raises:
        InvalidInput: mlflow is not installed, or does not take the address.
    """

    def __init__(self, uri: str | None = None) -> None:
        self._package = package("mlflow", "mlflow")
        if uri is not None and not isinstance(uri, str):
            raise InvalidInput(f"uri = {shown(uri)} must be text, such as 'http://127.0.0.1:5000'")
        try:
            self._client = self._package.MlflowClient(tracking_uri=uri)
        except self._package.exceptions.MlflowException as error:
            raise InvalidInput(f"MLflow does not take uri = {shown(uri)}: {error}") from None
        self._run = ""
        self._params: dict[str, Setting] = {}

    def begin(self, label: str, task: str, settings: dict[str, Setting]) -> None:
        """See `Tracker`."""
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "fedsolve")
        known = self._client.get_experiment_by_name(name)
        experiment = self._client.create_experiment(name) if known is None else known.experiment_id
        run = self._client.create_run(experiment, run_name=f"{label} on {task}, seed {settings.get('seed')}")
        self._run, self._params = run.info.run_id, {"method": label, "task": task, **settings}

    def log(self, round: int, metrics: dict[str, float]) -> None:
        """See `Tracker`: one request, however many metrics; the run's parameters go with the first."""
        metric, param = self._package.entities.Metric, self._package.entities.Param
        now = int(time.time() * 1000)
        self._client.log_batch(
            self._run,
            metrics=[metric(name, value, now, round) for name, value in metrics.items()],
            params=[param(key, str(value)[:_LONGEST]) for key, value in self._params.items()],
        )
        self._params = {}

    def keep(self, files: list[Path]) -> None:
        """See `Tracker`."""
        for path in files:
            self._client.log_artifact(self._run, str(path))

    def close(self, finished: bool) -> None:
        """See `Tracker`."""
        self._client.set_terminated(self._run, "FINISHED" if finished else "FAILED")


class WandB(Tracker):
    """Log a run to Weights & Biases, with rounds as steps and the settings as configuration; seeds form a group.

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
        """See `Tracker`; W&B copies the files."""
        folder = Path(self._run.dir)
        for path in files:
            self._run.save(shutil.copy(path, folder), base_path=folder, policy="end")
            if path.name == CURVES:
                self._run.summary["curves"] = self._package.Image(str(path))

    def close(self, finished: bool) -> None:
        """See `Tracker`."""
        self._run.finish(exit_code=0 if finished else 1)
