"""What a sweep is asked for: a grid's settings with their methods, seeds, how the best is chosen, and all else."""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedsolve.config.build import arguments, build
from fedsolve.core.algorithm import Algorithm
from fedsolve.core.errors import (
    InvalidInput,
    check_different,
    check_integer,
    check_seed,
    is_integer,
    shown,
    unknown,
)
from fedsolve.engine.options import RunOptions
from fedsolve.geometry.diagnostics import Diagnostic
from fedsolve.results.sweep import Selection

MOST_TRIALS = 20_000
"""Settings x seeds of one sweep: each is a method of its own before anything runs."""


@dataclass(frozen=True, kw_only=True)
class SweepOptions:
    """The options of a sweep besides its method, task and grid.

    `run` has those of every trial (its seed and devices are not looked at); `validation` is the share of every
    client's examples that is held out of training; `parallel_trials` is None for what fits the memory and is fast.
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


def check_size(values: Sequence[int], seeds: int) -> int:
    # the trials of axes of so many values with so many seeds; `InvalidInput` if they are more than `MOST_TRIALS`
    trials = math.prod(values) * seeds
    if trials > MOST_TRIALS:
        sizes = " x ".join(f"{n:,}" for n in values) or "1"
        raise InvalidInput(
            f"{sizes} settings with {seeds:,} seed{'s' * (seeds != 1)} are {trials:,} runs, more than the "
            f"{MOST_TRIALS:,} of one sweep: take fewer values or seeds, or several sweeps"
        )
    return trials


def check_grid(grid: Mapping[str, Sequence[Any]]) -> dict[str, tuple[Any, ...]]:
    # the axes of a grid, their values as tuples
    if grid is not None and not isinstance(grid, Mapping):
        raise InvalidInput(
            f"grid = {shown(grid)} must be values by name, such as {{'client_lr': [0.01, 0.1]}}"
        )
    if not grid:
        raise InvalidInput("the grid has no axis: give at least one, such as {'client_lr': [0.01, 0.1, 1.0]}")
    axes = {}
    for name, values in grid.items():
        if isinstance(values, str) or not isinstance(values, Sequence | np.ndarray) or not len(values):
            raise InvalidInput(f"axis {name} = {values!r} of the grid must be a list of at least one value")
        axes[name] = tuple(v.item() if isinstance(v, np.generic) else v for v in values)
        check_different(f"axis {name} of the grid", axes[name])
    return axes


def check_seeds(seeds: int | Sequence[int]) -> tuple[int, ...]:
    # the seeds of a sweep: those given, or 0, 1, ... if they are given by number.
    if is_integer(seeds):
        check_size([], int(seeds))
        numbers = tuple(range(seeds))
    else:
        numbers = tuple(seeds) if isinstance(seeds, Sequence) and not isinstance(seeds, str) else ()
    if not numbers or not all(is_integer(s) and s >= 0 for s in numbers) or len(set(numbers)) < len(numbers):
        raise InvalidInput(
            f"seeds = {seeds!r} must be how many, at least 1, or different integers of at least 0"
        )
    return tuple(check_seed(s) for s in numbers)


def selection_of(select: Selection | str | None, rounds: int) -> Selection:
    # how a sweep of so many rounds chooses the best setting, by default by its training loss
    if isinstance(select, Selection):
        return select
    if select is not None and not isinstance(select, str):
        raise InvalidInput(f"select = {shown(select)} must be text such as 'train_loss:100'")
    return Selection.parse(select) if select else Selection.standard(rounds)


def build_methods(make: Callable[..., Algorithm], axes: Mapping[str, tuple[Any, ...]]) -> list[Algorithm]:
    # the method at every setting, in the order of the product of the axes: the last one fastest
    if not callable(make):
        raise InvalidInput(f"algorithm = {shown(make)} must be a method's name or a function that makes one")
    name = getattr(make, "__name__", "the method")
    known = inspect.signature(make).parameters
    if not any(p.kind is inspect.Parameter.VAR_KEYWORD for p in known.values()):
        for axis in axes:
            if axis not in known:
                raise unknown(f"setting of {name}", axis, known)
    methods = [make(**dict(zip(axes, values, strict=True))) for values in itertools.product(*axes.values())]
    for method in methods:
        if not isinstance(method, Algorithm):
            raise InvalidInput(f"{name} gives {method!r}, not an algorithm such as FedAvg(client_lr=0.1)")
    return methods


def by_name(name: str) -> Callable[..., Algorithm]:
    # the function that makes a method of the catalogue, whose signature has the method's settings
    known = arguments(name)

    def make(**settings: Any) -> Algorithm:
        return build(name, settings)

    parameters = [inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY) for key in known]
    make.__name__ = name
    make.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportFunctionMemberAccess]
    return make
