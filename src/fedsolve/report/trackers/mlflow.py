"""MLflow, by mlflow-skinny or mlflow: a run of an experiment."""

from __future__ import annotations

import os
import time
from pathlib import Path

from fedsolve.core.errors import InvalidInput, shown
from fedsolve.report.trackers.tracking import Tracker, package
from fedsolve.results.history import Setting

_LONGEST = 6000  # characters of a parameter's value


class MLflow(Tracker):
    """Sends a run to MLflow, with rounds as steps and the settings as parameters.

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
