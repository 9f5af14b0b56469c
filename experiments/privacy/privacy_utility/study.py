"""Central, shared and local noise at equal epsilon, on digits and FEMNIST's sample."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import fedsolve as fs
from experiments.margins import margin
from fedsolve.studies import Method, Problem, Statement, Study
from fedsolve.studies.pictures import Curves
from fedsolve.studies.rules import at_least_as_good, better_in_each

ROUNDS, DELTA, SEEDS = 30, 1e-3, (1, 2, 3, 4, 5)
EPSILONS = (8.0, 2.0)
MARGIN = margin("privacy-utility", "as-good")
"""Points of accuracy."""
NONE, CENTRAL, BY_RENYI, SHARED, FEWER, LOCAL = (
    "no privacy",
    "central noise",
    "central noise by Renyi's bound",
    "shared noise",
    "shared noise, 80 % suffice",
    "local noise",
)


@dataclass(frozen=True)
class Data:
    """A data set, and how FedAvg trains on it.

    Attributes:
        clients: all of them take part in every round.
        rate: of the clients.
        clip_norm: C, near the median norm of the client updates.
        tested: test examples.
        task: from the data folder.
    """

    clients: int
    rate: float
    clip_norm: float
    tested: int
    task: Callable[[Path | None], fs.Task]


DIGITS = Data(200, 1.0, 1.0, 359, lambda data_dir: fs.tasks.digits(num_clients=200, model="softmax"))
FEMNIST = Data(300, 0.3, 0.5, 5_050, lambda data_dir: fs.tasks.femnist(data_dir, "softmax", flip=False))
DATA = {"digits": DIGITS, "FEMNIST": FEMNIST}


@cache
def multiplier(clients: int, epsilon: float, **how: Any) -> float:
    """The noise multiplier of all rounds; every client takes part, so that sampling amplifies nothing."""
    plan = {"population": clients, "cohort": clients, "delta": DELTA, "sampling": "none"}
    return fs.privacy.noise_multiplier_for(epsilon, ROUNDS, **plan, **how)  # pyright: ignore[reportArgumentType]


def central(data: Data, epsilon: float, client_lr: float, **how: Any) -> fs.Algorithm:
    """Clients clip, the server adds Gaussian noise."""
    return private(data, client_lr, multiplier(data.clients, epsilon, **how), at="client")


def shared(data: Data, epsilon: float, client_lr: float, least: float = 1.0) -> fs.Algorithm:
    """Clients add Skellam noise under a secure sum, for sums of this share of them."""
    z = multiplier(data.clients, epsilon, noise="skellam")
    inner = private(data, client_lr, z, at="distributed", min_sum=round(least * data.clients))
    return fs.Secure(inner, bound=1.0, max_clients=data.clients)


def private(data: Data, client_lr: float, z: float, **at: Any) -> fs.Algorithm:
    """FedAvg with noise on the sum."""
    return fs.privacy.DifferentialPrivacy(
        averaging(client_lr), z, data.clip_norm, cohort=data.clients, population=data.clients, delta=DELTA,
        sampling="none", **at,
    )  # fmt: skip


def local(data: Data, epsilon: float, client_lr: float) -> fs.Algorithm:
    """Each client's noise alone protects it: as much on one message as central noise puts on the sum."""
    z = multiplier(data.clients, epsilon)
    return fs.privacy.LocalDifferentialPrivacy(
        averaging(client_lr), data.clip_norm, delta=DELTA, noise_multiplier=z
    )


def averaging(client_lr: float) -> fs.Algorithm:
    """FedAvg with clients that count alike."""
    return fs.FedAvg(client_lr, weighting="uniform")


def name_of(data: str, epsilon: float) -> str:
    """A problem's name."""
    return f"{data}, epsilon {epsilon:g}"


CASES = {name_of(name, epsilon): (data, epsilon) for name, data in DATA.items() for epsilon in EPSILONS}


def methods(problem: str) -> dict[str, Method]:
    """All of them, at one rate."""
    data, epsilon = CASES.get(problem, (DIGITS, EPSILONS[0]))
    made: dict[str, Callable[..., fs.Algorithm]] = {
        NONE: averaging,
        CENTRAL: partial(central, data, epsilon),
        BY_RENYI: partial(central, data, epsilon, accountant="rdp"),
        SHARED: partial(shared, data, epsilon),
        FEWER: partial(shared, data, epsilon, least=0.8),
        LOCAL: partial(local, data, epsilon),
    }
    return {name: Method(make, {"client_lr": data.rate}) for name, make in made.items()}


def problem(name: str) -> Problem:
    """FedAvg on one data set, all clients in every round."""
    data, epsilon = CASES[name]
    weights = 650 if data is DIGITS else 48_670
    return Problem(
        name,
        f"{data.clients} clients, softmax regression with {weights:,} weights, {ROUNDS} rounds of 2 steps on 20 "
        f"examples; epsilon = {epsilon:g} at delta = {DELTA:g} after all rounds",
        data.task,
        {
            "rounds": ROUNDS, "clients_per_round": data.clients, "local_steps": 2, "batch_size": 20, "eval_every": 2,
        },
        last=10,
        tested=data.tested,
    )  # fmt: skip


PROBLEMS = {name: problem(name) for name in CASES}


def on(problem: str) -> tuple[Statement, ...]:
    """What is said of shared noise on one problem."""
    pairs = {
        f"Shared noise ends at most {MARGIN:g} points below central noise": (SHARED, CENTRAL),
        "The same where central noise is counted by the same bound": (SHARED, BY_RENYI),
        f"Noise for sums of 80 % of the clients costs at most {MARGIN:g} points": (FEWER, SHARED),
    }
    return tuple(
        Statement(f"{says}: {problem}", "", at_least_as_good(problem, a, b, MARGIN))
        for says, (a, b) in pairs.items()
    )


STUDY = Study(
    title="Accuracy at equal privacy: central, shared and local noise",
    summary="Gaussian noise of the server, Skellam noise in shares under secure sums, and noise of each client, at "
    "equal epsilon.",
    problems=PROBLEMS,
    methods=methods,
    seeds=SEEDS,
    statements=(
        *(statement for name in PROBLEMS for statement in on(name)),
        Statement(
            "Local noise ends below shared noise", "", better_in_each(tuple(PROBLEMS), SHARED, (LOCAL,))
        ),
    ),
    pictures={"curves": Curves("Test accuracy by round, all methods at the same epsilon in the last one.")},
    quick=Problem(
        "digits", "200 clients", DIGITS.task, {"rounds": 2, "clients_per_round": 200, "local_steps": 1}
    ),
    deviations=(
        "Not of a paper. Epsilon protects all data of a client that takes part in every round, against whoever sees "
        "the models (central), the sums (shared) or the messages (local).",
        "Central and local noise are counted by privacy loss distributions. For Skellam noise in many dimensions none "
        "is known: it is counted by Renyi divergences, which ask for 10 to 13 % more noise at these settings.",
        "One client rate and one clip norm for a data set, chosen for central noise on seed 0: no method is tuned.",
        "No client is lost. The noise of 80 % is what lets a fifth of them be lost: its sums have more.",
    ),
    minutes=5.9,
)
