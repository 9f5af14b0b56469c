"""Federated Frank-Wolfe against FedDR on networks: Table 2 of Dadras, Banerjee, Prakhya and Yurtsever 2024."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import fedsolve as fs
from fedsolve.experiments import fw_published as published
from fedsolve.experiments.frankwolfe_figures import FIGURES
from fedsolve.experiments.fw_common import Contender, Plan
from fedsolve.experiments.fw_problems import NOTES, Problem, mnist, small_cnn, synthetic
from fedsolve.experiments.fw_study import Study, cells, quick
from fedsolve.experiments.fw_tables import claims, pictures, table
from fedsolve.studies.experiment import Context, Experiment, Outcome

LAM0 = ((0.1,), (0.01,), (0.001,))


def _ours(label: str, make: Callable[..., Any]) -> Contender:
    """FedFW or FedFW+ with the steps that lam0 makes."""

    def build(ball: Any, setting: tuple[float, ...]) -> Any:
        return make(ball, steps=fs.frank_wolfe.NonConvex(100, setting[0]), start="projected")

    return Contender(label, build, LAM0)


NONCONVEX = Study(
    problems={
        "synthetic": Problem("synthetic, DNN", synthetic("mlp", 500), needs_data=False),
        "mnist": Problem("MNIST, CNN", mnist(500, True, small_cnn())),
    },
    balls=("l2", "l1"),
    contenders=(
        _ours("FedFW", fs.FedFW),
        _ours("FedFWPlus", fs.FedFWPlus),
        Contender("FedDR", lambda ball, s: fs.FedDR(ball, s[0], eta=s[1]), ((0.03, 10.0), (0.1, 10.0))),
    ),
    theirs=published.NONCONVEX,
    plan=Plan(100, 100, 10, "full", (0,)),
    clients=10,
    deviations=(
        *NOTES,
        "The CNN has two 3 x 3 convolutions of 8 and 16 channels and 64 hidden units, on 500 training digits "
        "halved to 14 x 14 pixels by means of 2 x 2, and 2,000 test digits; theirs has 5 x 5 convolutions of 32 "
        "and 64 channels on whole images.",
        "The DNN has two hidden layers of 20, as the paper says; their code has one. At most 500 synthetic "
        "examples a client.",
        "All methods start at the projection of the default initialisation on the ball.",
        "FedDR has one local step, its rate from 0.03 and 0.1 (0.3 diverged on the CNN in a trial); where the "
        "larger one is chosen it may be tuned too little.",
        "One seed.",
    ),
)


def run(context: Context, study: Study) -> Outcome:
    """Every cell, then table, claims and pictures."""
    study = quick(study) if context.quick else study
    found = cells(context, study)
    settings = {
        "clients": study.clients,
        "participation": "full",
        "radius of the balls": 10.0,
        **vars(study.plan),
        "settings tried": {c.label: [list(s) for s in c.settings] for c in study.contenders},
        "local steps": 1,
        "choice of settings": "smallest training objective F on the first seed, for every column alone",
        "dtype": "float32",
    }
    return Outcome(
        claims(study, found), pictures(study, found), {"accuracy": table(study, found)}, study.deviations, settings
    )  # fmt: skip


EXPERIMENTS = {
    "fw-nonconvex": Experiment(
        title="Frank-Wolfe on networks: FedFW and FedFW+ beside FedDR",
        citation="dadras2024fedfw",
        summary="A CNN on MNIST and a DNN on synthetic data in l1 and l2 balls (Table 2)",
        run=lambda context: run(context, NONCONVEX),
        needs_data=True,
    ),
    **FIGURES,
}
