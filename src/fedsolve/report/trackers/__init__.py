"""Experiment trackers: `fs.run(..., callbacks=[fs.trackers.TensorBoard("runs/board")])` sends a run to one.

`TensorBoard`, `MLflow` and `WandB` get the settings, every evaluation, and at the end the record, the model and the
curves. Each needs its own package, an extra of the same name: `pip install 'fedsolve[mlflow]'`.
"""

from fedsolve.report.trackers.by_name import TRACKERS, tracker
from fedsolve.report.trackers.mlflow import MLflow
from fedsolve.report.trackers.tensorboard import TensorBoard
from fedsolve.report.trackers.tracking import Tracker
from fedsolve.report.trackers.wandb import WandB

__all__ = ["TRACKERS", "MLflow", "TensorBoard", "Tracker", "WandB", "tracker"]


def __dir__() -> list[str]:
    return sorted(__all__)
