"""Rates that react to a run's evaluations: the method of the next rounds, and what is said of it at the end."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from fedsolve.core.algorithm import Algorithm
from fedsolve.core.errors import InvalidInput, shown
from fedsolve.core.schedules import Reacting, Schedule, rate_at
from fedsolve.core.types import Scalar, module
from fedsolve.engine.checks.methods import check_schedule
from fedsolve.engine.compute.casting import argument_name
from fedsolve.results.columns import Columns

_TOLD = 10  # changes of a rate that a note has room for


def has_feedback(method: Any) -> bool:
    return any(_reacts(node) for node in jax.tree.leaves(method, is_leaf=_reacts))


def with_current_rates(
    method: Algorithm, evaluations: Columns, versions: int = 1, stop: int | None = None
) -> Algorithm:
    """The method of the rounds that follow the last evaluation; itself where nothing in it reacts."""
    # it has the same structure, shapes and types after every evaluation: rounds are compiled once
    # method: as the run was given it, its numbers arrays
    # stop: rounds done at the next evaluation; None where that is after one round
    known = _repeatable(evaluations)

    def after(path: Any, node: Any) -> Any:
        if not _reacts(node):
            return node
        made = _after(node, known)
        if np.isfinite(known.get("train_loss", np.zeros(1))[-1]):
            done = int(known["round"][-1])
            check_schedule(path, made, done, done + 1 if stop is None else stop)
        if versions == 1:
            return made
        count = len(known["round"])
        lasts = np.maximum(1, np.arange(count - versions, count) + 1)
        parts = [_after(node, _first(known, last)) for last in lasts]
        return _Versions(
            jnp.asarray(known["round"][lasts - 1]), jax.tree.map(lambda *x: jnp.stack(x), *parts)
        )

    return jax.tree_util.tree_map_with_path(after, method, is_leaf=_reacts)


def with_reacting(method: Algorithm, of: Algorithm) -> Algorithm:
    """The method with those schedules of another of its structure that react."""
    return jax.tree.map(lambda mine, other: other if _reacts(mine) else mine, method, of, is_leaf=_reacts)


def rate_changes(method: Algorithm, evaluations: Columns) -> tuple[str, ...]:
    """What became of each rate that reacts, in words: after which rounds it changed, and to what."""
    # method: as the run was given it
    notes, known = [], _repeatable(evaluations)
    for path, node in jax.tree_util.tree_leaves_with_path(method, is_leaf=_reacts):
        if not _reacts(node):
            continue
        name = argument_name([jax.tree_util.keystr((key,), simple=True) for key in path])
        now, start, steps = node, f"{float(rate_at(node, 0)):g}", []
        for count, round in enumerate(known["round"][:-1].tolist(), 1):  # no round follows the last
            before, now = now, node.after(_first(known, count))
            rate = float(rate_at(now, round))
            if rate != float(rate_at(before, round)):
                steps.append(f"{rate:g} after round {round}")
        if len(steps) > _TOLD:
            steps = [*steps[: _TOLD - 1], "...", f"{steps[-1]} ({len(steps)} changes)"]
        if steps:
            notes.append(f"{name} {start} became {', '.join(steps)}")
    return tuple(notes)


@module
class _Versions(Schedule):
    """The schedules of the last evaluations, with a first axis: each round has that of the last one before it."""

    rounds: Array
    schedules: Any

    def __call__(self, round: Scalar) -> Scalar:
        latest = jnp.maximum(jnp.sum(self.rounds <= round) - 1, 0)
        return jax.tree.map(lambda x: x[latest], self.schedules)(round)


def _reacts(node: Any) -> bool:
    return isinstance(node, Reacting)


def _repeatable(evaluations: Columns) -> Columns:
    # what a run that is repeated finds again
    return {name: column for name, column in evaluations.items() if name != "seconds"}


def _first(evaluations: Columns, count: int) -> Columns:
    return {name: column[:count] for name, column in evaluations.items()}


def _after(node: Reacting, evaluations: Columns) -> Reacting:
    # the schedule that follows, its leaves of the types that they had
    following, name = node.after(evaluations), type(node).__name__
    if jax.tree.structure(following) != jax.tree.structure(node):
        raise InvalidInput(
            f"{name}.after returns {shown(following)}: it must return another {name}, such as replace(self, rate=...)"
        )

    def typed(path: Any, new: Any, old: Any) -> Array:
        if np.shape(new) != np.shape(old):
            raise InvalidInput(
                f"{name}.after changes {jax.tree_util.keystr(path)} from shape {np.shape(old)} to {np.shape(new)}: "
                "shapes must stay"
            )
        return jnp.asarray(new, old.dtype)

    return jax.tree_util.tree_map_with_path(typed, following, node)
