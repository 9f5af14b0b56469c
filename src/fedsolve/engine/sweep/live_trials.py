"""Trials that go on, in as few batches as hold them: those that have diverged cost nothing more.

A program's bits may depend on its shape, and in a product also on the row. So batches keep their shape, and a trial
keeps its column: it takes the place of one that has diverged in the same column of another batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from fedsolve.engine.sweep.trials import RunningBatch


def in_fewest_batches(running: Sequence[RunningBatch]) -> list[RunningBatch]:
    """The trials that have not diverged, in batches of the same shape; one batch stays where all have."""
    alike: dict[Any, list[RunningBatch]] = {}
    for current in running:
        program = jax.tree.structure((current.algorithms, current.diagnostics))
        alike.setdefault((program, tuple(current.batch.seeds.tolist())), []).append(current)
    packed = [batch for group in alike.values() for batch in _packed(group)]
    return packed or [running[0]]


def _packed(group: list[RunningBatch]) -> list[RunningBatch]:
    """The same of batches of one program and the same seeds."""
    live = np.stack([_live_columns(current) for current in group])
    needed = int(live.sum(0).max())
    if needed == len(group):
        return group
    first = np.argsort(
        ~live, axis=0, kind="stable"
    )  # of each column the batches, those with a live one first
    return [group[0].with_columns(group, source) for source in first[:needed]]


def _live_columns(current: RunningBatch) -> np.ndarray:
    """Which columns hold a trial that has not diverged; a setting that fills a batch up counts once."""
    live = np.zeros(len(current.batch.settings), bool)
    live[np.unique(current.batch.settings, return_index=True)[1]] = True
    return live & (np.asarray(current.states.failed) < 0).any(0)
