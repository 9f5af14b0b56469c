"""What tests hand to worker processes, which import this module and little else."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np

import fedsolve as fs
from fedsolve.tasks import Linear, SquaredError


def small() -> fs.Task:
    draw, model = np.random.default_rng(0), Linear(5)
    clients = [fs.Examples(draw.normal(size=(n, 5)), draw.normal(size=n)) for n in (4, 7, 5)]
    return fs.Task("small", model.init, SquaredError(model), fs.FederatedData.from_clients(clients))


def problem_task(data_dir: Path | None) -> fs.Task:
    return small()


class KilledOnce:
    """A callback that kills its own process in the middle of a run, unless a file says that it has done so."""

    def __init__(self, mark: Path, seed: int) -> None:
        self.mark, self.seed = mark, seed

    def __call__(self, at: Any) -> None:
        if self.seed == 1 and at.round == 2 and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
