"""Federated Frank-Wolfe on softmax regression: Tables 1 and 3 of Dadras, Banerjee, Prakhya and Yurtsever 2024."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import fedsolve as fs
from experiments.fedfw.claims import (
    CONVEX,
    OF_TABLE1,
    OF_TABLE3,
    PLUS,
    PUBLIC_DR,
    PUBLIC_FW,
    STOCHASTIC,
    Accuracies,
    Column,
    title,
)
from experiments.fedfw.columns import BALLS, DATA, judged
from experiments.fedfw.public_code import (
    CLIENT_LR,
    MinibatchSteps,
    OverwrittenFrankWolfe,
    public_feddr,
)
from fedsolve.studies import Method, Problem, Study
from fedsolve.studies.pictures import Curves

LAM0 = {"lam0": (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0)}
RATES = {"mnist": (0.01, 0.03, 0.1, 0.3)}
OTHER_RATES = (0.03, 0.1, 0.3, 1.0)
"""FedDR's client rates, with eta 1 and 10: as many settings as the others have."""


def task(data_dir: Path | None, seed: int, column: Column, clients: int, most: int | None) -> fs.Task:
    """The data of a seed in a column."""
    ball, deal, data = column
    return judged(DATA[data](data_dir, seed, clients, deal == "iid", most), ball)


def problem(
    column: Column, theirs: Mapping[str, float], size: str, clients: int, most: int | None, **options: Any
) -> Problem:
    """A column of a table."""
    told = {"clients_per_round": clients, "local_steps": 1, **options}
    made = partial(task, column=column, clients=clients, most=most)
    last = "train_loss:1"
    return Problem(title(column), size, made, told, select=last, published=theirs, data_by_seed=True)


def columns(
    table: Accuracies, names: tuple[str, ...], clients: int, kept: Mapping[str, int], **options: Any
) -> dict[str, Problem]:
    """The columns of a table by title.

    Args:
        table: the paper's accuracies.
        names: the methods that these are of.
        clients: all of them take part.
        kept: data -> examples of a client, where not all of them are.
        **options: of a run.
    """
    found = {}
    for column, accuracies in table.items():
        theirs = {name: accuracy / 100 for name, accuracy in zip(names, accuracies, strict=True)}
        most = kept.get(column[2])
        size = f"{clients} clients, all images" if most is None else f"{clients} clients of {most}"
        found[title(column)] = problem(column, theirs, size, clients, most, **options)
    return found


def convex(column: Column) -> dict[str, Method]:
    """The methods of Table 1 on a set."""
    ball = BALLS[column[0]]
    return {
        "FedFW": Method(lambda lam0: fs.FedFW(ball, steps=fs.frank_wolfe.Convex(lam0)), grid=LAM0),
        "FedFWPlus": Method(lambda lam0: fs.FedFWPlus(ball, steps=fs.frank_wolfe.Convex(lam0)), grid=LAM0),
        PUBLIC_FW: Method(lambda lam0: OverwrittenFrankWolfe(ball, steps=fs.frank_wolfe.Convex(lam0)), {"lam0": 1e-3}),
        **feddr(ball, RATES.get(column[2], OTHER_RATES)),
    }  # fmt: skip


def stochastic(column: Column) -> dict[str, Method]:
    """The methods of Table 3 on a set."""
    ball = BALLS[column[0]]
    return {
        "FedFWSto": Method(lambda lam0: fs.FedFWSto(ball, steps=fs.frank_wolfe.Stochastic(lam0)), grid=LAM0),
        PUBLIC_FW: Method(
            lambda lam0: OverwrittenFrankWolfe(ball, steps=MinibatchSteps(lam0), variant="stochastic"), {"lam0": 1e-3}
        ),
        **feddr(ball, RATES.get(column[2], OTHER_RATES)),
    }  # fmt: skip


def feddr(ball: Any, rates: tuple[float, ...]) -> dict[str, Method]:
    """FedDR over client rates, with eta 1 and 10, and as the public code has it."""
    grid = {"client_lr": rates, "eta": (1.0, 10.0)}
    return {
        "FedDR": Method(lambda client_lr, eta: fs.FedDR(ball, client_lr, eta=eta), grid=grid),
        PUBLIC_DR: Method(lambda client_lr: public_feddr(ball, client_lr), {"client_lr": CLIENT_LR}),
    }


