"""Seconds, not rounds: synchronous, over-selected and buffered training on the clocks of two fleets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import fedsolve as fs
from experiments.margins import margin
from fedsolve.studies import Method, Problem, Statement, Study
from fedsolve.studies.pictures import Curves
from fedsolve.studies.rules import at_least_as_good, sooner

WRITERS, AT_WORK, ROUNDS, SEEDS = 100, 10, 100, (0, 1, 2, 3, 4)
TARGET, MARGIN = (margin("fleet-clock", name) for name in ("target", "as-good"))
NEIGHBOURS, RATE = (0.5, 0.56), 0.1
FLEETS = {
    "stragglers": "log-normal speeds and links, one task in 20 is lost",
    "half-normal": "half-normal speeds, no task is lost",
}


def task(data_dir: Path | None, seed: int) -> fs.Task:
    """Softmax regression on writers that are drawn by the seed."""
    drawn = fs.tasks.femnist(data_dir, "softmax", num_clients=WRITERS, seed=seed, flip=False)
    return replace(drawn, unseen=None)


def quick_task(data_dir: Path | None, seed: int) -> fs.Task:
    """The same sizes without the data folder."""
    return fs.tasks.digits(num_clients=WRITERS, seed=seed)


def problem(fleet: str) -> Problem:
    """A fleet's clock: synchronous rounds unless the method says otherwise."""
    return Problem(
        f"fleet {fleet}",
        f"{WRITERS} of 300 writers, softmax regression, {AT_WORK} clients at work; {FLEETS[fleet]}",
        task,
        {"rounds": ROUNDS, "clients_per_round": AT_WORK, "eval_every": 1, "systems": fleet},
        data_by_seed=True,
    )


SYNCHRONOUS, OVER_SELECTED, BUFFERED, LARGER = (
    "synchronous",
    "over-selected",
    "FedBuff, K = 5",
    "FedBuff, K = 10",
)


def buffered(buffer: int) -> Method:
    """FedBuff with as many messages in all, and as many between evaluations."""
    return Method(
        lambda client_lr: fs.FedBuff(client_lr, buffer=buffer),
        {"client_lr": RATE},
        options={"rounds": ROUNDS * AT_WORK // buffer, "eval_every": AT_WORK // buffer},
    )


METHODS = {
    SYNCHRONOUS: Method(lambda client_lr: fs.FedAvg(client_lr, weighting="uniform"), {"client_lr": RATE}),
    OVER_SELECTED: Method(
        lambda client_lr: fs.FedAvg(client_lr, weighting="uniform"),
        {"client_lr": RATE},
        options={"clients_per_round": 13, "quorum": AT_WORK},
    ),
    BUFFERED: buffered(5),
    LARGER: buffered(AT_WORK),
}
PROBLEMS = {fleet: problem(fleet) for fleet in FLEETS}
BOTH = tuple(PROBLEMS)
_REACHES = f"{100 * TARGET:g} % of the test images right"

STUDY = Study(
    title="Synchronous, over-selected and buffered training on the clock of two fleets",
    summary="Simulated seconds to an accuracy on the FEMNIST sample: rounds that wait for all, rounds that end with "
    "the first 10 of 13 messages, and FedBuff.",
    problems=PROBLEMS,
    quick=replace(PROBLEMS["stragglers"], task=quick_task),
    methods=METHODS,
    seeds=SEEDS,
    statements=(
        Statement(
            f"Rounds that end with the first 10 of 13 messages have {_REACHES} sooner than rounds that wait for all",
            "",
            sooner(BOTH, OVER_SELECTED, SYNCHRONOUS, TARGET, NEIGHBOURS),
        ),
        Statement(
            f"FedBuff has {_REACHES} sooner than synchronous rounds, with as many messages an update (K = 10)",
            "",
            sooner(BOTH, LARGER, SYNCHRONOUS, TARGET, NEIGHBOURS),
        ),
        Statement(
            f"FedBuff has {_REACHES} sooner than over-selected rounds, with as many messages an update (K = 10)",
            "",
            sooner(BOTH, LARGER, OVER_SELECTED, TARGET, NEIGHBOURS),
        ),
        Statement(
            f"FedBuff has {_REACHES} sooner with half as many messages an update (K = 5)",
            "",
            sooner(BOTH, BUFFERED, LARGER, TARGET, NEIGHBOURS),
        ),
        *(
            Statement(
                f"After as many messages FedBuff (K = 10) is at most a point worse than synchronous rounds: {fleet}",
                "",
                at_least_as_good(fleet, LARGER, SYNCHRONOUS, MARGIN),
            )
            for fleet in FLEETS
        ),
    ),
    pictures={
        "time": Curves("Test accuracy by simulated time: the same number of messages each.", x="time"),
        "rounds": Curves(
            "Test accuracy by update of the server: those of FedBuff with K = 5 take 5 messages, the others 10."
        ),
    },
    deviations=(
        "Not of a paper. The fleets are synthetic: what holds for them need not hold for another.",
        f"One client rate ({RATE:g}), not tuned, and server rate 1 for all; each uses 1,000 messages.",
        "Over-selected rounds ask 13 clients and stop the last three; all others have 10 clients at work.",
        "Each seed draws other writers, another fleet and another order of events; the test images are of all 300 "
        "writers.",
    ),
    minutes=2.0,
)
