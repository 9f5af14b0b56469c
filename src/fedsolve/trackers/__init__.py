"""Experiment trackers: `fs.run(..., callbacks=[fs.trackers.TensorBoard("runs/board")])` sends a run to one.

`TensorBoard`, `MLflow` and `WandB` get the settings, every evaluation, and at the end the record, the model and the
curves. Each needs its own package, an extra of the same name: `pip install 'fedsolve[mlflow]'`.
"""

from fedsolve.trackers.base import Tracker
from fedsolve.trackers.catalogue import TRACKERS, tracker
from fedsolve.trackers.mlflow import MLflow
from fedsolve.trackers.tensorboard import TensorBoard
from fedsolve.trackers.wandb import WandB

__all__ = ["TRACKERS", "MLflow", "TensorBoard", "Tracker", "WandB", "tracker"]


def __dir__() -> list[str]:
    return sorted(__all__)
