"""What the studies of participation and of the penalty share: Figures 2 to 4 of Dadras et al. 2024."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from experiments.fedfw.linear import problem
from fedsolve.studies import Cells, Decision, Problem
from fedsolve.studies.cells import SettingKind
from fedsolve.studies.public import describe
from fedsolve.studies.rules import (
    beyond,
    correlation,
    decided,
    provisional,
    rule,
)

ROUNDS, EVERY, CLIENTS, MOST = 100, 2, 10, 200


def data(name: str, ball: str, of: str, **options: Any) -> Problem:
    """Ten clients of 200 with 3 labels each, the mean of F over all rounds."""
    size = f"{CLIENTS} clients of {MOST}, 3 labels each"
    made = problem((ball, "labels", of), {}, size, CLIENTS, MOST, rounds=ROUNDS)
    told = {"rounds": ROUNDS, "eval_every": EVERY, "batch_size": "full", "local_steps": 1, **options}
    return replace(made, title=name, options=told, metric="train_loss", last=ROUNDS)


@rule
def ordered(
    cells: Cells, problems: Sequence[str], labels: Sequence[str], rising: bool, which: SettingKind
) -> Decision:
    """On each problem the metric rises (or falls) along the methods: by its rank correlation on each data set."""
    found, words, metric = {}, [], describe(cells.problem(problems[0]).metric)
    for name in problems:
        ends = np.array([metric.scale * cells.final(name, label, which) for label in labels])
        found[name] = correlation([(np.arange(len(labels)), column) for column in ends.T], len(problems))
        words.append(
            f"{name}: {', '.join(f'{x:.4g}' for x in ends.mean(axis=1))}; correlation {found[name]:.2f}"
        )
    held, where = beyond(found.items(), 0.0, 1 if rising else -1)
    ours = f"{metric.title} at {', '.join(labels)}. {'. '.join(words)}"
    reason = (
        f"rank correlation {'above' if rising else 'below'} 0 by the 95 % intervals over data sets{where}"
    )
    turns = [_turns(cells, name, labels, which) for name in problems]
    weak = [provisional(cells, name, which, labels) for name in problems]
    return Decision(ours, held, "; ".join(filter(None, (reason, *turns))), "; ".join(filter(None, weak)))


def _turns(cells: Cells, name: str, labels: Sequence[str], which: SettingKind) -> str:
    """That F, the mean of all methods, ends above its least by more than chance: models unlearn; "" if it does not."""
    curves = [cells.curve(name, label, which, "train_loss") for label in labels]
    rounds, losses = curves[0][0], np.mean([values for _, values in curves], axis=0)
    least = int(np.argmin(losses.mean(axis=0)))
    if decided(cells.interval(name, losses[:, -1] - losses[:, least]), 0.0) != "reproduced":
        return ""
    return f"{name}: F is least at round {rounds[least]} and rises again"
