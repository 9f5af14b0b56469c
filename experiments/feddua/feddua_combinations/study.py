"""SCAFFOLD's and FedProx's local training with FedDuA's server step: Figures 3 and 6 of Takakura et al. 2025."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import fedsolve as fs
from experiments.feddua.methods import SMALL, MeanOfTwo, decades, regression
from experiments.margins import margin
from fedsolve.studies import Cells, Method, Problem, Statement, Study
from fedsolve.studies.pictures import Line, Panel, Panelled
from fedsolve.studies.public import describe
from fedsolve.studies.rules import Rule, at_least_as_good, better_than_all, each_better, in_decades, together

ROUNDS, SEEDS, MU = 200, (0, 1, 2, 3, 4), (0.01, 0.1)
LOCALS = ("", "SCAFFOLD", "FedProx")
"""Local trainings: plain steps, with control variates, with a proximal term."""
REGRESSION, DIGITS = "regression", "digits"
STEPS: dict[str, Callable[..., fs.Algorithm]] = {
    "FedAvg": lambda eps, c, s: fs.FedAvg(c, server_lr=s),
    "FedAdagrad": lambda eps, c, s: fs.FedAdagrad(c, server_lr=s, tau=eps),
    "FedAdam": lambda eps, c, s: fs.FedAdam(c, server_lr=s, tau=eps),
    "FedDuAdagrad": lambda eps, c, s: fs.FedDuAdagrad(c, eps=eps, weighting="examples"),
    "FedDuAdam": lambda eps, c, s: fs.FedDuAdam(c, eps=eps, weighting="examples"),
}
"""Server steps by name: (epsilon, client rate, server rate) -> the method with plain local steps."""
SERVER_LR = {
    REGRESSION: {"FedAvg": decades(-0.5, 1), "FedAdagrad": decades(-0.5, 1), "FedAdam": decades(-2, -0.5)},
    DIGITS: {"FedAvg": decades(-0.5, 1), "FedAdagrad": decades(-1.5, 0), "FedAdam": decades(-2, -0.5)},
}
CLIENT_LR = {REGRESSION: decades(-2.5, 0), DIGITS: decades(-1.5, 0.5)}


def named(step: str, local: str = "") -> str:
    """What a server step is called on a local training, "" for plain steps.

    >>> named("FedAvg", "SCAFFOLD"), named("FedDuAdam", "FedProx"), named("FedAdam")
    ('SCAFFOLD', 'FedProx+FedDuAdam', 'FedAdam')
    """
    if not local:
        return step
    return local if step == "FedAvg" else f"{local}+{step}"


def combined(
    step: str, local: str, eps: float, client_lr: float, server_lr: float = 1.0, mu: float = 0.0
) -> fs.Algorithm:
    """A server step with a local training, judged as the paper does."""
    method = STEPS[step](eps, client_lr, server_lr)
    if local == "SCAFFOLD":
        method = fs.ControlVariates(method)
    elif local == "FedProx":
        method = fs.Proximal(method, mu)
    return MeanOfTwo(method) if step.startswith("FedDu") else method


def methods(problem: str) -> dict[str, Method]:
    """Five server steps on three local trainings; a grid is of the client rate, the server rate and mu."""
    problem = problem if problem in SERVER_LR else REGRESSION
    found = {}
    for local in LOCALS:
        for step in STEPS:
            grid = {"client_lr": CLIENT_LR[problem]}
            grid |= {"server_lr": SERVER_LR[problem][step]} if step in SERVER_LR[problem] else {}
            grid |= {"mu": MU} if local == "FedProx" else {}
            eps = 0.0 if problem == REGRESSION else 1e-9
            found[named(step, local)] = Method(partial(combined, step, local, eps), grid=grid)
    return found


PROBLEMS = {
    REGRESSION: Problem(
        "Regression",
        "the paper's synthetic problem: 20 clients of 30 examples, all in each round, 20 full-batch steps",
        regression,
        {"rounds": ROUNDS, "eval_every": 5, "dtype": "float64"},
        metric="train_loss",
        select="train_loss:10",
        data_by_seed=True,
    ),
    DIGITS: Problem(
        "Digits, MLP",
        "100 clients by Dirichlet(0.3), 20 a round, ten steps on batches of 10",
        lambda data_dir: fs.tasks.digits(),
        {"rounds": ROUNDS, "clients_per_round": 20, "batch_size": 10, "local_steps": 10, "eval_every": 5},
        metric="test_accuracy",
        last=50,
        select="train_loss:50",
        tested=359,
    ),
}


def on(problem: str, rule: Rule) -> Rule:
    """Losses of the regression are decades apart."""
    return in_decades(rule) if problem == REGRESSION else rule


LOSS_MARGIN, ACCURACY_MARGIN = (margin("feddua-combinations", name) for name in ("loss", "accuracy"))
"""Of what counts as no worse: a loss 0.02 decades higher, which is 5 %; half a point."""


def no_worse(problem: str, a: str, b: str) -> Rule:
    """`a` is better than `b` or as good, within the margin."""
    return on(
        problem, at_least_as_good(problem, a, b, LOSS_MARGIN if problem == REGRESSION else ACCURACY_MARGIN)
    )


def by_local(study: Study, cells: Cells) -> list[list[Panel]]:
    """The first problem's training loss and the others' metric by round, a panel for each local training."""

    def panel(problem: str, local: str) -> Panel:
        metric, there = describe(cells.problem(problem).metric), cells.methods(problem)
        curves = {step: cells.curve(problem, name) for step in STEPS if (name := named(step, local)) in there}
        lines = [Line(step, rounds, metric.scale * values) for step, (rounds, values) in curves.items()]
        title = f"{cells.problem(problem).title}: {local or 'plain SGD'}"
        return Panel(title, lines, metric.label, ylog=metric.key == "train_loss")

    return [
        [panel(problem, local) for local in LOCALS if named("FedAvg", local) in cells.methods(problem)]
        for problem in cells.problems
    ]


FIGURE_3, FIGURE_6 = "Figure 3, on real data (no numbers)", "Figure 6, on real data (no numbers)"


def _statements(problem: str) -> list[Statement]:
    """The same of each problem."""
    where = problem.capitalize()
    steps = ("FedDuAdagrad", "FedDuAdam")
    return [
        Statement(
            f"{where}: SCAFFOLD with the plain step does not outperform FedAvg",
            FIGURE_3,
            no_worse(problem, "FedAvg", "SCAFFOLD"),
        ),
        *(
            Statement(
                f"{where}: SCAFFOLD+{step} outperforms FedAvg, SCAFFOLD and {step} alone",
                FIGURE_3,
                on(problem, better_than_all(problem, f"SCAFFOLD+{step}", ("FedAvg", "SCAFFOLD", step))),
            )
            for step in steps
        ),
        *(
            Statement(
                f"{where}: on {local} local training FedDuA's steps are better than the plain one",
                "Section 1: it can be combined with them",
                on(problem, each_better(problem, [(named(step, local), local) for step in steps])),
            )
            for local in ("SCAFFOLD", "FedProx")
        ),
        Statement(
            f"{where}: FedProx's local training does not improve any of the five steps",
            FIGURE_6,
            together(*(no_worse(problem, step, named(step, "FedProx")) for step in STEPS)),
        ),
    ]


STUDY = Study(
    title="SCAFFOLD and FedProx with doubly adaptive server steps",
    summary="Local training by plain SGD, SCAFFOLD and FedProx under five server steps, on regression and digits.",
    paper="takakura2025feddua",
    problems=PROBLEMS,
    quick=SMALL,
    methods=methods,
    seeds=SEEDS,
    statements=tuple(s for problem in PROBLEMS for s in _statements(problem)),
    pictures={
        "curves": Panelled("Server steps on each local training, at their tuned rates.", by_local, 3.8, 2.9)
    },
    deviations=(
        "The paper shows the combinations on CIFAR-10 and 100, FEMNIST and Shakespeare; here they run on its synthetic "
        "regression and on 8x8 digits: other problems and smaller models.",
        "Why control variates undo FedDuA's step on the regression is the subject of control-variates.",
        "Rates by training loss on the first seed, in half decades: six client rates on the regression, five on "
        "digits, four server rates of a step that has one, two of the paper's four proximal weights, 0.01 and 0.1. "
        "Test accuracies took no part; the paper tunes by validation accuracy.",
        f"{ROUNDS} rounds. Five seeds: on the regression, where nothing is random in a run, five data sets; on digits "
        "starts, cohorts and batches on one deal and 359 test images, whose chance the second intervals add, at most: "
        "as if methods erred on different images, since which ones each had right was not kept.",
        "FedDuA is judged at the mean of the last two iterates, the rest at the last; epsilon = epsilon_g = 0 on the "
        "regression, epsilon = 1e-9 and epsilon_g = 0 on digits, where clients weigh by their examples.",
        "SCAFFOLD is option II; the paper does not say which.",
    ),
    minutes=10.9,
    needs_data=False,
)
