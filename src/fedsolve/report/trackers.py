"""Experiment trackers: `fs.run(..., callbacks=[fs.trackers.TensorBoard("runs/board")])` sends a run to one.

`TensorBoard`, `MLflow` and `WandB` get the settings, every evaluation, and at the end the record, the model and the
curves. Each needs its own package, an extra of the same name: `pip install 'fedsolve[mlflow]'`.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import shutil
import tempfile
import time
import warnings
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from threading import Condition, Thread
from types import ModuleType
from typing import Any

from fedsolve.core.building import Registry
from fedsolve.core.errors import InvalidInput, check_path, shown
from fedsolve.report.plots import curves
from fedsolve.report.plots import save as save_figure
from fedsolve.report.table import headline
from fedsolve.results.callbacks import Evaluated
from fedsolve.results.columns import dumps
from fedsolve.results.history import Setting

__all__ = ["TRACKERS", "MLflow", "TensorBoard", "Tracker", "WandB", "tracker"]

# What every tracker does: it is a callback that sends on what is new, and the files of the result at the end.

CURVES = "curves.png"


class Tracker(ABC):
    """Base class of trackers: callbacks that log runs to an experiment tracker, each run as a run of its own.

    A resumed run is one of its own there, with the evaluations of before. Everything is sent from a thread of its own,
    so that the run does not wait for the tracker. What fails is sent again, which the run warns of. What the tracker
    has not taken at the end of the run, `patience` seconds after the last success, is dropped with a warning.

    Attributes:
        patience: seconds without success after which the end of a run waits no longer, > 0.
    """

    patience = 20.0  # a local MLflow database or W&B's own process takes seconds to start
    observes_only = True  # and ends no run
    _sender: Sender | None = None
    _sent = -1  # evaluations that were handed over; -1 while no run is begun
    _warned = False

    def __call__(self, at: Evaluated) -> None:
        """Log the new evaluations.

        Args:
            at: the evaluation.
        """
        with self._without_harm():
            self._send(at)
        error = self._sending.error
        if error is not None and not self._warned:
            self._warned = True
            warnings.warn(f"{type(self).__name__} fails and is tried again: {_line(error)}", stacklevel=2)

    def ended(self, result: Any) -> None:
        """Log the result's files, close the run and wait until all is sent; a run without a result is marked failed.

        Args:
            result: what `fs.run` returns, or None.
        """
        self._warned = False
        if self._sent < 0:
            return
        calls = self._sent + 2  # the run's start, each evaluation, the run's end
        with tempfile.TemporaryDirectory() as name, self._without_harm():
            try:
                if result is not None:
                    self._sending.put(partial(self.keep, _files_of(result, Path(name))))
                    calls += 1
                self._sending.put(partial(self.close, finished=result is not None))
                if dropped := self._sending.finish(self.patience):
                    error = self._sending.error
                    why = "no answer" if error is None else _line(error)
                    taken = min(max(calls - dropped - 1, 0), self._sent)  # without the run's start
                    warnings.warn(
                        f"{type(self).__name__} logged {taken} of {self._sent} evaluations, then nothing for "
                        f"{self.patience:g} s ({why}): the run's own record has them all",
                        stacklevel=3,
                    )
            finally:
                self._sent = -1

    @property
    def _sending(self) -> Sender:
        if self._sender is None:  # made late: a tracker of one's own need not call `super().__init__`
            self._sender = Sender()
        return self._sender

    def _send(self, at: Evaluated) -> None:
        if self._sent < 0:
            record = at.result().history
            self._sending.put(partial(self.begin, at.label, record.task, dict(record.settings)))
            self._sent = 0
        columns = at.metrics
        rounds = columns["round"]
        for row in range(self._sent, len(rounds)):
            metrics = {k: float(v[row]) for k, v in columns.items() if k != "round"}
            self._sending.put(partial(self.log, int(rounds[row]), metrics))
        self._sent = len(rounds)

    @contextlib.contextmanager
    def _without_harm(self) -> Iterator[None]:
        # an error on the run's side, whatever it is, is a warning and does not end the run
        try:
            yield
        except Exception as error:
            warnings.warn(f"{type(self).__name__} does not log this run: {_line(error)}", stacklevel=4)

    @abstractmethod
    def begin(self, label: str, task: str, settings: dict[str, Setting]) -> None:
        """Begin a run of a method on a task, with its resolved settings.

        Args:
            label: the method's name in tables.
            task: the task's name.
            settings: name -> number or text.
        """

    @abstractmethod
    def log(self, round: int, metrics: dict[str, float]) -> None:
        """Log metrics after a number of rounds; non-finite values are logged unchanged.

        Args:
            round: rounds done, from 0.
            metrics: name -> value at that evaluation.
        """

    @abstractmethod
    def keep(self, files: list[Path]) -> None:
        """Log the result's files: record, evaluations, model and a plot; they are deleted afterwards.

        Args:
            files: paths in a temporary folder.
        """

    @abstractmethod
    def close(self, finished: bool) -> None:
        """End the run.

        Args:
            finished: whether the run ended with a result.
        """


def _files_of(result: Any, folder: Path) -> list[Path]:
    # a result's files, saved in a folder, with a plot of its curves where matplotlib is installed
    result.save(folder)
    if importlib.util.find_spec("matplotlib") is not None:
        shown = [result.history]
        save_figure(curves(shown, headline(shown)), folder / CURVES)
    return sorted(folder.iterdir())


def _line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def package(name: str, extra: str) -> ModuleType:
    """A tracker's package; `InvalidInput` if it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise InvalidInput(f"{name} is not installed: pip install 'fedsolve[{extra}]'") from None


