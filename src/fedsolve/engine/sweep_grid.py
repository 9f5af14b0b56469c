"""What a sweep is asked for: settings of a grid or at random, their methods, seeds, how the best is chosen."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import math
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from fedsolve.core.algorithm import Algorithm
from fedsolve.core.errors import (
    InvalidInput,
    check_different,
    check_integer,
    check_known,
    check_seed,
    is_integer,
    shown,
    unknown,
)
from fedsolve.engine.options import RunOptions
from fedsolve.geometry.diagnostics import Diagnostic
from fedsolve.results.sweep import RANDOM, Selection, points_of

MOST_TRIALS = 20_000
"""Settings x seeds of one sweep: each is a method of its own before anything runs."""
_RANGE = re.compile(r"(?P<low>[^:,]+):(?P<high>[^:,]+?)(:(?P<kind>log|int|logint))?")


@dataclass(frozen=True)
class Range:
    """From where a random search draws the values of an axis; both ends are possible."""

    low: float
    high: float
    kind: str

    @classmethod
    def parse(cls, where: str, text: str) -> Self:
        found = _RANGE.fullmatch(text.replace(" ", ""))
        low, high, kind = math.nan, math.nan, (found["kind"] or "") if found else ""
        with contextlib.suppress(ValueError):
            low, high = map(int if "int" in kind else float, found.group("low", "high") if found else "??")
        if not low < high < math.inf or low == -math.inf or ("log" in kind and low <= 0):
            raise InvalidInput(
                f"{where} = {shown(text)} must be a list of values, or a range from a number to a larger one: low:high "
                "(uniform), low:high:log (log-uniform, above 0), low:high:int or low:high:logint (integers)"
            )
        return cls(low, high, kind)

    def at(self, share: float) -> float:
        """The value at a share in [0, 1) of the range, to 6 digits, so that every computer gives the same.

        >>> Range(0.001, 10, "log").at(0.25), Range(0, 1, "").at(0.25), Range(1, 8, "int").at(0.99)
        (0.01, 0.25, 8)
        """
        # an integer k is as likely as the numbers from k to k + 1
        whole, low, high = "int" in self.kind, self.low, self.high + ("int" in self.kind)
        value = low + share * (high - low)
        if "log" in self.kind:
            value = math.exp(math.log(low) + share * (math.log(high) - math.log(low)))
        return min(max(math.floor(value) if whole else float(f"{value:.6g}"), self.low), self.high)


@dataclass(frozen=True, kw_only=True)
class Search:
    """Which settings are tried, all of a grid or `trials` at random, which follow from `seed`; `halving` stops some."""

    kind: str = "grid"
    trials: int | None = None
    seed: int = 0
    halving: int | None = None

    def __post_init__(self) -> None:
        check_integer("halving", 2 if self.halving is None else self.halving, 2)
        check_known("search", self.kind, ("grid", RANDOM))
        check_integer("search_seed", self.seed)
        check_integer("trials", 1 if self.trials is None else self.trials, 1)
        if (self.kind == RANDOM) != (self.trials is not None):
            raise InvalidInput(
                f"search = {self.kind!r}, trials = {self.trials}: give trials, such as 60, to a random search alone"
            )

    def draw(self, axes: Mapping[str, tuple[Any, ...] | Range]) -> dict[str, tuple[Any, ...]]:
        """Different settings at random: of each axis a value for every setting."""
        # Setting by setting and axis by axis the next number of Python's `random.Random(seed)` decides, so that a
        # search of more trials begins with those of fewer. A setting that was drawn before is drawn again.
        assert self.trials is not None
        u, found, most = random.Random(self.seed).random, {}, 1000 + 100 * self.trials
        for _ in range(most):
            drawn = [x.at(u()) if isinstance(x, Range) else x[int(u() * len(x))] for x in axes.values()]
            found.setdefault(repr(drawn), drawn)
            if len(found) == self.trials:
                return dict(zip(axes, zip(*found.values(), strict=True), strict=True))
        raise InvalidInput(
            f"trials = {self.trials}: there are about {len(found):,} different settings: take fewer, or wider ranges"
        )

    def stops(self, settings: int, rounds: int, eval_every: int) -> dict[int, int]:
        """How many settings go on after some rounds, as `fedsolve.sweep` says.

        >>> Search(halving=3).stops(60, 200, 4)
        {8: 20, 24: 6, 68: 2}
        """
        if (eta := self.halving) is None:
            return {}
        most = next(k for k in itertools.count() if settings < eta ** (k + 1))
        times = [(k, settings // eta**k) for k in range(1, most + 1)]
        found = {eval_every * -(-rounds // (eval_every * eta ** (most - k + 1))): count for k, count in times}
        if not found or max(found) >= rounds:
            every = f"{settings} settings, evaluated every {eval_every} of {rounds} rounds"
            raise InvalidInput(
                f"halving = {eta} of {every}: take more settings, a smaller eval_every, or no halving"
            )
        return found

    def notes(self, saved: int, of: int) -> tuple[str, ...]:
        """That the result depends on chance, if it does, and what stopping has saved."""
        drawn = f"{self.trials} settings drawn at random: search_seed = {self.seed} draws the same, another one others"
        halved = f"successive halving by {self.halving} saved {saved:,} of {of:,} rounds of all trials"
        return (drawn,) * (self.trials is not None) + (halved,) * (self.halving is not None)

    def record(self, grid: Mapping[str, Any]) -> dict[str, Any]:
        ranges = {axis: x if isinstance(x, str) else list(x) for axis, x in grid.items()}
        about = {"kind": self.kind, "trials": self.trials, "seed": self.seed, "ranges": ranges}
        return ({} if self.trials is None else about) | ({"halving": self.halving} if self.halving else {})


GRID = Search()


@dataclass(frozen=True, kw_only=True)
class SweepOptions:
    """The options of a sweep besides its method, task and grid."""

    # `run` has those of every trial (its seed and devices are not looked at); `validation` is the share of every
    # client's examples that is held out of training; `parallel_trials` is None for what fits the memory and is fast;
    # `label` is the method's name in tables.

    run: RunOptions
    seeds: tuple[int, ...]
    selection: Selection
    search: Search = GRID
    validation: float | None = None
    diagnostics: Sequence[Diagnostic] | None = None
    parallel_trials: int | None = None
    label: str | None = None

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


def check_grid(
    grid: Mapping[str, Sequence[Any]], seeds: int, search: Search = GRID
) -> dict[str, tuple[Any, ...]]:
    # the axes of a grid, their values as tuples; of a random search those of each setting
    if grid is not None and not isinstance(grid, Mapping):
        raise InvalidInput(
            f"grid = {shown(grid)} must be values by name, such as {{'client_lr': [0.01, 0.1]}}"
        )
    if not grid:
        raise InvalidInput("the grid has no axis: give at least one, such as {'client_lr': [0.01, 0.1, 1.0]}")
    axes: dict[str, Any] = {}
    for name, values in grid.items():
        if not isinstance(name, str):
            raise InvalidInput(f"axis {shown(name)} of the grid must be the name of a setting")
        if isinstance(values, str) and search.kind == RANDOM:
            axes[name] = Range.parse(f"axis {name}", values)
            continue
        if isinstance(values, str) or not isinstance(values, Sequence | np.ndarray) or not len(values):
            raise InvalidInput(
                f"axis {name} = {values!r} of the grid must be a list of values (search = 'random' takes ranges too)"
            )
        axes[name] = tuple(v.item() if isinstance(v, np.generic) else v for v in values)
        check_different(f"axis {name} of the grid", axes[name])
    check_size([len(values) for values in axes.values()] if search.trials is None else [search.trials], seeds)
    return axes if search.trials is None else search.draw(axes)


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


def build_methods(
    make: Callable[..., Algorithm], axes: Mapping[str, tuple[Any, ...]], kind: str = "grid"
) -> list[Algorithm]:
    # the method at every setting, in their order
    if not callable(make):
        raise InvalidInput(f"algorithm = {shown(make)} must be a method's name or a function that makes one")
    name = getattr(make, "__name__", "the method")
    known = inspect.signature(make).parameters
    if not any(p.kind is inspect.Parameter.VAR_KEYWORD for p in known.values()):
        for axis in axes:
            if axis not in known:
                raise unknown(f"setting of {name}", axis, known)
    methods = [make(**point) for point in points_of(axes, kind)]
    for method in methods:
        if not isinstance(method, Algorithm):
            raise InvalidInput(f"{name} gives {method!r}, not an algorithm such as FedAvg(client_lr=0.1)")
    return methods
