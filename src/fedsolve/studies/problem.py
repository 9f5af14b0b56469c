"""A problem and a method of a study: what is run, in which sizes, with which settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax

from fedsolve.core.errors import InvalidInput, check_integer, shown
from fedsolve.results.sweep import Selection

if TYPE_CHECKING:
    from fedsolve.core.algorithm import Algorithm
    from fedsolve.tasks.task import Task


@dataclass(frozen=True)
class Method:
    """A method in a study.

    Attributes:
        make: from the axes of its grid, by keyword, to the method.
        published: the setting that the paper reports for it, run with all seeds before anything is tuned; empty if
            the paper gives none.
        grid: axis -> values of the sweep from which the best is taken; it holds the published setting. Empty if
            nothing is tuned.
        options: of `fedsolve.sweep` in place of the problem's, where the method is run otherwise: its batch size,
            the clients that take part.
    """

    make: Callable[..., Algorithm]
    published: Mapping[str, Any] = field(default_factory=dict)
    grid: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.published and not self.grid:
            raise InvalidInput("a study's method needs a published setting or a grid: give at least one")
        if not self.published or not self.grid:
            return
        if set(self.published) != set(self.grid):
            raise InvalidInput(
                f"the published setting has {shown(list(self.published))}, the grid {shown(list(self.grid))}: "
                "both need the same axes"
            )
        for axis, value in self.published.items():
            if value not in self.grid[axis]:
                raise InvalidInput(f"the grid's {axis} = {self.grid[axis]} lacks the published {value}")


@dataclass(frozen=True)
class Problem:
    """What the methods are run on.

    Attributes:
        title: in a few words, for headings.
        size: how large it is, beside the paper's.
        task: from the data folder (None for FEDSOLVE_DATA) to the task; with `data_by_seed` from it and the seed.
        options: of `fedsolve.sweep`: rounds, clients_per_round, batch_size and so on.
        metric: what is compared at the end, a column of the evaluations.
        last: evaluations of the last so many rounds are averaged in it.
        select: how a grid's best setting is chosen, as `fedsolve.sweep` takes it.
        tuning: options that are others while the grid is run, such as fewer rounds or a share for validation; also
            `seeds`, where the grid runs on several, so that what is said of it has intervals.
        published: method -> the paper's number, in the metric's unit (accuracies as shares of 1).
        data_by_seed: whether each seed has data of its own, so that intervals are over data sets.
        overlap: test over training examples, where the seeds' data are splits of one data set: as `intervals.interval`
            takes it.
        tested: test examples, the same for every seed, where the metric is a mean over them of numbers in [0, 1]:
            verdicts then say what their chance, which no interval over seeds holds, would change. 0 where each seed
            has its own, or nothing bounds it.
        chance: the metric of the best constant prediction, which a method must beat to have learnt; 0 for none.
        grid_of: an earlier problem of the study, alike in all but its methods' grids, which hold those of this one:
            they are read there and not run again, and its edges are a condition of what is said. "" for none.
        methods: those of the study's methods that are run on it, in order; empty for all.
    """

    title: str
    size: str
    task: Callable[[Path | None], Task] | Callable[[Path | None, int], Task]
    options: Mapping[str, Any]
    metric: str = "test_accuracy"
    last: int = 1
    select: str = "training-loss"
    tuning: Mapping[str, Any] = field(default_factory=dict)
    published: Mapping[str, float] = field(default_factory=dict)
    data_by_seed: bool = False
    overlap: float = 0.0
    tested: int = 0
    chance: float = 0.0
    grid_of: str = ""
    methods: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if "rounds" not in self.options:
            raise InvalidInput(
                f"the problem {shown(self.title)} has no rounds: give options={{'rounds': ...}}"
            )
        Selection.parse(self.select)
        check_integer("tested", self.tested, 0)

    @property
    def replicates(self) -> str:
        """What the seeds repeat, in words: `seeds`, `data sets` or `splits`."""
        if self.overlap:
            return "splits"
        return "data sets" if self.data_by_seed else "seeds"

    @property
    def paired(self) -> str:
        """What intervals of differences are over, and what stands beside them, in words."""
        beside = f"; the test set's chance, at most, is of {self.tested:,} examples" if self.tested else ""
        return f"{self.over}, paired{beside}"

    @property
    def over(self) -> str:
        """What intervals are over, in words: of seeds alone they say nothing of other data."""
        return self.replicates if self.data_by_seed else "seeds, on one data set"


def check_tested(problem: Problem, task: Task) -> None:
    """Raise `InvalidInput` unless a task has as many test examples as its problem says."""
    count = 0 if task.test is None else len(jax.tree.leaves(task.test)[0])
    if problem.tested and count != problem.tested:
        raise InvalidInput(
            f"the problem {shown(problem.title)} says tested = {problem.tested}, its task has {count} test examples: "
            f"give tested={count}"
        )
