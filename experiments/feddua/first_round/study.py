"""How many runs FedDuAdagrad's first step makes useless, by network, local work and eps, and what cures it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from scipy.stats import binomtest

import fedsolve as fs
from experiments.feddua.first_round.cures import method
from fedsolve.studies import Cells, Decision, Method, Problem, Statement, Study
from fedsolve.studies.experiment import Verdict
from fedsolve.studies.pictures import Line, Panel, Panelled
from fedsolve.studies.rules import combined, holm, rule

SEEDS, ROUNDS, RATE = tuple(range(20)), 20, 0.3
COLLAPSED = 0.2
"""Test accuracy of a run that has collapsed, at most: guessing has 0.1."""
MODELS = {"MLP": fs.tasks.MLP((64, 200, 200, 200, 10)), "CNN": fs.tasks.CNN(10, 8, 8, (16, 32), 64)}


class OfPictures:
    """A model of 8x8 pictures on their 64 pixels in a row."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def init(self, key: Any) -> Any:
        """The model's."""
        return self.model.init(key)

    def __call__(self, params: Any, x: Any) -> Any:
        """Outputs of n pictures, x of shape (n, 64)."""
        return self.model(params, x.reshape(len(x), 8, 8, 1))


def problem(network: str, steps: int) -> Problem:
    """The digits with a network and so many local steps."""
    model = MODELS[network] if network == "MLP" else OfPictures(MODELS[network])
    return Problem(
        f"{network}, {steps} local steps",
        f"100 clients of digits by Dirichlet(0.3), 10 a round, batches of 10, client rate {RATE:g}",
        lambda data_dir: fs.tasks.digits(100, model=model),
        {
            "rounds": ROUNDS,
            "clients_per_round": 10,
            "batch_size": 10,
            "local_steps": steps,
            "eval_every": ROUNDS,
        },
        tested=359,
    )


PROBLEMS = {one.title: one for one in (problem(n, k) for n in MODELS for k in (5, 20))}
PLAIN = "FedDuAdagrad"
EPS = {f"{PLAIN}, eps {eps:g}": eps for eps in (1e-3, 1e-2)}
CURES = ("mean square", "relative eps", "plain round")
AT: dict[str, Any] = {"client_lr": RATE}
METHODS = {
    "FedAvg": Method(lambda client_lr: fs.FedAvg(client_lr, weighting="uniform"), AT),
    "FedExP": Method(lambda client_lr: fs.FedExP(client_lr), AT),
    PLAIN: Method(partial(method, "none", 1e-9), AT),
    **{name: Method(partial(method, "none", eps), AT) for name, eps in EPS.items()},
    **{f"{PLAIN}, {cure}": Method(partial(method, cure, 1e-9), AT) for cure in CURES},
}


def lost(cells: Cells, problem: str, name: str) -> np.ndarray:
    """Which seeds collapsed or diverged, (seeds,)."""
    return ~(cells.final(problem, name) > COLLAPSED)


def _left(cells: Cells, name: str) -> str:
    accuracies = np.concatenate([cells.final(p, name)[~lost(cells, p, name)] for p in cells.problems])
    return (
        f"the others' median accuracy {100 * np.median(accuracies):.1f} %" if len(accuracies) else "no others"
    )


@rule
def fewer(cells: Cells, names: Sequence[str], than: str) -> Decision:
    """Each of the methods collapses on fewer seeds than another, by two-sided sign tests, Holm's correction."""
    theirs = np.concatenate([lost(cells, p, than) for p in cells.problems])
    ahead: dict[str, bool] = {}
    chances, words = {}, [f"{than} {theirs.sum()} of {len(theirs)}, {_left(cells, than)}"]
    for name in names:
        ours = np.concatenate([lost(cells, p, name) for p in cells.problems])
        saved, spoilt = int((theirs & ~ours).sum()), int((ours & ~theirs).sum())
        chances[name] = binomtest(saved, saved + spoilt).pvalue if saved + spoilt else 1.0
        ahead[name] = saved > spoilt
        words.append(f"{name} {ours.sum()} ({saved} saved, {spoilt} lost), {_left(cells, name)}")
    corrected = dict(zip(chances, holm(list(chances.values())), strict=True))
    given: list[tuple[str, Verdict]] = [
        (name, "underpowered" if p >= 0.05 else "reproduced" if ahead[name] else "not reproduced")
        for name, p in corrected.items()
    ]
    verdict, which = combined(given)
    reason = "two-sided sign tests over the runs that differ, all problems together, Holm's correction: p "
    return Decision(
        "collapsed: " + "; ".join(words),
        verdict,
        reason + ", ".join(f"{n} {p:.2g}" for n, p in corrected.items()) + which,
    )


