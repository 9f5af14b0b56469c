"""Stochastic variants of Frank-Wolfe: Table 3 of the paper."""

from __future__ import annotations

import fedsolve as fs
from experiments.fedfw.claims import OF_TABLE3, PUBLIC_FW, STOCHASTIC, Column, title
from experiments.fedfw.columns import BALLS
from experiments.fedfw.linear import (
    DEALT,
    DEVIATIONS,
    LAM0,
    OF_SYNTHETIC,
    OTHER_RATES,
    PICTURES,
    QUICK,
    RATES,
    columns,
    feddr,
)
from experiments.fedfw.public_code import MinibatchSteps, OverwrittenFrankWolfe
from fedsolve.studies import Method, Study

COLUMNS = {title(column): column for column in STOCHASTIC}


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


STUDY = Study(
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
)  # fmt: skip
