"""CIFAR: FedDuA's rows of Table 2 and FedOpt's of Table 1, on ten classes, in full also on a hundred."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from experiments.networks.methods import DECAY, IMAGE_EXTRAS, of_feddua, of_fedopt, untuned
from experiments.networks.rules import if_learnt
from experiments.networks.tasks import AS_IN_FEDDUA, QUICK, judged_on
from fedsolve.data import Dirichlet
from fedsolve.studies import Problem, Statement, Study
from fedsolve.studies.pictures import Against, Curves
from fedsolve.studies.rules import better_than_all, each_better, early
from fedsolve.tasks import CNN, cifar10, cifar100

TEN, HUNDRED = "CIFAR-10", "CIFAR-100"
FEDDUA, FEDOPT = "as in FedDuA", "as in FedOpt"
SMALL = CNN(10, 24, 24, (16, 32), 64, 3, (0.0, 0.0))
"""The small form's network: two convolutions and a dense layer, without dropout."""
WITHOUT, WITH = (
    ("FedAvg", "FedExP", "FedAdagrad", "FedDuAdagrad"),
    ("FedAvgM", "FedExPM", "FedAdam", "FedDuAdam"),
)
"""The methods of Takakura et al. without server momentum, and those with it in the same order."""

_DUA = {
    "FedAvg": (-2, 0),
    "FedExP": (-2, -4),
    "FedAdagrad": (-2, -4),
    "FedDuAdagrad": (-2, -1),
    "FedAdam": (-2, -4),
}
_OPT = untuned(
    of_fedopt(
        {
            "FedAvg": (-1, 0.5, None), "FedAvgM": (-1.5, 0, None), "FedAdagrad": (-1, -1, -2),
            "FedAdam": (-1.5, 0, -1), "FedYogi": (-1.5, 0, -1),
        },
        weight_decay=1e-4,
    )
)  # fmt: skip
METHODS = {
    f"{TEN} {FEDDUA}": untuned(
        of_feddua(
            {**_DUA, "FedAvgM": (-2, -1), "FedExPM": (-2, -4), "FedDuAdam": (-2, -2)}, DECAY, **IMAGE_EXTRAS
        )
    ),
    f"{TEN} {FEDOPT}": _OPT,
    f"{HUNDRED} {FEDDUA}": untuned(
        of_feddua(
            {**_DUA, "FedAvgM": (-2, 0), "FedExPM": (-2, -3), "FedDuAdam": (-2, -1)}, DECAY, **IMAGE_EXTRAS
        )
    ),
    f"{HUNDRED} {FEDOPT}": _OPT,
}
"""At the papers' best rates; the documentation of Reddi et al.'s code has none for CIFAR-10: those of CIFAR-100."""
NAMES = ("FedDuAdam", "FedDuAdagrad", "FedExP", "FedExPM", "FedAdam", "FedAdagrad", "FedAvgM", "FedAvg")
TABLE_2 = {
    TEN: (86.6, 82.1, 80.7, 86.4, 81.9, 74.0, 80.6, 73.1),
    HUNDRED: (62.9, 51.2, 48.4, 59.8, 58.4, 40.9, 56.5, 39.5),
}
TABLE_1 = {TEN: (72.1, 77.4, 78.0, 77.4, 72.8), HUNDRED: (47.9, 52.5, 52.4, 52.4, 44.7)}


def _shares(names: Iterable[str], per_cent: Iterable[float]) -> dict[str, float]:
    return {name: number / 100 for name, number in zip(names, per_cent, strict=True)}


def _as_in_feddua(classes: str) -> Problem:
    build = cifar10 if classes == TEN else cifar100
    return Problem(
        title=f"{classes} subset, Dirichlet(0.3), ResNet-18",
        size="the paper's 100 clients, 20 a round, 20 steps of 50, 500 rounds; 20,000 of 50,000 images",
        task=judged_on(None, build, num_clients=100, partition=Dirichlet(0.3)),
        options=AS_IN_FEDDUA,
        select="validation-accuracy",
        published=_shares(NAMES, TABLE_2[classes]),
    )


def _as_in_fedopt(classes: str) -> Problem:
    build, dealt = (cifar10, "Dirichlet(0.3)") if classes == TEN else (cifar100, "Pachinko")
    clients = "100 clients" if classes == TEN else "200 of 500 clients of 100 images"
    return Problem(
        title=f"{classes} subset, {dealt}, ResNet-18",
        size=f"{clients}, 10 a round, 1 epoch in batches of 20, 4,000 rounds as in the paper",
        task=judged_on(None, build),
        options={"rounds": 4_000, "clients_per_round": 10, "batch_size": 20, "epochs": 1, "eval_every": 20},
        last=100,
        published=_shares(("FedAdagrad", "FedAdam", "FedYogi", "FedAvgM", "FedAvg"), TABLE_1[classes]),
    )


FULL = {
    f"{classes} {paper}": problem(classes)
    for classes in (TEN, HUNDRED)
    for paper, problem in ((FEDDUA, _as_in_feddua), (FEDOPT, _as_in_fedopt))
}
_NETWORK = "a CNN of 16 and 32 channels, not a ResNet-18"
PROBLEMS = {
    f"{TEN} {FEDDUA}": replace(
        FULL[f"{TEN} {FEDDUA}"],
        title="CIFAR-10 subset, Dirichlet(0.3), CNN",
        size=f"{_NETWORK}; 10 of the paper's 20 clients a round, 20 steps of 20 images, not 50; 40 of 500 rounds; "
        "20,000 of 50,000 images",
        task=judged_on(None, cifar10, num_clients=100, partition=Dirichlet(0.3), model=SMALL),
        options={"rounds": 40, "clients_per_round": 10, "batch_size": 20, "local_steps": 20, "eval_every": 5},
        select="training-loss",
        tested=4_000,
    ),
    f"{TEN} {FEDOPT}": replace(
        FULL[f"{TEN} {FEDOPT}"],
        title="CIFAR-10 subset, Dirichlet(0.3), CNN, epochs",
        size=f"{_NETWORK}; 100 clients, 10 a round, 1 epoch in batches of 20; 60 of 4,000 rounds",
        task=judged_on(None, cifar10, model=SMALL),
        options={"rounds": 60, "clients_per_round": 10, "batch_size": 20, "epochs": 1, "eval_every": 10},
        last=1,
        tested=4_000,
    ),
}


