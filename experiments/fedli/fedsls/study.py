"""FedSLS and FedExpSLS, the second version of FedLi's paper (Geetika et al. 2025), beside untuned and tuned methods."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import fedsolve as fs
from experiments.compression.bytes_to_accuracy.bytes_to_target import OnlyMethods
from experiments.feddua.methods import MeanOfTwo, decades
from experiments.fedli.fedli_convex.rules import lasts
from experiments.fedli.fedsls import interpolation
from experiments.fedli.fedsls.evaluations import STEPS, by_work, saves
from experiments.margins import margin
from experiments.networks.tasks import few
from fedsolve.data import Dirichlet
from fedsolve.studies import Method, Problem, Statement, Study
from fedsolve.studies.cells import SettingKind
from fedsolve.studies.pictures import Curves
from fedsolve.studies.rules import Rule, at_least_as_good, better, better_than_all, each_better, together
from fedsolve.tasks import MLP

FEMNIST, MNIST = "FEMNIST", "MNIST"
BOTH = (FEMNIST, MNIST)
TESTED = 2_000
SGD: Mapping[str, Any] = {"clip_norm": 10.0, "weight_decay": 1e-4}
"""Of the baselines' clients, as in the public code; line searches have neither, as there."""
RATES = {FEMNIST: decades(-2.5, -0.5), MNIST: decades(-2, 0)}
SERVER_RATES = decades(-1.5, -0.5)
DECAY = 0.998
"""Of client rates a round, before the first use; eps falls by its square."""
MARGIN = margin("fedsls", "as-good")
WHERE: Mapping[SettingKind, str] = {"published": "at the paper's settings", "tuned": "with tuned rates"}


def _rate(client_lr: float) -> fs.schedules.Schedule:
    return fs.schedules.Exponential(DECAY * client_lr, DECAY)


def _expected(client_lr: float) -> fs.Algorithm:
    step = fs.server.DoublyAdaptive(clamp=True, eps_g=1e-3, eps_per_client=True, eps_decay=DECAY**2)
    return MeanOfTwo(fs.FedOpt(fs.client.SGD(_rate(client_lr), **SGD), step, weighting="examples"))


def _adam(client_lr: float, server_lr: float) -> fs.Algorithm:
    step = fs.server.Adaptive(server_lr, tau=0.01, beta1=0.9, beta2=0.99, initial=0.0)
    return fs.FedOpt(fs.client.SGD(_rate(client_lr), **SGD), step, weighting="examples")


def _searched_dua() -> fs.Algorithm:
    step = fs.server.DoublyAdaptive(beta1=0.9, preconditioner="adam")
    return MeanOfTwo(fs.FedOpt(fs.client.Armijo(reset="code"), step, weighting="examples"))


def _untuned(make: Callable[[], fs.Algorithm]) -> Method:
    return Method(lambda eta_max: make(), {"eta_max": 1.0})


def _tuned(problem: str, make: Callable[..., fs.Algorithm], **more: tuple[float, ...]) -> Method:
    given = {"client_lr": 0.01} | dict.fromkeys(more, 0.1)
    return Method(make, given, {"client_lr": RATES[problem], **more})


RESETS: Mapping[str, Any] = {f"FedSLS, reset {k}": k for k in (0, 1, 2)}
SEARCHES = {
    "FedSLS": _untuned(fs.FedSLS),
    **{name: _untuned(lambda k=k: fs.FedSLS(reset=k)) for name, k in RESETS.items()},
    "FedExpSLS": _untuned(lambda: MeanOfTwo(fs.FedExpSLS())),
    "FedAdamSLS": _untuned(fs.FedAdamSLS),
    "FedAdamExpSLS": _untuned(lambda: MeanOfTwo(fs.FedAdamExpSLS())),
    "FedAdamExpSLS, scaled": _untuned(lambda: MeanOfTwo(fs.FedAdamExpSLS(server_lr=0.1, **SGD))),
    "FedDuAdam with search": _untuned(_searched_dua),
    "SCAFFOLD with search": _untuned(lambda: fs.ControlVariates(fs.FedSLS())),
}
BASELINES: Mapping[str, tuple[Callable[..., fs.Algorithm], Mapping[str, Any]]] = {
    "FedAvg": (lambda client_lr: fs.FedAvg(_rate(client_lr), **SGD), {}),
    "FedExP": (_expected, {}),
    "FedAdam": (_adam, {"server_lr": SERVER_RATES}),
    "FedProx": (lambda client_lr: fs.FedProx(_rate(client_lr), mu=0.1, **SGD), {}),
    "SCAFFOLD": (lambda client_lr: fs.SCAFFOLD(client_lr, weighting="examples", **SGD), {}),
}


