"""What a sweep is asked for besides its method, task and grid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedsolve.core.checks import check_integer
from fedsolve.core.errors import InvalidInput, shown
from fedsolve.engine.options import RunOptions
from fedsolve.geometry.diagnostics.diagnostic import Diagnostic
from fedsolve.results.sweep import Selection


@dataclass(frozen=True, kw_only=True)
class SweepOptions:
    """The options of a sweep besides its method, task and grid.

    Attributes:
        run: of every trial; its seed and devices are not looked at.
        seeds: of the trials of each setting.
        selection: how the best setting is chosen.
        validation: share of every client's examples that is held out of training; None holds out nothing.
        diagnostics: instead of the task's and the method's.
        parallel_trials: trials side by side in one program; None for what fits the memory and is fast.

    Raises:
        InvalidInput: diagnostics that are none, or parallel_trials below 1.
    """

    run: RunOptions
    seeds: tuple[int, ...]
    selection: Selection
    validation: float | None = None
    diagnostics: Sequence[Diagnostic] | None = None
    parallel_trials: int | None = None

    def __post_init__(self) -> None:
        given = self.diagnostics
        listed = isinstance(given, tuple | list) and all(isinstance(d, Diagnostic) for d in given)
        if given is not None and not listed:
            raise InvalidInput(
                f"diagnostics = {shown(given)} must be a list of diagnostics of fedsolve.diagnostics"
            )
        if self.parallel_trials is not None:
            check_integer("parallel_trials", self.parallel_trials, 1)
