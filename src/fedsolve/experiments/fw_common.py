"""Runs of the Frank-Wolfe experiments: contenders with the settings that are tried, and the choice among them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import fedsolve as fs
from fedsolve.errors import Diverged
from fedsolve.studies.experiment import Context

KEPT = {"loss": "suboptimality", "gap": "gap", "accuracy": "test_accuracy"}
"""What is kept of a run: F(xbar), the Frank-Wolfe gap over all training data, and the test accuracy."""
Curves = dict[str, np.ndarray]
"""`round`, and loss, gap, accuracy by (seed, evaluation); see `tuned` for the rest."""


@dataclass(frozen=True)
class Contender:
    """A method, and the settings that it may be given.

    Attributes:
        label: what tables call it.
        make: (ball, setting) -> algorithm.
        settings: numbers that are tried, a tuple for each try.
    """

    label: str
    make: Callable[[Any, tuple[float, ...]], Any]
    settings: Sequence[tuple[float, ...]]


@dataclass(frozen=True)
class Plan:
    """How long and how often: what `fedsolve.run` is told.

    Attributes:
        rounds: of the runs that count.
        trial_rounds: of the runs that choose the setting.
        every: rounds between evaluations.
        batch: examples of a minibatch, or "full".
        seeds: of data, partition, start and minibatches; the first one chooses the setting.
    """

    rounds: int
    trial_rounds: int
    every: int
    batch: Any
    seeds: tuple[int, ...]


def one_run(algorithm: Any, task: Any, seed: int, **settings: Any) -> dict[str, np.ndarray]:
    """The kept curves of a run; NaN throughout if it diverges."""
    try:
        found = fs.run(algorithm, task, seed=seed, **settings).history.evaluations
    except Diverged:
        rounds = np.arange(0, settings["rounds"] + 1, settings["eval_every"])
        return {"round": rounds} | {name: np.full(len(rounds), np.nan) for name in KEPT}
    return {"round": found["round"]} | {name: found[of] for name, of in KEPT.items()}


def tuned(
    context: Context, name: str, contender: Contender, ball: Any, tasks: Mapping[int, Any], plan: Plan,
    settings: Mapping[str, Any],
) -> Curves:  # fmt: skip
    """A contender with the setting of the smallest training loss on the first seed.

    Besides the curves: `tried`, the final F of each setting, and `chosen`, its number.
    """

    def compute() -> Curves:
        say, total = context.progress(name), len(contender.settings) + len(plan.seeds)
        options = {
            "batch_size": plan.batch,
            "eval_every": plan.every,
            "local_steps": 1,
        }
        tried, first = [], {}
        for i, setting in enumerate(contender.settings):
            algorithm = contender.make(ball, setting)
            found = one_run(
                algorithm, tasks[plan.seeds[0]], plan.seeds[0], rounds=plan.trial_rounds, **options
            )
            tried.append(found["loss"][-1])
            first[i] = found
            say(i + 1, total)
        chosen = choose(tried)
        runs = []
        for k, seed in enumerate(plan.seeds):
            same = k == 0 and plan.trial_rounds == plan.rounds
            algorithm = contender.make(ball, contender.settings[chosen])
            runs.append(
                first[chosen]
                if same
                else one_run(algorithm, tasks[seed], seed, rounds=plan.rounds, **options)
            )
            say(len(contender.settings) + k + 1, total)
        curves = {key: np.stack([run[key] for run in runs]) for key in KEPT}
        return {"round": runs[0]["round"], **curves, "tried": np.array(tried), "chosen": np.array(chosen)}

    known = {
        **settings,
        **vars(plan),
        "contender": contender.label,
        "tried": [list(s) for s in contender.settings],
        "local_steps": 1,
    }
    return context.part(name, known, compute)


def choose(losses: Sequence[float]) -> int:
    """The number of the smallest loss; settings that diverged count as infinite."""
    return int(np.argmin(np.where(np.isfinite(losses), losses, np.inf)))


def final(curves: Curves, key: str) -> float:
    """The mean over seeds at the end."""
    return float(curves[key][:, -1].mean())


def spread(values: np.ndarray, digits: int = 3, factor: float = 1.0) -> str:
    """`mean ± standard deviation` over seeds, or the one value, with as many digits in both.

    >>> spread(np.array([0.861, 0.873]), 3, 100.0), spread(np.array([0.01234]), 3)
    ('86.7 ± 0.8', '0.0123')
    """
    values = np.asarray(values) * factor
    mean = float(values.mean())
    if not np.isfinite(mean):
        return "diverged"
    size = np.floor(np.log10(abs(mean))) if mean else 0.0
    places = int(np.clip(digits - 1 - size, 0, 6))
    shown = f"{mean:.{places}f}"
    return shown if len(values) == 1 else f"{shown} ± {values.std(ddof=1):.{places}f}"
