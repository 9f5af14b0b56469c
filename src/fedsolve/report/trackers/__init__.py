"""Experiment trackers: `fs.run(..., callbacks=[fs.trackers.TensorBoard("runs/board")])` sends a run to one.

`TensorBoard`, `MLflow` and `WandB` get the settings, every evaluation, and at the end the record, the model and the
curves. Each needs its own package, an extra of the same name: `pip install 'fedsolve[mlflow]'`.
"""

from collections.abc import Callable
from pathlib import Path

from fedsolve.core.building import Registry
from fedsolve.core.errors import check_path
from fedsolve.report.trackers.services import MLflow, TensorBoard, WandB
from fedsolve.report.trackers.tracking import Tracker

__all__ = ["TRACKERS", "MLflow", "TensorBoard", "Tracker", "WandB", "tracker"]

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