def _dua(client_lr: float) -> fs.Algorithm:
    return MeanOfTwo(fs.FedDuAdam(_rate(client_lr), weighting="examples", **SGD))


EXTRAPOLATED = ("FedAdamExpSLS", "FedAdamExpSLS, scaled")
"""By M u, and by 0.1 M u with clipping and decay: two of the code's four forms."""


def methods(problem: str) -> dict[str, Method]:
    """All; on FEMNIST without FedProx, whose mu is 0 there; line searches alone where a rate of convergence is seen."""
    if problem in interpolation.PROBLEMS:
        return dict(SEARCHES)
    tuned = {name: _tuned(problem, make, **more) for name, (make, more) in BASELINES.items()}
    if problem == FEMNIST:
        del tuned["FedProx"]
    return {**SEARCHES, **tuned, "FedDuAdam": Method(_dua, grid={"client_lr": RATES[problem]})}


def femnist(data_dir: Path | None) -> fs.Task:
    """The sample's 100 writers and the paper's model, softmax regression."""
    return few(fs.tasks.femnist(data_dir, "softmax", num_clients=100), TESTED, TESTED)


def mnist(data_dir: Path | None) -> fs.Task:
    """10,000 digits, dealt by Dirichlet(0.3), and a perceptron of one hidden layer of 32."""
    deal = {"partition": Dirichlet(0.3), "examples": 10_000}
    return few(fs.tasks.mnist_by_writer(data_dir, MLP((784, 32, 10)), 100, **deal), TESTED, TESTED)


def _problem(title: str, size: str, task: Any, rounds: int, chance: float) -> Problem:
    cohort = {"clients_per_round": 20, "local_steps": STEPS, "batch_size": 50}
    options = {"rounds": rounds, "eval_every": 1, "parallel_trials": 1, **cohort}
    size = f"{size}; 20 of 100 clients a round and 20 steps of 50 images as in the paper, {rounds} of 1,000 rounds"
    return Problem(title, size, task, options, last=5, select="train_loss:5", tested=TESTED, chance=chance)


PROBLEMS = {
    FEMNIST: _problem("FEMNIST sample, softmax regression", "the paper's model", femnist, 40, 0.085),
    MNIST: _problem("MNIST, perceptron", "10,000 images, 32 hidden units, Dirichlet(0.3)", mnist, 30, 0.123),
    **interpolation.PROBLEMS,
}


def _others(problem: str) -> list[str]:
    return [name for name in methods(problem) if name in BASELINES]


def at_par(method: str, which: SettingKind) -> Rule:
    """As good as each of the baselines, or better, on both problems."""
    pairs = [(problem, other) for problem in BOTH for other in _others(problem)]
    return together(*(at_least_as_good(p, method, other, MARGIN, which) for p, other in pairs))


def ahead(method: str, which: SettingKind) -> Rule:
    """Better than each of the baselines without control variates, on both problems."""
    names = {p: [(method, other) for other in _others(p) if other != "SCAFFOLD"] for p in BOTH}
    return together(*(each_better(p, pairs, which) for p, pairs in names.items()))


def _on_both(rule: Callable[..., Rule], *compared: Any) -> Rule:
    return together(*(rule(problem, *compared) for problem in BOTH))


PAR = "Abstract of version 2: “at par or better than the popular federated learning algorithms”"
LINEAR = "Abstract of version 2: FedSLS “offers linear convergence for strongly convex objectives even with partial "
STATEMENTS = (
    *(
        Statement(
            f"{method} is as good as the popular methods {where}, or better", PAR if which == "published" else "",
            at_par(method, which),
        )
        for method in ("FedSLS", "FedExpSLS")
        for which, where in WHERE.items()
    ),
    *(
        Statement(
            f"FedExpSLS is better than FedAvg, FedExP, FedAdam and FedProx {where}", "", ahead("FedExpSLS", which)
        )
        for which, where in WHERE.items()
    ),
    Statement("FedExpSLS is better than FedSLS", "", _on_both(better, "FedExpSLS", "FedSLS")),
    Statement(
        "FedDuAdam with a tuned client rate is better than both forms of FedAdamExpSLS", "",
        _on_both(better_than_all, "FedDuAdam", EXTRAPOLATED),
    ),
    Statement(
        "With the same line search FedDuAdam's server step is better than both of FedAdamExpSLS's", "",
        _on_both(better_than_all, "FedDuAdam with search", EXTRAPOLATED),
    ),
    Statement(
        "SCAFFOLD with line search is as good as SCAFFOLD with a tuned rate, or better", "",
        _on_both(at_least_as_good, "SCAFFOLD with search", "SCAFFOLD", MARGIN),
    ),
    Statement(
        "FedSLS, whose search nearly keeps its step, is better than with resets 0, 1 and 2", "",
        _on_both(each_better, [("FedSLS", other) for other in RESETS]),
    ),
    *(
        Statement(
            f"{method} needs fewer {what} than FedAvg with a tuned rate to the same training loss", "",
            saves(BOTH, method, "FedAvg", losses),
        )
        for method in ("FedSLS", "FedExpSLS")
        for what, losses in (("gradients", False), ("gradients and losses together", True))
    ),
    Statement(
        "FedSLS converges linearly where clients share a minimiser, a fifth of them a round",
        f"{LINEAR}client participation”; the theorems assume a common minimiser",
        lasts((interpolation.SHARED,), "FedSLS"),
    ),
    Statement(
        "FedSLS converges linearly where clients have minimisers of their own, too", "",
        lasts((interpolation.NOISY,), "FedSLS"),
    ),
)  # fmt: skip