_FIRST_PAUSE, _LONGEST_PAUSE = 0.25, 8.0  # seconds before a call that failed is made again


class Sender:
    """Makes calls one after another, in the order in which they were put; a call that fails is made again.

    `error` is what the latest failure raised; None while no call has failed since the last `finish`.
    """

    def __init__(self) -> None:
        self.error: Exception | None = None
        self._calls: deque[Callable[[], None]] = deque()
        self._changed = Condition()
        self._thread: Thread | None = None
        self._made, self._finishing = 0, False

    def put(self, call: Callable[[], None]) -> None:
        """Have a call, without arguments, made after those before it."""
        with self._changed:
            if self._finishing:
                self._finishing, self.error = False, None
            self._calls.append(call)
            if self._thread is None:
                self._thread = Thread(target=self._work, name="fedsolve tracker", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def finish(self, patience: float) -> int:
        """Wait until every call is made, and return how many were dropped."""
        # They are once none has succeeded for `patience` seconds.
        with self._changed:
            self._finishing = True
            self._changed.notify_all()
            made = -1
            while self._calls and made != self._made:
                made = self._made
                self._changed.wait_for(lambda made=made: not self._calls or self._made != made, patience)
            dropped = len(self._calls)
            self._calls.clear()
            self._changed.notify_all()
        return dropped

    def _work(self) -> None:
        pause = _FIRST_PAUSE
        while (call := self._next()) is not None:
            try:
                call()
            except Exception as error:  # whatever the tracker's package raises
                with self._changed:
                    if self._is_next(call):
                        self.error = error
                        self._changed.wait_for(lambda: not self._calls, pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
            else:
                pause = _FIRST_PAUSE
                with self._changed:
                    if self._is_next(call):
                        self._calls.popleft()
                        self._made += 1
                    self._changed.notify_all()

    def _next(self) -> Callable[[], None] | None:
        # the first call that is not made yet; None ends the thread
        with self._changed:
            self._changed.wait_for(lambda: self._calls or self._finishing)
            if self._calls:
                return self._calls[0]
            self._thread = None
            return None

    def _is_next(self, call: Callable[[], None]) -> bool:
        return bool(self._calls) and self._calls[0] is call  # not if it was dropped meanwhile


# The trackers that runs can be sent to: TensorBoard (by tensorboardX), MLflow (by mlflow-skinny or mlflow) and W&B.

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
        name = f"{label}-{task}-{settings.get('seed')}".replace("/", "-")
        self._writer = self._package.SummaryWriter(str(_new_folder(self._folder, name)))
        self._writer.add_text("settings", f"```\n{dumps(settings, 1)}\n```", 0)

    def log(self, round: int, metrics: dict[str, float]) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, round)
        self._writer.flush()

    def keep(self, files: list[Path]) -> None:
        """Log the plot alone."""
        for path in files:
            if path.name == CURVES:
                from matplotlib.image import imread

                self._writer.add_image("curves", imread(path)[..., :3], 0, dataformats="HWC")

    def close(self, finished: bool) -> None:
        self._writer.add_text("status", "finished" if finished else "not finished", 0)
        self._writer.close()


def _new_folder(parent: Path, name: str) -> Path:
    # a folder of that name, numbered where there is one; made at once, since runs side by side look for one too
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
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "fedsolve")
        known = self._client.get_experiment_by_name(name)
        experiment = self._client.create_experiment(name) if known is None else known.experiment_id
        run = self._client.create_run(experiment, run_name=f"{label} on {task}, seed {settings.get('seed')}")
        self._run, self._params = run.info.run_id, {"method": label, "task": task, **settings}

    def log(self, round: int, metrics: dict[str, float]) -> None:
        """Make one request, however many metrics; the run's parameters go with the first."""
        metric, param = self._package.entities.Metric, self._package.entities.Param
        now = int(time.time() * 1000)
        self._client.log_batch(
            self._run,
            metrics=[metric(name, value, now, round) for name, value in metrics.items()],
            params=[param(key, str(value)[:_LONGEST]) for key, value in self._params.items()],
        )
        self._params = {}

    def keep(self, files: list[Path]) -> None:
        for path in files:
            self._client.log_artifact(self._run, str(path))

    def close(self, finished: bool) -> None:
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
        self._run.log(metrics, step=round)

    def keep(self, files: list[Path]) -> None:
        """Log the files, of which W&B makes copies."""
        folder = Path(self._run.dir)
        for path in files:
            self._run.save(shutil.copy(path, folder), base_path=folder, policy="end")
            if path.name == CURVES:
                self._run.summary["curves"] = self._package.Image(str(path))

    def close(self, finished: bool) -> None:
        self._run.finish(exit_code=0 if finished else 1)


TRACKERS: Registry[Callable[[Path], Tracker]] = Registry(
    "tracker",
    {
        "tensorboard": lambda folder: TensorBoard(folder / "tensorboard"),
        "mlflow": lambda folder: MLflow(),
        "wandb": WandB,
    },
)
"""Each made for the folder of a run, in which it keeps what it writes; MLflow's place is its own setting."""


def tracker(name: str, folder: Path) -> Tracker:
    """Make a tracker by name, for a run's folder.

    Args:
        name: of `TRACKERS`.
        folder: that of the run, in which the tracker may keep its files.

    Returns:
        A callback for `fs.run(callbacks=[...])`.

    Raises:
        InvalidInput: there is none (the nearest is named), or its package is not installed.
    """
    return TRACKERS.find(name)(check_path("folder", folder))
