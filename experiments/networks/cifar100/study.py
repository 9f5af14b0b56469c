"""CIFAR-100 with a ResNet-18: the rows of FedDuA's Table 2 and of FedOpt's Table 1."""

from __future__ import annotations

from dataclasses import replace

from experiments.networks.methods import DECAY, IMAGE_EXTRAS, of_feddua, of_fedopt
from experiments.networks.tasks import AS_IN_FEDDUA, LESS_OF_FEDDUA, QUICK, judged_on
from fedsolve.data import Dirichlet
from fedsolve.studies import Problem, Statement, Study
from fedsolve.studies.pictures import Against, Curves
from fedsolve.studies.rules import better_than_all, each_better, early
from fedsolve.tasks import ResNet18, cifar100

FEDDUA, FEDOPT = "as in FedDuA", "as in FedOpt"
NARROW = ResNet18(100, width=8, groups=8)
"""The small form's network: an eighth of the paper's width."""
WITHOUT, WITH = (
    ("FedAvg", "FedExP", "FedAdagrad", "FedDuAdagrad"),
    ("FedAvgM", "FedExPM", "FedAdam", "FedDuAdam"),
)
"""The methods of Takakura et al. without server momentum, and those with it in the same order."""

METHODS = {
    FEDDUA: of_feddua(
        {
            "FedAvg": (-2, 0), "FedExP": (-2, -4), "FedAdagrad": (-2, -4), "FedDuAdagrad": (-2, -1),
            "FedAvgM": (-2, 0), "FedExPM": (-2, -3), "FedAdam": (-2, -4), "FedDuAdam": (-2, -1),
        },
        DECAY, **IMAGE_EXTRAS,
    ),
    FEDOPT: of_fedopt(
        {
            "FedAvg": (-1, 0.5, None), "FedAvgM": (-1.5, 0, None), "FedAdagrad": (-1, -1, -2),
            "FedAdam": (-1.5, 0, -1), "FedYogi": (-1.5, 0, -1),
        },
        weight_decay=1e-4,
    ),
}  # fmt: skip

FULL = {
    FEDDUA: Problem(
        title="CIFAR-100 subset, Dirichlet(0.3), ResNet-18",
        size="the paper's 100 clients, 20 a round, 20 steps of 50, 500 rounds; 20,000 of 50,000 images",
        task=judged_on(None, cifar100, num_clients=100, partition=Dirichlet(0.3)),
        options=AS_IN_FEDDUA,
        select="validation-accuracy",
        tuning={"rounds": 50, "eval_every": 1},
        published={
            "FedDuAdam": 0.629, "FedDuAdagrad": 0.512, "FedExP": 0.484, "FedExPM": 0.598, "FedAdam": 0.584,
            "FedAdagrad": 0.409, "FedAvgM": 0.565, "FedAvg": 0.395,
        },
    ),
    FEDOPT: Problem(
        title="CIFAR-100 subset, Pachinko, ResNet-18",
        size="200 of 500 clients of 100 images, 10 a round, 1 epoch in batches of 20, 4,000 rounds as in the paper",
        task=judged_on(None, cifar100),
        options={"rounds": 4_000, "clients_per_round": 10, "batch_size": 20, "epochs": 1, "eval_every": 20},
        last=100,
        published={
            "FedAdagrad": 0.479, "FedAdam": 0.525, "FedYogi": 0.524, "FedAvgM": 0.524, "FedAvg": 0.447,
        },
    ),
}  # fmt: skip

PROBLEMS = {
    FEDDUA: replace(
        FULL[FEDDUA],
        title="CIFAR-100 subset, Dirichlet(0.3), ResNet-18 of width 8",
        size="width 8, not 64; 10 of the paper's 20 clients a round, 5 of 20 steps, of 20 images, not 50; 40 "
        "of 500 rounds; 20,000 of 50,000 images",
        task=judged_on(1_000, cifar100, num_clients=100, partition=Dirichlet(0.3), model=NARROW),
        options=LESS_OF_FEDDUA,
        tuning={"rounds": 20},
    ),
    FEDOPT: replace(
        FULL[FEDOPT],
        title="CIFAR-100 subset, Pachinko, ResNet-18 of width 8",
        size="width 8, not 64; 200 of 500 clients of 100 images, 10 a round, 1 epoch in batches of 20; 60 of "
        "4,000 rounds",
        task=judged_on(1_000, cifar100, model=NARROW),
        options={"rounds": 60, "clients_per_round": 10, "batch_size": 20, "epochs": 1, "eval_every": 10},
        tuning={"rounds": 20},
        last=1,
    ),
}  # fmt: skip