PICTURES = {
    name: Curves(
        f"{what} at the tuned rates, and at the public code's, by what each client has sent up: mean and range.",
        metric, columns=3, x="bytes_up",
    )
    for name, metric, what in (
        ("loss", "train_loss", "F"), ("gap", "gap", "Frank-Wolfe gap"), ("accuracy", "test_accuracy", "Test accuracy"),
    )
}  # fmt: skip
DEALT = (
    "Each seed deals the data anew, draws what each client keeps, and has batches of its own; the test images are the "
    "same for all seeds. Clients are of equal size, theirs log-normal. Settings are tuned on the first seed, by F, "
    "from {} for each method."
)
DEVIATIONS = (
    "Pixels are scaled as in the public code. One ball of radius 10 for the whole parameter vector, as the paper "
    "writes, for all methods; the public code has one for each tensor with FedFW.",
    "CIFAR-10 is halved to 16 x 16 pixels by means of 2 x 2.",
    "FedDR's proximal step is one gradient step, as the paper says. Tuned: alpha = 1, client rate and eta from a "
    f"grid. Public code: rate {CLIENT_LR}, one penalty of 0.01 for 1 / eta and alpha, and its server, which adds up "
    "projected models; projections are exact here.",
    "FedFW of the public code begins each client's step at xbar, so that lambda_0 does nothing.",
)
OF_SYNTHETIC = (
    "Synthetic clients have 200 examples to train on and 40 to test on, and are those of a larger population that "
    "have as many."
)

QUICK = problem(("l2", "labels", "synthetic"), {}, "4 clients of 20", 4, 20, rounds=2)
COLUMNS = {title(column): column for column in (*CONVEX, *STOCHASTIC)}

STUDIES = {
    "fw-convex": Study(
        title="Frank-Wolfe on convex problems: FedFW and FedFW+ beside FedDR",
        summary="Softmax regression on MNIST, CIFAR-10 and synthetic data in l1 and l2 balls (Table 1).",
        paper="dadras2024fedfw",
        problems=columns(CONVEX, (*PLUS, "FedDR"), 10, {}, rounds=100, eval_every=10, batch_size="full"),
        quick=QUICK,
        methods=lambda name: convex(COLUMNS[name]),
        seeds=(0, 1, 2, 3, 4),
        statements=OF_TABLE1,
        pictures=PICTURES,
        deviations=(
            "All of MNIST's 60,000 images; of CIFAR-10's 50,000 the 20,000 at hand.",
            "Each seed deals the data anew; the test images are the same for all seeds. Clients of images are about of "
            "one size, theirs log-normal, as our synthetic ones are. Settings are tuned on the first seed, by F, from "
            "8 for each method.",
            *DEVIATIONS,
        ),
        minutes=34.7,
    ),
    "fw-stochastic": Study(
        title="Stochastic Frank-Wolfe: FedFW-sto beside FedDR",
        summary="Softmax regression by minibatches, 100 clients, in an l2 ball (Table 3).",
        paper="dadras2024fedfw",
        problems=columns(
            STOCHASTIC, ("FedFWSto", "FedDR"), 100, {"synthetic": 190}, rounds=300, eval_every=50, batch_size=64
        ),
        quick=QUICK,
        methods=lambda name: stochastic(COLUMNS[name]),
        seeds=(0, 1, 2, 3, 4),
        statements=OF_TABLE3,
        pictures=PICTURES,
        deviations=(
            "EMNIST's place is taken by the FEMNIST sample: its digits, and its 62 classes with 20 labels a client "
            "where not IID, dealt anew, halved to 14 x 14 pixels. All images at hand: 308 a client of FEMNIST-10, 435 "
            "of FEMNIST-62 (clients of uneven size where not IID), 200 of CIFAR-10.",
            DEALT.format(8),
            *DEVIATIONS,
            OF_SYNTHETIC,
        ),
        minutes=56.9,
    ),
}  # fmt: skip
