"""Which clients' answers to a question are far beyond the others: one of 1e300 would be the mean. No Flower here."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedsolve.deploy.messages.message import PARTS, PartMetrics
from fedsolve.methods.robust.outliers import FACTOR, usual_norm


def find_far_answers(
    answers: Mapping[int, Mapping[str, PartMetrics]], first: Mapping[str, float]
) -> dict[int, str]:
    """The clients whose answer to a question has a metric far beyond the usual, each with the reason.

    Usual is the median of the answers, as in a first round, or what was measured first where that is larger: where
    most losses fall to 0 an honest one need not.

    Args:
        answers: by client, what each measured by part.
        first: the first value in the record of each metric's mean over training examples, by metric.
    """
    found: dict[int, str] = {}
    for part in PARTS:
        of_part = {client: parts[part] for client, parts in sorted(answers.items()) if part in parts}
        for name in {name: None for measured in of_part.values() for name in measured.means}:
            sizes = {client: abs(measured.means[name]) for client, measured in of_part.items()}
            known = {client: x for client, x in sizes.items() if x < math.inf}
            if not known:
                continue
            median = float(usual_norm(np.array(list(known.values())), 0.0, np))
            usual = max(median, abs(first.get(name, 0.0)))
            for client, x in known.items():
                if x > FACTOR * usual:
                    found[client] = (
                        f"its {part} {name} is {of_part[client].means[name]:.6g}, in size more than {FACTOR:,.0f} "
                        f"times the {usual:.6g} that is usual"
                    )
    return found


def first_means(evaluations: Mapping[str, Any]) -> dict[str, float]:
    """What clients' training examples gave first, by metric: the first number in each of the record's columns.

    >>> first_means({"round": [0, 1], "train_loss": [float("nan"), 2.0], "test_loss": [3.0, 1.0]})
    {'loss': 2.0}
    """
    found = {}
    for name, values in evaluations.items():
        known = [x for x in values if np.isfinite(x)] if name.startswith("train_") else []
        if known:
            found[name.removeprefix("train_")] = float(known[0])
    return found
