"""Which method to take, predicted from the first rounds of FedAvg, and what that costs on a data set held out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from experiments.client_drift.phase_diagram.regret import regrets
from fedsolve.studies import Cells, Decision
from fedsolve.studies.experiment import Verdict
from fedsolve.studies.rules import Interval, around_factor, decided, elsewhere, rule

LOGGED, FIRST = "FedAvg", 10
"""Whose log is read, of how many rounds."""
_LOST = np.log(10.0)  # regret of a run that diverged
_DRAWS = 10_000


@dataclass(frozen=True)
class Groups:
    """Cells of one data set each, which are held out together.

    Attributes:
        logs: of each group, (cells, deals, 2): logarithms of the diversity of the client updates and of the loss over
            that at the start.
        regret: of each group, (cells, deals, methods): logarithm of the loss over that of the cell's best.
    """

    logs: list[np.ndarray]
    regret: list[np.ndarray]


def log_of(cells: Cells, problem: str) -> np.ndarray:
    """What FedAvg logs in its first rounds, (deals, 2); of a run that diverged there zeros."""
    rounds, loss = cells.curve(problem, LOGGED)
    diversity = cells.curve(problem, LOGGED, metric="diversity")[1]
    first = (rounds > 0) & (rounds <= FIRST)
    with np.errstate(invalid="ignore", divide="ignore"):
        logs = np.stack(
            [np.log(diversity[:, first]).mean(axis=1), np.log(loss[:, first][:, -1] / loss[:, 0])], 1
        )
    return np.where(np.isfinite(logs), logs, 0.0)


def regret_of(cells: Cells, problem: str, methods: Sequence[str]) -> np.ndarray:
    """Each method's logarithm of the loss over that of the cell's best of all methods, (deals, methods)."""
    found = regrets(cells, problem)
    best = cells.final(problem, min(found, key=lambda m: found[m].mean))
    with np.errstate(invalid="ignore"):
        regret = np.stack([np.log(cells.final(problem, m) / best) for m in methods], axis=1)
    return np.where(np.isfinite(regret), regret, _LOST)


def chosen(logs: np.ndarray, regret: np.ndarray, new: np.ndarray) -> np.ndarray:
    """The method of least predicted regret, by a linear regression of each method's regret on the log.

    Args:
        logs: (runs, features); regret: (runs, methods); new: (..., features).
    """

    def with_one(x: np.ndarray) -> np.ndarray:
        return np.concatenate([np.ones((*x.shape[:-1], 1)), x], axis=-1)

    slopes = np.linalg.lstsq(with_one(logs), regret, rcond=None)[0]
    return (with_one(new) @ slopes).argmin(axis=-1)


def held_out(groups: Groups) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Regret of the predicted method and of the one with the least mean regret on the other groups, each (cells,).

    By group, which neither has seen; means over the deals, in each of which the choice follows that deal's log.
    """
    predicted, always = [], []
    for k, (logs, regret) in enumerate(zip(groups.logs, groups.regret, strict=True)):
        seen = [i for i in range(len(groups.logs)) if i != k]
        known = np.concatenate([groups.regret[i].reshape(-1, regret.shape[-1]) for i in seen])
        read = np.concatenate([groups.logs[i].reshape(-1, logs.shape[-1]) for i in seen])
        choice = chosen(read, known, logs)
        predicted.append(np.take_along_axis(regret, choice[..., None], axis=-1)[..., 0].mean(axis=1))
        always.append(regret[..., known.mean(axis=0).argmin()].mean(axis=1))
    return predicted, always


def bootstrap(values: Sequence[np.ndarray]) -> Interval:
    """The mean over all cells, with a 95 % interval from redrawing the cells of each group."""
    rng = np.random.default_rng(0)
    sums = sum(one[rng.integers(len(one), size=(_DRAWS, len(one)))].sum(axis=1) for one in values)
    low, high = np.quantile(sums / sum(map(len, values)), (0.025, 0.975))
    return Interval(float(np.concatenate(values).mean()), float(low), float(high))


@rule
def predicts(cells: Cells, groups: Sequence[Sequence[str]], methods: Sequence[str], gain: float) -> Decision:
    """The predicted method's regret is by a factor less than that of one method everywhere, on groups held out."""
    found = Groups(
        [np.stack([log_of(cells, p) for p in group]) for group in groups],
        [np.stack([regret_of(cells, p, methods) for p in group]) for group in groups],
    )
    predicted, always = held_out(found)
    less = bootstrap([a - p for a, p in zip(always, predicted, strict=True)])
    drawn, least = (
        np.mean([np.concatenate([pick(r).mean(axis=1) for r in found.regret])])
        for pick in (lambda r: r.mean(axis=-1), lambda r: r.mean(axis=1, keepdims=True).min(axis=-1))
    )
    given: dict[float, Verdict] = {bar: decided(less, np.log(bar)) for bar in around_factor(gain)}
    return Decision(
        f"loss over the cell's best: predicted {bootstrap(predicted).factor:.3g}, one method everywhere "
        f"{bootstrap(always).factor:.3g}, drawn at random {np.exp(drawn):.3g}, the best of the {len(methods)} in each "
        f"cell {np.exp(least):.3g}; one method over predicted {less.factor:.3g}",
        given[gain],
        f"at least {gain:g} times less by a 95 % bootstrap interval over {sum(map(len, groups))} cells, each data set "
        f"held out from both in turn; {elsewhere(given, gain)}",
    )