@rule
def some(cells: Cells, name: str) -> Decision:
    """A method collapses on some seeds of every problem."""
    counts = {p: int(lost(cells, p, name).sum()) for p in cells.problems}
    verdict: Verdict = (
        "reproduced" if all(counts.values()) else "partly" if any(counts.values()) else "not reproduced"
    )
    words = ", ".join(f"{p}: {n} of {len(SEEDS)}" for p, n in counts.items())
    return Decision(words, verdict, f"a test accuracy of at most {100 * COLLAPSED:g} %, or divergence")


STATEMENTS = (
    Statement("FedDuAdagrad collapses on some seeds of every problem", "", some(PLAIN)),
    Statement(
        "FedAvg and FedExP, whose first step is no sign step, collapse on fewer",
        "",
        fewer(("FedAvg", "FedExP"), PLAIN),
    ),
    Statement("A larger eps has fewer collapsed runs", "", fewer(tuple(EPS), PLAIN)),
    Statement(
        "Another first round has fewer collapsed runs", "", fewer(tuple(METHODS)[-len(CURES) :], PLAIN)
    ),
    Statement(
        "Another first round has fewer collapsed runs than eps = 0.01 (asked after the runs)",
        "",
        fewer(tuple(METHODS)[-len(CURES) :], f"{PLAIN}, eps 0.01"),
    ),
)


class Runs(Panelled):
    """A point of a line is a run, not a mean."""

    def draw(self, study: Study, cells: Cells) -> tuple[str, Any]:
        """Its caption and the figure."""
        return f"{self.caption} {study.seeds_in_words}", super().draw(study, cells)[1]


def by_run(study: Study, cells: Cells) -> list[list[Panel]]:
    """The final accuracies of each method from least to greatest, 0 where a run diverged; two panels in a row."""
    panels = []
    for problem in cells.problems:
        lines = [
            Line(
                name,
                np.arange(len(study.seeds)) + 1,
                100 * np.sort(np.nan_to_num(cells.final(problem, name)))[None],
            )
            for name in cells.methods(problem)
        ]
        panels.append(Panel(problem, lines, "test accuracy (%)", "runs, from the least", ylog=False))
    return [panels[k : k + 2] for k in range(0, len(panels), 2)]


STUDY = Study(
    title="FedDuAdagrad's first round",
    summary="Collapsed runs of FedDuAdagrad by network, local work and eps over 20 seeds, and other first rounds.",
    problems=PROBLEMS,
    quick=problem("MLP", 1),
    methods=METHODS,
    seeds=SEEDS,
    statements=STATEMENTS,
    pictures={
        "accuracy": Runs(
            "Test accuracies after 20 rounds, the runs of each method from the least to the greatest; 0 where one "
            "diverged. Flat to the left: collapsed.",
            by_run,
        )
    },
    theory="With s = 0 before the first round, s = D^2 after it, so that D / sqrt(s) is the sign of D: each coordinate "
    "moves by the same eta, whatever its D. <D, sign(D)> eta = mean |D_i|^2 / 2, so eta is about the diversity / 2 "
    "times the root mean square of D, times sqrt(d) |D| / |D|_1: coordinates whose D is near 0 move as far as "
    "the others.",
    deviations=(
        "Not of a paper.",
        "One client rate, 0.3; at 0.1 no run of a pilot collapsed.",
        "With a plain first round, whose step is no sign step, as many runs collapse: the first step is not the only "
        "cause.",
    ),
    minutes=3.3,
    needs_data=False,
)
