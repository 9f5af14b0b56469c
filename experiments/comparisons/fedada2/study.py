"""FedAda2 and FedAda2++ (Lee et al. 2025) beside methods that adapt on one side, or send second moments."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import fedsolve as fs
from experiments.feddua.methods import decades
from experiments.margins import margin
from experiments.networks.tasks import few
from fedsolve.data import Dirichlet
from fedsolve.studies import Cells, Decision, Method, Problem, Statement, Study
from fedsolve.studies.pictures import Curves
from fedsolve.studies.rules import Rule, at_least_as_good, better, rule, together
from fedsolve.tasks import MLP

MNIST, DIGITS = "MNIST", "digits"
BOTH = (MNIST, DIGITS)
TESTED, ALPHA = 2_000, 0.1
MARGIN = margin("fedada2", "as-good")
ADAPTIVE = {"client_lr": decades(-2.5, -0.5), "server_lr": decades(-3, -1)}
"""Of FedAda2's clients, whose first step moves a coordinate by about the rate, and of its server."""
METHODS = {
    "FedAda2": Method(fs.FedAda2, grid=ADAPTIVE),
    "FedAda2++": Method(fs.FedAda2PlusPlus, grid=ADAPTIVE),
    "FedAdam": Method(fs.FedAdam, grid={"client_lr": decades(-2, 0), "server_lr": decades(-3, -1)}),
    "FedAdamW": Method(fs.FedAdamW, grid={"client_lr": decades(-4, -1.5)}),
    "FedLADA": Method(fs.FedLADA, grid={"client_lr": decades(-3, 0)}),
    "FedAvg": Method(fs.FedAvg, grid={"client_lr": decades(-2, 0.5)}),
}


def mnist(data_dir: Path | None) -> fs.Task:
    """10,000 digits dealt by Dirichlet(0.1), and a perceptron."""
    deal: Mapping[str, Any] = {"partition": Dirichlet(ALPHA), "examples": 10_000}
    return few(fs.tasks.mnist_by_writer(data_dir, MLP((784, 32, 10)), 100, **deal), TESTED, TESTED)


def digits(data_dir: Path | None) -> fs.Task:
    """The 1,438 training digits of scikit-learn dealt by Dirichlet(0.1), and a perceptron."""
    return fs.tasks.digits(partition=Dirichlet(ALPHA))


def _problem(title: str, size: str, task: Any, tested: int, chance: float) -> Problem:
    size = f"{size}; 100 clients by Dirichlet({ALPHA}), 20 a round, 10 steps of 20, 50 rounds"
    options = {
        "rounds": 50, "clients_per_round": 20, "local_steps": 10, "batch_size": 20, "eval_every": 5,
        "parallel_trials": 1,
    }  # fmt: skip
    return Problem(
        title, size, task, options, last=10, select="train_loss:10", tested=tested, chance=chance
    )  # fmt: skip


PROBLEMS = {
    MNIST: _problem("MNIST, perceptron", "10,000 images, 32 hidden units", mnist, TESTED, 0.123),
    DIGITS: _problem("Digits, perceptron", "1,438 images, 64 hidden units", digits, 359, 0.11),
}


@rule
def sends_no_more(cells: Cells, problems: tuple[str, ...], methods: tuple[str, ...], base: str) -> Decision:
    """The bytes that a client sends up in a round are those of `base`; the others' are shown."""
    words, held = [], True
    for name in problems:
        sent = {m: float(cells.sent(name, m)[-1] / cells.curve(name, m)[0][-1]) for m in cells.methods(name)}
        held &= all(sent[m] == sent[base] for m in methods)
        shown = ", ".join(f"{m} {sent[m] / sent[base]:.3f}" for m in sent if m != base)
        words.append(f"{name}, {base} {sent[base]:,.0f}, times that: {shown}")
    reason = "bytes up of a client and round, as encoded; exact, refuted by one more"
    return Decision("; ".join(words), "consistent" if held else "refuted", reason)


def _on_both(make: Any, *compared: Any) -> Rule:
    return together(*(make(problem, *compared) for problem in BOTH))


JOINT = "Abstract: “the advantages of joint adaptivity”"
STATEMENTS = (
    *(
        Statement(f"FedAda2 is better than {other}", JOINT, _on_both(better, "FedAda2", other))
        for other in ("FedAdam", "FedAvg")
    ),
    Statement(
        "FedAda2++ is as good as FedAda2, or better, with r + c numbers for a matrix of r x c on a client",
        "",
        _on_both(at_least_as_good, "FedAda2++", "FedAda2", MARGIN),
    ),
    *(
        Statement(
            f"FedAda2 is as good as {other}, whose clients begin with what earlier ones learnt, or better",
            "",
            _on_both(at_least_as_good, "FedAda2", other, MARGIN),
        )
        for other in ("FedAdamW", "FedLADA")
    ),
    Statement(
        "FedAda2 and FedAda2++ send as many bytes as FedAvg",
        "Abstract: “avoiding the transfer of preconditioners between the server and clients”",
        sends_no_more(BOTH, ("FedAda2", "FedAda2++"), "FedAvg"),
    ),
)

STUDY = Study(
    title="FedAda2 and FedAda2++ under label skew",
    summary="Adaptive clients and server at FedAvg's traffic, on MNIST and digits, all tuned.",
    paper="lee2025fedada2",
    problems=PROBLEMS,
    quick=PROBLEMS[DIGITS],
    methods=METHODS,
    seeds=(0, 1, 2, 3, 4),
    statements=STATEMENTS,
    pictures={
        "accuracy": Curves("Test accuracy by round, at the best rates of the grids."),
        "bytes": Curves("Training loss by what a client sends up.", metric="train_loss", x="bytes_up"),
    },
    deviations=(
        "The paper has a vision transformer on three image sets, and logistic regression on StackOverflow under "
        "privacy; here are two perceptrons on digits that are dealt by label. Only its abstract was available.",
        "FedAda2 has Adagrad on its clients, FedAda2++ SM3, both Adam on the server without bias correction, eps 1e-5 "
        "and tau 1e-3, the defaults of the authors' code. Client and server rates are tuned in half decades, on seed "
        "0, by training loss; FedAdamW, FedLADA and FedAvg have a client rate alone.",
        "The baseline whose server sends its second moment is not in the catalogue: FedLADA sends one both ways, "
        "FedAdamW a mean for each tensor.",
        "Bytes are those that a client sends up; down, FedLADA sends three models, FedAdamW two, the others one.",
    ),
    minutes=3.4,
)
