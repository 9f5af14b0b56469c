"""The rows of methods that ask for losses alone: what they are run with, and what is said of them."""

from __future__ import annotations

from functools import partial

import fedsolve as fs
from experiments.compression.bytes_to_accuracy.bytes_to_target import saves_bytes
from fedsolve.studies import Method, Statement
from fedsolve.studies.rules import better

RATES = {
    "digits": (0.001, 0.003, 0.01, 0.03),
    "FEMNIST": (0.0001, 0.0003, 0.001),
    "posts": (0.001, 0.003, 0.01, 0.03),
}
"""Of a step along one direction: on the FEMNIST sample DeComFL diverges at 0.003, after the 75 rounds of tuning."""
LONG = {"rounds": 600, "eval_every": 12}
"""But for the FEMNIST sample four times the rounds of others: a round is that cheap in bytes."""
SLOPES = {
    "FedZO": fs.FedZO,
    "FedKSeed": partial(fs.FedKSeed, down="model", weighting="uniform"),
    "DeComFL": partial(fs.DeComFL, down="model"),
}
SHARE, FACTOR = 0.9, 100.0
"""The target is this share of FedAvg's final accuracy, to be reached with this many times fewer bytes."""


def of_losses(problem: str) -> dict[str, Method]:
    """The methods: on the FEMNIST sample those whose messages are scalars."""
    options = {} if problem == "FEMNIST" else LONG
    names = ("FedKSeed", "DeComFL") if problem == "FEMNIST" else SLOPES
    return {name: Method(SLOPES[name], grid={"client_lr": RATES[problem]}, options=options) for name in names}


def said(where: dict[str, str], digits: str) -> tuple[Statement, ...]:
    """What is said of them: problems with their names, and the one on which they are compared."""
    return (
        *(
            Statement(
                f"{name} reaches 90 % of FedAvg's final accuracy on {where[problem]} with at most a hundredth of its "
                "bytes",
                "",
                saves_bytes(problem, name, "FedAvg", SHARE, FACTOR),
            )
            for problem in where
            for name in ("FedKSeed", "DeComFL")
        ),
        Statement(
            "FedKSeed, whose clients draw directions of their own, ends above DeComFL on digits",
            "",
            better(digits, "FedKSeed", "DeComFL"),
        ),
    )
