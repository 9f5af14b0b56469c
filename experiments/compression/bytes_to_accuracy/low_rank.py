"""The rows of low-rank updates: what they are run with, and what is said of them."""

from __future__ import annotations

from functools import partial
from typing import Literal

import fedsolve as fs
from experiments.compression.bytes_to_accuracy.bytes_to_target import saves_bytes
from fedsolve.studies import Method, Statement
from fedsolve.studies.rules import better

RANKS = {"FEMNIST": 8, "posts": 4}
"""The head of 20 by 384 is a matrix of which factors of rank 8 are almost half."""
RATES = (0.03, 0.1, 0.3, 1.0, 3.0)
"""Wider than those of other methods: a gradient of factors is smaller at first, and larger later."""
SHARE, FACTOR = 0.9, 5.0
"""The target is this share of FedAvg's final accuracy, to be reached with this many times fewer bytes."""
Average = Literal["both", "A", "exact", "stack"]
NAMES: dict[str, Average] = {"LoRA": "both", "FFA-LoRA": "A", "FedEx-LoRA": "exact", "FLoRA": "stack"}


def averages(problem: str) -> dict[str, Average]:
    """The methods' names with the rank, and how they average."""
    return {f"{name}({RANKS[problem]})": average for name, average in NAMES.items()}


def averaged(average: Average, rank: int, client_lr: float) -> fs.Algorithm:
    """FedAvg of factors of all matrices; the biases train in full."""
    return fs.LowRank(fs.FedAvg(client_lr, weighting="uniform"), rank, average)


def of_factors(problem: str) -> dict[str, Method]:
    """The methods, but for digits, whose matrices are too small for factors to be fewer."""
    return {
        name: Method(partial(averaged, average, RANKS[problem]), grid={"client_lr": RATES})
        for name, average in averages(problem).items()
    }


def said(problem: str, where: str) -> tuple[Statement, ...]:
    """What is said of them."""
    both, fixed, exact, stacked = averages(problem)
    return (
        *(
            Statement(
                f"{name} reaches 90 % of FedAvg's final accuracy {where} with at most a fifth of its bytes",
                "",
                saves_bytes(problem, name, "FedAvg", SHARE, FACTOR),
            )
            for name in (both, exact)
        ),
        Statement(
            f"FedEx-LoRA ends above LoRA averaged by factors {where}", "", better(problem, exact, both)
        ),
        Statement(f"LoRA averaged by factors ends above FFA-LoRA {where}", "", better(problem, both, fixed)),
        Statement(f"FedEx-LoRA ends above FLoRA {where}", "", better(problem, exact, stacked)),
    )
