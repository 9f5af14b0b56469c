"""What a local line search costs: gradients and losses that a client evaluates, and how many reach a training loss."""

from __future__ import annotations

import numpy as np

from fedsolve.studies import Cells, Decision, Study
from fedsolve.studies.pictures import Line, Panel, Panelled
from fedsolve.studies.rules import combined, decided, interval, provisional, rule

STEPS = 20
"""K: local steps, a gradient each."""
FALL = 0.9
"""The training loss that is to be reached: so much of what a baseline takes off its start."""
SEARCHES = "loss_evaluations"


def evaluations(cells: Cells, problem: str, method: str, losses: bool) -> np.ndarray:
    """Of a client that takes part in every round, until each evaluation of the run, (seeds, evaluations).

    Gradients, and with `losses` the trials of its line searches too; a gradient counts as one.
    """
    rounds, values = cells.curve(problem, method)
    gradients = np.broadcast_to(STEPS * rounds, values.shape).astype(float)
    run = cells.cell(problem, method).of("tuned")
    if not losses or run is None or SEARCHES not in run.metrics:
        return gradients
    trials = cells.curve(problem, method, metric=SEARCHES)[1].copy()
    trials[:, 0] = 0  # of the model before the first round
    return gradients + np.cumsum(trials, axis=1)


def _needed(cells: Cells, problem: str, method: str, base: str, losses: bool) -> np.ndarray:
    start, end = (float(cells.curve(problem, base, metric="train_loss")[1][:, at].mean()) for at in (0, -1))
    reached = cells.curve(problem, method, metric="train_loss")[1] <= start - FALL * (start - end)
    spent = evaluations(cells, problem, method, losses)
    return np.array([s[np.argmax(r)] if r.any() else np.inf for s, r in zip(spent, reached, strict=True)])


@rule
def saves(cells: Cells, problems: tuple[str, ...], method: str, base: str, losses: bool) -> Decision:
    """`method` needs fewer evaluations than the tuned `base` on every problem to 90 % of the fall of its loss."""
    words, verdicts, weak = [], [], []
    for name in problems:
        ours, theirs = (_needed(cells, name, one, base, losses) for one in (method, base))
        missed = int((~np.isfinite(ours)).sum())
        weak.append(provisional(cells, name, "tuned", (base,)))
        if missed:
            words.append(f"{name}: not reached on {missed} of {len(ours)} seeds")
            verdicts.append((name, "not reproduced"))
            continue
        found = interval(np.log(theirs) - np.log(ours), len(problems))
        words.append(f"{name}: {found.factor.text('.2f', 'times fewer')}, {ours.mean():.0f} in the mean")
        verdicts.append((name, decided(found, 0.0)))
    verdict, which = combined(verdicts)
    what = "gradients and losses" if losses else "gradients"
    reason = f"{what} of a client that takes part in every round, to {FALL:.0%} of what {base} takes off the training "
    reason += f"loss, by the 95 % intervals of the ratio, all {len(problems)} together{which}"
    return Decision("; ".join(words), verdict, reason, "; ".join(dict.fromkeys(filter(None, weak))))


def by_work(caption: str, names: tuple[str, ...]) -> Panelled:
    """Training loss by round, and by gradients and losses: a row a problem, with those of the methods that it has."""

    def rows(study: Study, cells: Cells) -> list[list[Panel]]:
        return [_row(cells, name, names) for name in cells.problems if len(cells.methods(name)) > 1]

    return Panelled(caption, rows)


def _row(cells: Cells, problem: str, names: tuple[str, ...]) -> list[Panel]:
    title = cells.problem(problem).title
    by_round, by_evaluation = [], []
    for method in [m for m in cells.methods(problem) if m in names]:
        rounds, loss = cells.curve(problem, method, metric="train_loss")
        by_round.append(Line(method, rounds, loss))
        work = evaluations(cells, problem, method, losses=True).mean(axis=0)
        by_evaluation.append(Line(method, work[1:], loss[:, 1:]))
    worked = "gradients and losses that a client evaluates"
    return [
        Panel(title, by_round, "training loss"),
        Panel(title, by_evaluation, "training loss", worked, xlog=True),
    ]
