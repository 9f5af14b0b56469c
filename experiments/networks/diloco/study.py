"""DiLoCo on a small transformer: how rarely clients may talk, and what steps outside (Douillard et al. 2023)."""

from __future__ import annotations

from dataclasses import replace

import optax

import fedsolve as fs
from experiments.margins import margin
from experiments.networks.rules import across
from experiments.networks.texts import roles, tiny_text
from fedsolve.studies import Method, Problem, Statement, Study
from fedsolve.studies.pictures import Along, Curves
from fedsolve.studies.public import VOCABULARY
from fedsolve.studies.rules import at_least_as_good, better, together
from fedsolve.tasks import CausalTransformer

STEPS, EVERY = 1_000, (1, 5, 20, 100, 500)
"""Local steps in all, and how many of them between two rounds."""
RATE = optax.warmup_cosine_decay_schedule(0.0, 2e-3, 50, STEPS, 2e-4)
"""Of AdamW, by local steps over all rounds: the clients keep the count."""
MARGIN = margin("diloco", "as-good")
"""Nats a character: a perplexity within 5 % is the same."""
SYNCHRONOUS = "AdamW in every step"


def _diloco(rule: fs.server.ServerOptimizer) -> fs.Algorithm:
    """DiLoCo with its inner rate by local step and any rule outside."""
    inner = fs.client.Optax(optax.adamw, keep=True, learning_rate=RATE, weight_decay=0.1)
    return fs.FedOpt(inner, rule, weighting="uniform", name="DiLoCo")


def nesterov(server_lr: float) -> fs.Algorithm:
    """The paper's: Nesterov's momentum outside."""
    return _diloco(fs.server.ServerSGD(server_lr, momentum=0.9, nesterov=True))


def adam(server_lr: float) -> fs.Algorithm:
    """FedAdam's rule outside."""
    return _diloco(fs.server.Adaptive(server_lr))


def doubly_adaptive(eps_g: float) -> fs.Algorithm:
    """FedDuAdam's rule outside, which has no rate."""
    return _diloco(fs.server.DoublyAdaptive(beta1=0.9, preconditioner="adam", eps_g=eps_g))


def synchronous(weight_decay: float) -> fs.Algorithm:
    """Clients send gradients, the server alone runs AdamW: what DiLoCo is compared with."""
    adamw = fs.server.Optax(optax.adamw, learning_rate=RATE, weight_decay=weight_decay)
    return fs.FedOpt(fs.client.SGD(1.0), adamw, weighting="uniform", name="synchronous")


RULES = {
    "Nesterov": Method(nesterov, {"server_lr": 0.7}, {"server_lr": (0.3, 0.7, 1.0)}),
    "FedAdam": Method(adam, grid={"server_lr": (3e-3, 1e-2, 3e-2)}),
    "FedDuAdam": Method(doubly_adaptive, {"eps_g": 0.0}),
}
"""What steps outside."""
_NESTEROV, _ADAM = (0.3, 0.7, 1.0, 1.5, 2.0), (3e-3, 1e-2, 3e-2, 0.1, 0.3)
WIDER = {100: {"FedAdam": _ADAM}, 500: {"Nesterov": _NESTEROV, "FedAdam": _ADAM}}
"""More rates where rounds are few and the largest of three is the best, by H and rule."""


def at(steps: int) -> str:
    """The problem of so many local steps between rounds.

    >>> at(500)
    'H = 500'
    """
    return f"H = {steps}"


SPARSE = tuple(H for H in EVERY if H >= 20)


def methods(problem: str) -> dict[str, Method]:
    """The three rules, and where every step is a round AdamW alone."""
    if problem == at(1):
        return RULES | {SYNCHRONOUS: Method(synchronous, {"weight_decay": 0.1})}
    wider = next((rates for H, rates in WIDER.items() if problem == at(H)), {})
    return RULES | {name: replace(RULES[name], grid={"server_lr": rates}) for name, rates in wider.items()}


def _problems(
    clients: int, width: int, layers: int, length: int, batch: int, judged: int
) -> dict[str, Problem]:
    """One problem for each H, all of equally many local steps."""
    model = CausalTransformer(VOCABULARY, length, width, layers, heads=4)
    task = roles(model, judged, num_clients=clients, length=length, min_characters=20_000)
    size = (
        f"{clients} roles, transformer of {layers} blocks of width {width}, {STEPS} local steps of {batch} "
        f"sequences of {length} characters, rate rising to 2e-3 over 50 steps and falling to a tenth along a "
        "cosine (paper: 60 to 400 million parameters, 88,000 steps of 512 sequences of 1,024 tokens of C4)"
    )
    problem = Problem(
        "", size, task, {"rounds": STEPS, "batch_size": batch}, "test_loss", select="train_loss"
    )
    return {
        at(H): replace(
            problem,
            title=at(H),
            options={
                **problem.options, "rounds": STEPS // H, "local_steps": H, "eval_every": max(1, STEPS // H // 10)
            },
        )
        for H in EVERY
    }  # fmt: skip


