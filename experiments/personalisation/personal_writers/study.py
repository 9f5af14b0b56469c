"""Unseen writers of FEMNIST: accuracy after a few steps on some of their images, nine methods."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import fedsolve as fs
from experiments.margins import margin
from experiments.personalisation.personal_writers.writers import (
    SHOWN,
    STEPS,
    UNSEEN,
    VALIDATING,
    femnist,
    random_images,
)
from fedsolve.studies import Method, Problem, Statement, Study
from fedsolve.studies.pictures import Ends
from fedsolve.studies.public import module
from fedsolve.studies.rules import at_least_as_good, better, by_metric, each_better

NAME, SEEDS = "unseen writers", (0, 1, 2, 3, 4)
HEAD, RATES = "output.*", (0.1, 0.3, 1.0, 3.0)
MARGIN = margin("personal-writers", "as-good")
"""Points of accuracy."""
OWN, WORST = "validation_accuracy", "adapted_accuracy_worst_tenth"


@module
class AllClusters(fs.Wrapper):
    """IFCA that shows all of its models to the measure, which lets each writer choose."""

    title: ClassVar[str] = "all clusters"
    around_all: ClassVar[bool] = True
    inner: fs.Algorithm

    def export(self, server: Any) -> Any:
        """All models."""
        return server.params

    def own_model(self, model: Any, client: Any) -> Any:
        """The model that the client took last."""
        return self.inner.own_model(model, client)


def fedavg(client_lr: float) -> fs.Algorithm:
    """FedAvg with clients that count alike, as all methods here."""
    return fs.FedAvg(client_lr, weighting="uniform")


MAKE: dict[str, Callable[[float], fs.Algorithm]] = {
    "FedAvg": fedavg,
    "FedPer": lambda client_lr: fs.FedPer(HEAD, client_lr, weighting="uniform"),
    "FedRep": lambda client_lr: fs.FedRep(HEAD, client_lr, personal_lr=client_lr, passes=2),
    "Ditto": lambda client_lr: fs.Ditto(fedavg(client_lr), lam=0.1, personal_lr=client_lr),
    "FedBN": lambda client_lr: fs.FedBN(client_lr),
    "PerFedAvg (HF)": lambda client_lr: fs.PerFedAvg(client_lr, alpha=0.1),
    "PerFedAvg (FO)": lambda client_lr: fs.PerFedAvg(client_lr, alpha=0.1, variant="FO"),
    "pFedMe": lambda client_lr: fs.pFedMe(0.5, lam=2.0, personal_lr=client_lr / 2, personal_steps=3),
    "IFCA": lambda client_lr: AllClusters(fs.IFCA(client_lr, first_rounds=10)),
}
METHODS = {name: Method(make, grid={"client_lr": RATES}) for name, make in MAKE.items()}
PROBLEM = Problem(
    "FEMNIST sample, perceptron with layer normalisation",
    f"220 writers train, 10 a round, 5 local steps on batches of 20, 60 rounds; {UNSEEN} others are measured after "
    f"{STEPS} steps on {SHOWN} of their images; 54,398 weights",
    femnist,
    {"rounds": 60, "clients_per_round": 10, "batch_size": 20, "local_steps": 5, "eval_every": 60},
    metric="adapted_accuracy",
    select="chosen_by_accuracy",
)
ADAPTED = ("PerFedAvg (HF)", "PerFedAvg (FO)", "pFedMe", "FedBN", "IFCA")

STUDY = Study(
    title="Unseen writers after a few steps",
    summary="FEMNIST's writers: nine methods by the accuracy on unseen writers after five steps on 30 of their images.",
    problems={NAME: PROBLEM},
    quick=Problem(
        "random images",
        "7 clients",
        random_images,
        {"rounds": 2, "clients_per_round": 3, "local_steps": 2},
        metric="adapted_accuracy",
    ),
    methods=METHODS,
    seeds=SEEDS,
    statements=(
        *(
            Statement(
                f"{name} ends above fine-tuned FedAvg on unseen writers", "", better(NAME, name, "FedAvg")
            )
            for name in ADAPTED
        ),
        *(
            Statement(
                f"{name} ends at most one point below fine-tuned FedAvg on the worst tenth of unseen writers",
                "",
                by_metric(WORST, at_least_as_good(NAME, name, "FedAvg", MARGIN)),
            )
            for name in ADAPTED
        ),
        Statement(
            "Heads that stay on clients cost unseen writers accuracy: FedAvg ends above FedPer and FedRep",
            "",
            each_better(NAME, (("FedAvg", "FedPer"), ("FedAvg", "FedRep"))),
        ),
        Statement(
            "On held-out images of the writers that train, Ditto, FedPer and FedRep with their own models end above "
            "FedAvg without fine-tuning",
            "",
            by_metric(
                OWN, each_better(NAME, tuple((name, "FedAvg") for name in ("Ditto", "FedPer", "FedRep")))
            ),
        ),
    ),
    pictures={
        "writers": Ends(
            "Unseen writers, mean and worst tenth after five steps and mean before, and held-out images of the writers "
            "that train, by their own models.",
            {
                "adapted_accuracy": "unseen, after steps",
                WORST: "worst tenth of them",
                "unadapted_accuracy": "unseen, before",
                OWN: "writers that train",
            },
        ),
    },
    deviations=(
        "Not of a paper. Client rates are the best of 0.1, 0.3, 1 and 3 for the accuracy after five steps on "
        f"{VALIDATING} further writers after all rounds, on the first seed; pFedMe's personal rate is half of them, at "
        "lam = 2 and eta_l lam = 1. Nothing else is tuned: alpha of Per-FedAvg 0.1, lam of Ditto 0.1, two passes of "
        "FedRep, two clusters of IFCA after ten first rounds.",
        "Writers take five gradient steps on all leaves and all shown images, at 0.1 or 0.3, which those "
        f"{VALIDATING} writers choose too. Of FedPer and FedRep an unseen writer has the initial head, of FedBN the "
        "initial normalisation; of IFCA the model with the least loss on its shown images. Of Ditto the server's model "
        "is FedAvg's.",
        "The network is small and training short: 60 rounds, in which a writer takes part 2.7 times in the mean. "
        "Models of the writers' own are those of the last round that they took part in.",
        "Intervals are over seeds of start, cohorts and batches, on one division of the writers.",
    ),
    minutes=4,
)
