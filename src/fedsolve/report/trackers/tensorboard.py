"""TensorBoard, by tensorboardX: event files in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedsolve.core.checks import check_path
from fedsolve.report.trackers.tracking import CURVES, Tracker, package
from fedsolve.results.columns import dumps
from fedsolve.results.history import Setting


class TensorBoard(Tracker):
    """Writes event files for `tensorboard --logdir FOLDER`, with rounds as steps.

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