_LAST = at(EVERY[-1])
STUDY = Study(
    title="DiLoCo on a small transformer",
    summary="H = 1 to 500 local steps between rounds; Nesterov, FedAdam and FedDuAdam outside AdamW.",
    paper="douillard2023diloco",
    problems=_problems(4, 24, 2, 20, 4, 300),
    full=_problems(8, 256, 6, 80, 64, 2_000),
    methods=methods,
    seeds=tuple(range(5)),
    minutes=15.2,
    statements=(
        Statement(
            "DiLoCo with H = 500 does as well as AdamW on the mean gradient of every step, and communicates 500 "
            f"times less: its loss is at most {MARGIN} nats higher",
            "abstract: as well with 8 workers, 500 times less communication",
            across(at_least_as_good, (_LAST, "Nesterov"), (at(1), SYNCHRONOUS), margin=MARGIN),
        ),
        Statement(
            f"DiLoCo with H = 20 does as well as AdamW in every step: its loss is at most {MARGIN} nats higher",
            "Section 3.1: the more often clients talk the better",
            across(at_least_as_good, (at(20), "Nesterov"), (at(1), SYNCHRONOUS), margin=MARGIN),
        ),
        Statement(
            f"The loss rises little with H: from 20 to 500 by at most {MARGIN} nats",
            "Section 3.1: mild degradation up to H = 1000",
            across(at_least_as_good, (_LAST, "Nesterov"), (at(20), "Nesterov"), margin=MARGIN),
        ),
        Statement(
            "Nesterov's momentum outside is better than Adam, at every H of 20 or more",
            "Section 3.1: the best of SGD, SGD with momentum, Nesterov and Adam",
            together(*(better(at(H), "Nesterov", "FedAdam") for H in SPARSE)),
        ),
        Statement(
            f"FedDuAdam outside, without a rate, is no worse than Nesterov by {MARGIN} nats, at every H of 20 or "
            "more",
            "",
            together(*(at_least_as_good(at(H), "FedDuAdam", "Nesterov", MARGIN) for H in SPARSE)),
        ),
    ),
    pictures={
        "losses": Along(
            "Loss on later text of the roles after equally many local steps, mean and range of seeds.",
            "local steps between rounds, H",
            {at(H): H for H in EVERY},
        ),
        "curves": Curves("Loss on later text on the way; a round has H local steps.", columns=3),
    },
    deviations=(
        "The paper trains on C4 with 88,000 steps, 64,000 of them with H = 500: 128 rounds. Here a small "
        "transformer reads characters, 4 roles of Shakespeare are the workers, and H = 500 leaves two rounds: what "
        "momentum over rounds is worth shows at small H alone. No form of this study has the paper's size; --full "
        "is a larger transformer on larger batches, with as many steps.",
        "The clients' rate rises and falls along a cosine as in the paper, but its peak, 2e-3, is not tuned. Roles "
        "are not alike, as in the paper's non-i.i.d. setting.",
        "The paper starts from a model that was trained for 24,000 steps; here every run starts from its seed's "
        "own model.",
        "The paper's rate outside is run as it is, 0.7; of three each, and of five where H is large and the largest "
        "of three was best (FedAdam at 100, both at 500), Nesterov and FedAdam have the one with the least training "
        "loss on one seed. FedDuAdam has none.",
    ),
    cost="The full form was not run. Reckoned from its operations, 2.3e9 a sequence forward and back, 512,000 "
    "sequences a run and 93 runs, 1.1e17 in all: 3 h on a GPU that sustains 1e13 a second. The paper's size, "
    "64,000 steps of 8 clients on 150 million parameters, is 2.4e20 operations a run.",
    quick=Problem(
        title="counting",
        size="6 made-up clients",
        task=lambda data_dir: tiny_text(data_dir, CausalTransformer(8, 6, 8, 1, 2)),
        options={"rounds": 2, "local_steps": 2},
        metric="test_loss",
    ),
)  # fmt: skip