STUDY = Study(
    title="CIFAR-100 with a ResNet-18",
    summary="ResNet-18 with group norm: eight methods of FedDuA's Table 2 and five of FedOpt's Table 1, at "
    "the papers' rates.",
    paper="takakura2025feddua",
    problems=PROBLEMS,
    full=FULL,
    methods=METHODS.__getitem__,
    seeds=(0, 1, 2),
    statements=(
        Statement(
            "FedDuAdam is the best of the eight methods",
            "Table 2: 62.9, the next FedExPM with 59.8",
            better_than_all(FEDDUA, "FedDuAdam", [m for m in METHODS[FEDDUA] if m != "FedDuAdam"]),
        ),
        Statement(
            "FedDuAdagrad outperforms the other methods without server momentum",
            "Table 2: 51.2 against FedExP 48.4, FedAdagrad 40.9, FedAvg 39.5; Figure 1, upper",
            better_than_all(FEDDUA, "FedDuAdagrad", [m for m in WITHOUT if m != "FedDuAdagrad"]),
        ),
        Statement(
            "On CIFAR every method does better with server momentum than without",
            "Section 5; Table 2: 56.5 against 39.5, 59.8 against 48.4, 58.4 against 40.9, 62.9 against 51.2",
            each_better(FEDDUA, tuple(zip(WITH, WITHOUT, strict=True))),
        ),
        Statement(
            "Adaptivity and momentum offer substantial improvements over FedAvg",
            "Reddi et al., Section 5.1 and Table 1: 47.9, 52.5, 52.4, 52.4 against 44.7",
            each_better(FEDOPT, tuple((m, "FedAvg") for m in METHODS[FEDOPT] if m != "FedAvg")),
        ),
        Statement(
            "FedYogi and FedAdam converge faster at first than FedAvgM",
            "Reddi et al., Section 5.1, Figure 1",
            early(FEDOPT, each_better(FEDOPT, (("FedYogi", "FedAvgM"), ("FedAdam", "FedAvgM")))),
        ),
    ),
    pictures={
        "curves": Curves("Test accuracy by round, at the settings of the small sweep."),
        "published": Against("The papers' accuracies and ours, at the settings of the small sweep."),
    },
    deviations=(
        "The data are a balanced subset of CIFAR-100, 200 of 500 training images a class: accuracies are below those "
        "of papers that train on all, and FedOpt's clients are 200, not 500. The small form looks at 1,000 test "
        "images.",
        "Group norm stands in both networks; Takakura et al. name a ResNet-18 and no norm. Pictures are cropped to 24 "
        "x 24, mirrored and standardised as in the code of Reddi et al.; the other paper says nothing of that.",
        "Reddi et al. put L2 of 1e-4 on the kernels, here weight decay of 1e-4 is on every weight.",
        "Takakura et al. tune by validation accuracy and do not say what they hold out: here 10 % of each "
        "client's images, in all runs. They clip at a norm that they do not give: here 10, as FedExP's code. "
        "Their FedExP and FedDuA families are judged at the mean of the last two iterates, as the original "
        "FedExP is; the paper says that it averages them, and not for whom.",
        "Grids are small: the papers' client rate and half a decade to either side, all else as published, "
        "on one seed; three seeds judge, where Takakura et al. have five.",
        "The small form stops after 40 and 60 rounds, when networks have barely begun to learn 100 classes: rates "
        "that are best after 500 or 4,000 rounds need not be best here, and the papers' numbers are of the long runs.",
    ),
    cost="Neither form was run yet. Reckoned from 1.9e9 floating-point operations an image (ResNet-18 at 24 x 24, "
    "forward and back): FedDuA's row 240 million images in 24 runs, FedOpt's 60 million in 15, the sweeps 84 "
    "million, the runs at what they chose up to 300 million: 0.7e18 to 1.3e18 operations, 20 to 36 h on a GPU that "
    "sustains 1e13 a second. The small form, reckoned from at most 4 s of processor time for 1,000 images "
    "(measured, width 8, on loaded cores): two to three hours on 2 quiet cores.",
    quick=QUICK,
)
