"""The tuning-free league: twenty methods on twelve problems, at their defaults and with a budget of tuning."""

from __future__ import annotations

from collections.abc import Mapping

from experiments.comparisons.tuning_free_league.problems import (
    BATCH,
    MOST_EXAMPLES,
    PROBLEMS,
    QUICK,
    ROUNDS,
    STEPS,
)
from experiments.comparisons.tuning_free_league.statements import STATEMENTS
from fedsolve import build
from fedsolve.studies import Method, Study
from fedsolve.studies.pictures import Budgets, CriticalDifference
from fedsolve.studies.rules import ends
from fedsolve.studies.rules.ranks import budgeted

SEEDS, TUNING_SEED = (0, 1, 2, 3, 4), 5
BUDGETS = (1, 3, 10, 30)
RANGES = {
    "client_lr": (1e-4, 10.0),
    "eta_max": (1e-4, 10.0),
    "server_lr": (1e-3, 10.0),
    "mu": (1e-3, 1.0),
    "gamma": (0.1, 1e3),
    "alpha": (1e-3, 1.0),
    "initial_distance": (1e-6, 1.0),
    "scale": (0.01, 100.0),
}
"""Log-uniform. A client's rate has one range whatever it is called; 1e-4 is what LASSO's data need."""
DEFAULTS: dict[str, Mapping[str, float]] = {
    "FedAvg": {"client_lr": 0.1},
    "FedAvgM": {"client_lr": 0.1, "server_lr": 1.0},
    "FedProx": {"client_lr": 0.1, "mu": 0.1},
    "SCAFFOLD": {"client_lr": 0.1},
    "FedDyn": {"client_lr": 0.1, "alpha": 0.01},
    "FedAdagrad": {"client_lr": 0.1, "server_lr": 0.1},
    "FedAdam": {"client_lr": 0.1, "server_lr": 0.1},
    "FedYogi": {"client_lr": 0.1, "server_lr": 0.1},
    "FedExP": {"client_lr": 0.1},
    "FedExPM": {"client_lr": 0.1},
    "FedDuAdagrad": {"client_lr": 0.1},
    "FedDuAdam": {"client_lr": 0.1},
    "FedExProx": {"client_lr": 0.1, "gamma": 1.0},
    "DiLoCo": {"client_lr": 4e-4, "server_lr": 0.7},
    "FedLiLS": {"eta_max": 1.0},
    "FedLiLU": {"client_lr": 0.1, "server_lr": 1.0},
    "FedDoG": {"client_lr": 0.1, "initial_distance": 1e-6},
    "FedProdigy": {"client_lr": 0.1, "initial_distance": 1e-6},
    "FedDAdaptation": {"client_lr": 0.1, "initial_distance": 1e-6},
    "PAdaMFed": {"scale": 1.0},
}
"""What each method has to tune, at its documented default."""
ALIKE = ("FedDyn", "PAdaMFed")
"""Whose clients all count alike, whatever they hold."""
GIVEN = {"PAdaMFed": {"horizon": ROUNDS}}
"""What follows from the run."""


def _method(name: str) -> Method:
    given = GIVEN.get(name, {}) | ({} if name in ALIKE else {"weighting": "examples"})
    return budgeted(lambda **axes: build(name, given | axes), DEFAULTS[name], RANGES, BUDGETS[-1])


METHODS = {name: _method(name) for name in DEFAULTS}
_RANGES = ", ".join(f"{name} {low:g} to {high:g}" for name, (low, high) in RANGES.items())

DEVIATIONS = (
    "FedLi's paper trains ResNet-18 on CIFAR-10 and -100, a CNN on FEMNIST and an RNN on Shakespeare for 500 rounds; "
    f"here are twelve small problems, 15 or 30 rounds of {STEPS} local steps on batches of {BATCH}, three of them "
    "networks (dense, convolutional, recurrent). Two share the digits, so they are not quite two observations.",
    "Twenty methods: those without rates or with few of them, and the widely used ones. That many widen the critical "
    "difference, 2.6 for seven methods on twelve problems and 8.6 for twenty.",
    f"Tuning: the default and {BUDGETS[-1] - 1} settings drawn at random, log-uniform, {_RANGES}; as many for every "
    "method, the first hyper-parameter with the same draws for all, chosen by the loss at the end on a fifth of every "
    "client's examples, held out, on a seed that is not shown. A method with two hyper-parameters covers each more "
    "thinly, which is what tuning it costs.",
    "Ranks at the defaults and at the best of 30 are by means over five seeds. What 3 and 10 settings come to is the "
    "mean over all ways of drawing them from the 30 with the default among them, exactly, on the tuning seed alone.",
    "Ranked by the problem's own metric on test data: accuracy, Recall@5 for news, the test loss where accuracy hardly "
    "moves (w8a, mushrooms, Shakespeare), is coarse (voxels) or does not exist. Evaluations look at about "
    f"{MOST_EXAMPLES:,} examples at most, drawn at random.",
    "All weigh clients by examples, so that they minimise the loss that chooses their settings; FedDyn and PAdaMFed "
    "cannot, their clients count alike. PAdaMFed's horizon is 30 rounds, also on the two problems of 15.",
    "The model is the last one, of one evaluation: what extrapolating methods (FedExP, FedExPM, FedDuAdagrad, "
    "FedDuAdam) gain by the mean of the last two is not shown. All take the same rounds; the loss evaluations of a "
    "line search are not counted.",
    "The kept results were compiled at XLA's optimisation level 1 with its older code generator, since compiling is "
    "most of the time: without these flags the same takes longer than the time stated.",
)

STUDY = Study(
    title="The tuning-free league: what methods reach by default, and with a budget of tuning",
    summary="Twenty methods on twelve problems at their defaults and at the best of 3, 10 and 30 random settings.",
    paper="geetika2024fedli",
    problems=PROBLEMS,
    quick=QUICK,
    methods=METHODS,
    seeds=SEEDS,
    statements=STATEMENTS,
    pictures={
        "ranks": CriticalDifference(
            "Mean ranks over twelve problems; 1 is best, a run that diverged is last.",
            {"at the defaults": ends("published"), "at the best of 30 settings": ends("tuned")},
        ),
        "budgets": Budgets(
            "Who is easy to tune: test metric by settings tried, 0 the untrained model (or worse, or diverged), "
            "1 the best that "
            "any method reached, mean over the problems.",
            BUDGETS,
        ),
    },
    deviations=DEVIATIONS,
    minutes=33.6,
    tuned_on=TUNING_SEED,
)
