"""Frank-Wolfe on convex problems: Table 1 of the paper."""

from __future__ import annotations

import fedsolve as fs
from experiments.fedfw.claims import CONVEX, OF_TABLE1, PLUS, PUBLIC_FW, Column, title
from experiments.fedfw.columns import BALLS
from experiments.fedfw.linear import (
    DEVIATIONS,
    LAM0,
    LESS,
    MORE,
    OTHER_RATES,
    PICTURES,
    QUICK,
    RATES,
    UNSETTLED,
    columns,
    feddr,
)
from experiments.fedfw.public_code import OverwrittenFrankWolfe
from fedsolve.studies import Method, Study

COLUMNS = {title(column): column for column in CONVEX}


def convex(column: Column) -> dict[str, Method]:
    """The methods of Table 1 on a set."""
    ball, unsettled = BALLS[column[0]], UNSETTLED.get(title(column))
    penalties = LESS if unsettled == "lam0" else LAM0
    rates = MORE if unsettled == "client_lr" else RATES.get(column[2], OTHER_RATES)
    return {
        "FedFW": Method(lambda lam0: fs.FedFW(ball, steps=fs.frank_wolfe.Convex(lam0)), grid=penalties),
        "FedFWPlus": Method(lambda lam0: fs.FedFWPlus(ball, steps=fs.frank_wolfe.Convex(lam0)), grid=penalties),
        PUBLIC_FW: Method(lambda lam0: OverwrittenFrankWolfe(ball, steps=fs.frank_wolfe.Convex(lam0)), {"lam0": 1e-3}),
        **feddr(ball, rates),
    }  # fmt: skip


STUDY = Study(
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
        "8 for each method; from more where the best of 8 lay at the edge and what lies beyond could change a verdict.",
        *DEVIATIONS,
    ),
    minutes=35.1,
)  # fmt: skip
