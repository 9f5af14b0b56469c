"""Federated Frank-Wolfe on softmax regression: Tables 1 and 3 of Dadras, Banerjee, Prakhya and Yurtsever 2024."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import fedsolve as fs
from experiments.fedfw.claims import (
    PUBLIC_DR,
    Accuracies,
    Column,
    title,
)
from experiments.fedfw.columns import DATA, judged
from experiments.fedfw.public_code import (
    CLIENT_LR,
    public_feddr,
)
from fedsolve.studies import Method, Problem
from fedsolve.studies.pictures import Curves

LAM0 = {"lam0": (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0)}
LESS = {"lam0": (1e-10, 1e-9, 1e-8, 1e-7, *LAM0["lam0"])}
RATES = {"mnist": (0.01, 0.03, 0.1, 0.3)}
OTHER_RATES = (0.03, 0.1, 0.3, 1.0)
"""FedDR's client rates, with eta 1 and 10: as many settings as the others have."""
MORE = (*OTHER_RATES, 3.0, 10.0, 30.0)
UNSETTLED = {title(("l1", "labels", "synthetic")): "lam0", title(("l2", "iid", "synthetic")): "client_lr"}
"""Columns of Table 1 in which FedFW's penalty, or FedDR's rate, still gained at the edge: more of its values there."""


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
