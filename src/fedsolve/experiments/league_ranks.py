"""Ranks of the league, and rules that turn them into verdicts and into what to take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fedsolve.experiments.league_runs import Entry
from fedsolve.studies.experiment import Verdict

League = Mapping[str, Mapping[str, Entry]]
PAR = 1.02
"""At par: a loss of at most so many times the other's."""


def ranks(losses: Sequence[float]) -> np.ndarray:
    """1 for the least loss; losses equal to three digits, and all infinite ones, share the mean of their places.

    >>> ranks([2.0, 1.0, 1.0001, np.inf, np.inf]).tolist()
    [3.0, 1.5, 1.5, 4.5, 4.5]
    """
    values = np.array([float(f"{x:.2e}") if np.isfinite(x) else np.inf for x in losses])
    below = (values[None] < values[:, None]).sum(axis=1)
    equal = (values[None] == values[:, None]).sum(axis=1)
    return below + (equal + 1) / 2


def rank_table(league: League) -> tuple[list[str], list[str], np.ndarray]:
    """Methods, tasks, and ranks of shape (methods, tasks)."""
    tasks, methods = list(league), list(next(iter(league.values())))
    found = np.stack([ranks([league[t][m].final for m in methods]) for t in tasks], axis=1)
    return methods, tasks, found


def failures(league: League, method: str) -> tuple[list[str], list[str]]:
    """Tasks on which it diverged, and on which it ended above the start's loss."""
    states = {task: entries[method].state for task, entries in league.items()}
    return [t for t, s in states.items() if s == "diverged"], [t for t, s in states.items() if s == "worse"]


def at_par(league: League, method: str, others: Sequence[str]) -> list[str]:
    """Tasks on which the method's loss is finite and at most PAR times the least of the others'."""
    found = []
    for task, entries in league.items():
        rest = min(entries[o].final for o in others)
        mine = entries[method].final
        if np.isfinite(mine) and mine <= (PAR * rest if rest > 0 else rest):
            found.append(task)
    return found


def ahead(league: League, method: str, other: str) -> list[str]:
    """Tasks on which the method's loss is smaller than another's, a divergence counting as infinite."""
    return [t for t, entries in league.items() if entries[method].final < entries[other].final]


def by_tasks(won: int, tasks: int) -> Verdict:
    """All tasks reproduce a claim, half of them partly.

    >>> by_tasks(3, 3), by_tasks(2, 3), by_tasks(1, 3)
    ('reproduced', 'partly', 'not reproduced')
    """
    return "reproduced" if won == tasks else "partly" if 2 * won >= tasks else "not reproduced"


def _failed(league: League, task: str) -> int:
    return sum(entry.state != "fine" for entry in league[task].values())


def recommendation(league: League) -> list[tuple[str, str, str]]:
    """What to take: (question, method, because), computed from the ranks."""
    methods, tasks, place = rank_table(league)
    mean = place.mean(axis=1)
    bad = np.array([sum(map(len, failures(league, m))) for m in methods])
    order = np.lexsort((mean, bad))
    first, safe = int(np.argmin(mean)), int(order[0])
    best = {t: methods[int(np.argmin(place[:, i]))] for i, t in enumerate(tasks)}
    worst = place.max(axis=1)
    steady = int(np.lexsort((mean, worst))[0])
    usual = [i for i, t in enumerate(tasks) if 2 * _failed(league, t) <= len(methods)]
    where = place[:, usual or range(len(tasks))].mean(axis=1)
    normal = int(np.argmin(where))

    def said(i: int) -> str:
        return f"mean rank {mean[i]:.1f} of {len(methods)}, fails on {bad[i]} of {len(tasks)} tasks"

    wins = {m: [t for t, b in best.items() if b == m] for m in dict.fromkeys(best.values())}
    most = max(wins, key=lambda m: len(wins[m]))
    return [
        ("the least mean rank", methods[first], said(first)),
        (
            "the least mean rank on tasks that most methods solve",
            methods[normal],
            f"mean rank {where[normal]:.1f} on {', '.join(tasks[i] for i in usual)}; over all, {said(normal)}",
        ),
        ("the fewest failures, then the least mean rank", methods[safe], said(safe)),
        ("the best worst rank", methods[steady], f"never below rank {worst[steady]:g}; {said(steady)}"),
        ("the most first places", most, f"first on {', '.join(wins[most])}"),
    ]
