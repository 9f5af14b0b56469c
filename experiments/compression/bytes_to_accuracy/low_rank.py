"""The rows of low-rank updates: what they are run with, and what is said of them."""

from __future__ import annotations

from functools import partial
from typing import Literal

import fedsolve as fs
from experiments.compression.bytes_to_accuracy.bytes_to_target import saves_bytes
from fedsolve.studies import Method, Statement
from fedsolve.studies.rules import better

RANK = 8
RATES = (0.03, 0.1, 0.3, 1.0, 3.0)
"""Wider than those of other methods: a gradient of factors is smaller at first, and larger later."""
SHARE, FACTOR = 0.9, 5.0
"""The target is this share of FedAvg's final accuracy, to be reached with this many times fewer bytes."""
BOTH, FIXED, EXACT, STACKED = "LoRA(8)", "FFA-LoRA(8)", "FedEx-LoRA(8)", "FLoRA(8)"
AVERAGES: dict[str, Literal["both", "A", "exact", "stack"]] = {
    BOTH: "both",
    FIXED: "A",
    EXACT: "exact",
    STACKED: "stack",
}


def averaged(average: Literal["both", "A", "exact", "stack"], client_lr: float) -> fs.Algorithm:
    """FedAvg of factors of the three weight matrices; the biases train in full."""
    return fs.LowRank(fs.FedAvg(client_lr, weighting="uniform"), RANK, average)


def of_factors() -> dict[str, Method]:
    """The methods, on the FEMNIST sample alone: the matrices of digits are too small for factors to be fewer."""
    return {
        name: Method(partial(averaged, average), grid={"client_lr": RATES})
        for name, average in AVERAGES.items()
    }


def said(problem: str) -> tuple[Statement, ...]:
    """What is said of them."""
    where = "on the FEMNIST sample"
    return (
        *(
            Statement(
                f"{name} reaches 90 % of FedAvg's final accuracy {where} with at most a fifth of its bytes",
                "",
                saves_bytes(problem, name, "FedAvg", SHARE, FACTOR),
            )
            for name in (BOTH, EXACT)
        ),
        Statement(
            f"FedEx-LoRA ends above LoRA averaged by factors {where}", "", better(problem, EXACT, BOTH)
        ),
        Statement(f"LoRA averaged by factors ends above FFA-LoRA {where}", "", better(problem, BOTH, FIXED)),
        Statement(f"FedEx-LoRA ends above FLoRA {where}", "", better(problem, EXACT, STACKED)),
    )
