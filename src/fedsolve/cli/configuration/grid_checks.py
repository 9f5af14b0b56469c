"""What of a grid can be checked before anything runs: its axes and values, seeds, and what will be measured."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fedsolve.cli.configuration.config import MethodSection
from fedsolve.cli.configuration.grids import axis_values, with_values
from fedsolve.cli.configuration.values import method_arguments
from fedsolve.config.build import arguments, build
from fedsolve.core.algorithm import Algorithm
from fedsolve.core.errors import InvalidInput, unknown
from fedsolve.engine.sweep.grid import check_size
from fedsolve.geometry.diagnostics.diagnostic import Point
from fedsolve.tasks.task import Task


def which_seeds(given: int | list[int]) -> Sequence[int]:
    """Seeds from how many (0, 1, ...) or which.

    Raises:
        InvalidInput: none, or one that comes twice.
    """
    if isinstance(given, int):
        return range(min(given, sys.maxsize))  # no list: that it is too long is found later, with the grid
    seeds = given
    if not seeds:
        raise InvalidInput(
            "seeds = []: give at least one, such as seeds = [0], or how many, such as seeds = 3"
        )
    if len(set(seeds)) < len(seeds):
        raise InvalidInput(f"seeds = {seeds}: a seed comes twice")
    return seeds


def checked_grid(method: MethodSection, given: Mapping[str, Any], seeds: int) -> dict[str, list[Any]]:
    """The values of each axis of a method's grid, each of which builds the method.

    Raises:
        InvalidInput: an unknown axis (with the nearest match), a value that does not fit, too many settings for so
            many seeds.
    """
    known = arguments(method.name)
    for axis in given:
        if axis.partition(".")[0] not in known:
            raise unknown(f"setting of {method.name}", axis, known)
    grid = {axis: axis_values(f"grid: {axis}", values) for axis, values in given.items()}
    check_size([len(values) for values in grid.values()], seeds)
    for axis, values in grid.items():
        if "none" in values and axis in known and known[axis].default is not None:
            raise InvalidInput(f"grid: {axis}: none is no value of it; give numbers")
    first = {axis: values[0] for axis, values in grid.items()}
    for axis, values in grid.items():
        for value in values:
            build_at(method, first | {axis: value})
    return grid


def build_at(method: MethodSection, values: Mapping[str, Any]) -> Algorithm:
    """The method at one setting of a grid."""
    settings = with_values(method.settings, values)
    return build(method.name, method_arguments(method.name, settings))


def metrics_of(task: Task, algorithm: Algorithm, validation: bool = False) -> list[str]:
    """The columns of the evaluations of a method on a task, with or without examples held out of training."""
    model = jax.eval_shape(task.init, jax.random.key(0))
    known = ["train_loss"]
    for measure in (*task.diagnostics, *algorithm.diagnostics()):
        known += jax.eval_shape(lambda p, m=measure: m(Point(p, jnp.zeros(()), p)), model)
    held_out = ["test"] * (task.test is not None) + ["unseen"] * (task.unseen is not None)
    held_out += ["validation"] * (validation or task.validation is not None)
    return known + [f"{part}_{name}" for part in held_out for name in ("loss", *task.metrics, *task.whole)]
