"""What is run of a method: the record that a call makes of each, and the devices of a run that goes on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import jax

from fedsolve.core.algorithm import Algorithm
from fedsolve.engine.compute.processes import several
from fedsolve.engine.options import RunOptions
from fedsolve.engine.progress import Progress
from fedsolve.engine.result import Result
from fedsolve.folders.run_folder import RUN, read_manifest
from fedsolve.results.callbacks import CallbacksOfSeed


@dataclass(frozen=True, kw_only=True)
class MethodRuns:
    """What is run of a method.

    Attributes:
        algorithm: the method.
        seeds: which; None for the one of the options.
        callbacks_of: makes the callbacks of the run with a seed.
        out: the folder of its checkpoints, in which each of several seeds has its own; None for no folder.
        resume: whether the runs go on from their checkpoints; of several seeds those without one begin.
        label: what it is called; None for its name.
    """

    algorithm: Algorithm
    seeds: Sequence[int] | None = None
    callbacks_of: CallbacksOfSeed = lambda seed: ()
    out: Path | None = None
    resume: bool = False
    label: str | None = None


Finish = Callable[[Callable[[Progress], None] | None], tuple[Result, ...]]
"""Called for one method after another with what is told its progress: waits for its runs, and returns them."""


def on_devices_of(folder: Path | None, options: RunOptions) -> RunOptions:
    """The options of a run that goes on in a folder: on as many devices as it had, where none are given."""
    given = options.devices is not None or options.mesh is not None or several()
    if folder is None or given or not (path := folder / RUN.file).exists():
        return options
    had = read_manifest(path)["identity"]
    return options if "mesh" in had else replace(options, devices=min(had["devices"], len(jax.devices())))