SHOWN = (
    "FedSLS",
    "FedExpSLS",
    "FedAdamSLS",
    "SCAFFOLD with search",
    "FedAvg",
    "FedExP",
    "FedAdam",
    "FedDuAdam",
)
STUDY = Study(
    title="FedSLS and FedExpSLS beside untuned and tuned methods",
    summary="Line searches of FedLi's second version on FEMNIST and MNIST, by round and by evaluations.",
    paper="geetika2025painless",
    problems=PROBLEMS,
    quick=interpolation.PROBLEMS[interpolation.SHARED],
    methods=methods,
    seeds=(0, 1, 2, 3, 4),
    statements=STATEMENTS,
    pictures={
        "accuracy": OnlyMethods(
            SHOWN, Curves("Test accuracy by round, at the best rates of the grids.", problems=BOTH)
        ),
        "untuned": OnlyMethods(
            SHOWN, Curves("The same at the settings of the paper's code.", which="published", problems=BOTH)
        ),
        "resets": OnlyMethods(
            ("FedSLS", *RESETS),
            Curves("FedSLS by where its searches begin: test accuracy by round.", problems=BOTH),
        ),
        "work": by_work("Training loss by round and by evaluations, at the best rates of the grids.", SHOWN),
        "interpolation": Curves(
            "F less its least value, clients with one minimiser and with their own.",
            problems=tuple(interpolation.PROBLEMS),
        ),
    },
    deviations=(
        "The paper has FEMNIST, CIFAR-10, CIFAR-100 and Shakespeare, 1,000 rounds and all clients' losses. Here are "
        "100 writers of a sample of FEMNIST for 40 rounds, and MNIST with a perceptron for 30 in place of CIFAR with a "
        "ResNet-18: a convolutional network of 4 and 8 channels on MNIST took 16 s of processor time for four rounds "
        "of FedAvg, compilation among them. Accuracies are of 2,000 test images, losses of clients with 2,000 images.",
        "FedSLS is as in the public code: c 0.1, beta 0.9, eta_max 1, a step that grows by 2^(1/500) before each "
        "search; resets 0, 1 and 2 keep the step, return to eta_max, and grow it by 2^(batch/examples) up to eta_max. "
        "Searches neither clip nor decay, but for FedAdamSLS and the scaled FedAdamExpSLS; baselines clip at 10 and "
        "decay by 1e-4, as there. The code's losses of a search have the same dropout; these models have none.",
        "The baselines begin at the code's 0.01 0.998^t, SCAFFOLD at 0.01, FedAdam with a server rate of 0.1, FedProx "
        "with a mu of 0.1; that of FEMNIST is 0 there, which is FedAvg, and is left out. Tuned are client rates, of "
        "FedAdam the server's too, in half decades, on seed 0 by training loss. FedDuAdam has no setting in the paper.",
        "FedAdam has tau = 0.01 outside the root, an option of the code and FedAdamSLS's form; by default the code's "
        "is inside, which makes its steps up to ten times shorter.",
        "FedExpSLS, FedAdamExpSLS, FedExP and FedDuAdam, with and without a search, are judged at the mean of the last "
        "two iterates; clients count by examples, in SCAFFOLD too.",
        "SCAFFOLD with search accepts a step by Armijo's condition on the corrected loss, one of the code's six rules.",
        "A gradient and a trial of a search count one evaluation each, of the same batch. There is no wall clock: "
        "XLA runs the searches of a cohort together, as long as the longest of them.",
        "The theorems of version 2 were not available, only its abstract. Tested is the abstract's rate, on "
        "least squares of our own. Inputs are so unequal that F does not reach rounding, as it did within 20 rounds in "
        "a first form.",
    ),
    minutes=25.4,
)