def _of_feddua(classes: str) -> tuple[Statement, ...]:
    """What Takakura et al. say of a row of their table."""
    name, by, full = f"{classes} {FEDDUA}", FULL[f"{classes} {FEDDUA}"].published, classes == HUNDRED

    def numbers(methods: Iterable[str]) -> str:
        return ", ".join(f"{method} {100 * by[method]:.1f}" for method in methods)

    others = [m for m in NAMES if m != "FedDuAdam"]
    plain = [m for m in WITHOUT if m != "FedDuAdagrad"]
    return (
        Statement(
            f"On {classes} FedDuAdam is the best of the eight methods",
            f"Takakura et al., Table 2: {numbers(NAMES)}",
            if_learnt(name, better_than_all(name, "FedDuAdam", others)),
            full,
        ),
        Statement(
            f"On {classes} FedDuAdagrad outperforms the other methods without server momentum",
            f"Takakura et al., Table 2: {numbers(('FedDuAdagrad', *plain))}; Figure 1, upper",
            if_learnt(name, better_than_all(name, "FedDuAdagrad", plain)),
            full,
        ),
        Statement(
            f"On {classes} every method does better with server momentum than without",
            "Takakura et al., Section 5; Table 2: "
            + "; ".join(numbers(pair) for pair in zip(WITH, WITHOUT, strict=True)),
            if_learnt(name, each_better(name, tuple(zip(WITH, WITHOUT, strict=True)))),
            full,
        ),
    )


def _of_fedopt(classes: str) -> tuple[Statement, ...]:
    """What Reddi et al. say of a row of theirs."""
    name, full = f"{classes} {FEDOPT}", classes == HUNDRED
    by = FULL[name].published
    above = [m for m in _OPT if by[m] > by["FedAvg"]]
    numbers = ", ".join(f"{method} {100 * by[method]:.1f}" for method in (*above, "FedAvg"))
    return (
        Statement(
            f"On {classes} {', '.join(above[:-1])} and {above[-1]} offer substantial improvements over FedAvg",
            f"Reddi et al., Section 5.1; Table 1, {classes}: {numbers}",
            if_learnt(name, each_better(name, tuple((m, "FedAvg") for m in above))),
            full,
        ),
        Statement(
            f"On {classes} FedYogi and FedAdam converge faster at first than FedAvgM",
            "Reddi et al., Section 5.1, Figure 1",
            if_learnt(name, early(name, each_better(name, (("FedYogi", "FedAvgM"), ("FedAdam", "FedAvgM"))))),
            full,
        ),
    )


STUDY = Study(
    title="CIFAR",
    summary="Convolutional networks on CIFAR-10: eight methods of FedDuA's Table 2 and five of FedOpt's Table 1, at "
    "the papers' rates.",
    paper="takakura2025feddua",
    problems=PROBLEMS,
    full=FULL,
    methods=METHODS.__getitem__,
    seeds=(0, 1, 2, 3, 4),
    statements=tuple(s for classes in (TEN, HUNDRED) for s in (*_of_feddua(classes), *_of_fedopt(classes))),
    pictures={
        "curves": Curves("Test accuracy by round, at the papers' rates."),
        "published": Against("The papers' accuracies and ours, at the papers' rates."),
    },
    deviations=(
        "The data are balanced subsets, 20,000 of 50,000 training images: accuracies are below those of papers that "
        "train on all, and FedOpt's clients are 200, not 500, on CIFAR-100. On CIFAR-10 its paper does not say how "
        "images are dealt: here to 100 clients by Dirichlet(0.3), as in the other paper. The rates there are those for "
        "CIFAR-100.",
        "Group norm stands in both networks; Takakura et al. name a ResNet-18 and no norm. Pictures are cropped to 24 "
        "x 24, mirrored and standardised as in the code of Reddi et al.; the other paper says nothing of that.",
        "Reddi et al. put L2 of 1e-4 on the kernels, here weight decay of 1e-4 is on every weight.",
        "They clip at a norm that they do not give: here 10, as FedExP's code. Their FedExP and FedDuA families are "
        "evaluated at the mean of the last two iterates, as the original FedExP is; the paper says that it averages "
        "them, and not for whom.",
        "Nothing is tuned: all rates are the papers' best ones, of runs that are longer and on another network than "
        "the small form's. The full form of FedDuA's rows holds out 10 % of each client's images, as a paper does that "
        "chooses by them.",
        "The small form has ten classes, which a small network learns in the time, and stops after 40 and 60 rounds. A "
        "row counts as learnt where its best method ends with at least half of the accuracy that the paper has for it.",
    ),
    cost="The full form was not run. Reckoned from 1.9e9 floating-point operations an image (ResNet-18 at 24 x 24, "
    "forward and back): each of FedDuA's rows 80 million images a seed, FedOpt's 40 and 20 million; with five seeds "
    "2.1e18 operations, 58 h on a GPU that sustains 1e13 a second.",
    minutes=39,
    quick=QUICK,
)
