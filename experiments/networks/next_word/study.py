"""The next word: FedOpt's row of Stack Overflow, on chat messages in its place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import fedsolve as fs
from experiments.networks.methods import of_fedopt, untuned
from experiments.networks.rules import if_learnt
from experiments.networks.texts import tiny_text
from fedsolve.studies import Problem, Statement, Study
from fedsolve.studies.pictures import Against, Curves
from fedsolve.studies.rules import better, better_than_all, each_better
from fedsolve.tasks import LSTM, next_word

NAME = "next word"
WORDS = 1_000
"""The small form's vocabulary."""
COMMONEST = 0.0481
"""Accuracy of always predicting the commonest of these words, on the small form's test messages."""
SMALL = LSTM(WORDS + 4, 32, 64, 1, 32)

METHODS = untuned(
    of_fedopt(
        {
            "FedAvg": (-0.5, 0, None), "FedAvgM": (-0.5, 0, None), "FedAdagrad": (-0.5, -1.5, -4),
            "FedAdam": (-0.5, -2, -5), "FedYogi": (-0.5, -2, -5),
        }
    )
)  # fmt: skip
"""At the rates of the documentation of the paper's code."""


def chats(model: Any, tested: int, vocabulary: int) -> Callable[[Path | None], fs.Task]:
    """The task, with so many test messages; its data come with a package, not with the data folder."""

    def task(data_dir: Path | None) -> fs.Task:
        return next_word(model, vocabulary=vocabulary, test_examples=tested)

    return task


FULL = Problem(
    title="ChitChat, one layer of 670",
    size="812 senders of 107,073 training messages (paper: 342,477 users of Stack Overflow), 10,000 words, 50 a "
    "round, 1 epoch in batches of 16, 1,500 rounds",
    task=chats("lstm", 10_000, 10_000),
    options={"rounds": 1_500, "clients_per_round": 50, "batch_size": 16, "epochs": 1, "eval_every": 10},
    last=100,
    published={"FedAdagrad": 0.238, "FedAdam": 0.252, "FedYogi": 0.252, "FedAvgM": 0.238, "FedAvg": 0.195},
)  # fmt: skip

STUDY = Study(
    title="The next word of chat messages",
    summary="An LSTM by sender of ChitChat, for Stack Overflow: five methods of FedOpt's Table 1, at its rates.",
    paper="reddi2021fedopt",
    problems={
        NAME: replace(
            FULL,
            title="ChitChat, one layer of 64",
            size=f"812 senders of ChitChat, not Stack Overflow's 342,477 users; {WORDS:,} words, not 10,000; one "
            "layer of 64, not 670; 20 senders a round, not 50; 360 of 1,500 rounds; 5,000 of 51,485 test messages",
            task=chats(SMALL, 5_000, WORDS),
            options={**FULL.options, "rounds": 360, "clients_per_round": 20, "eval_every": 15},
            last=60,
            chance=COMMONEST,
        )
    },
    full={NAME: FULL},
    methods=METHODS,
    seeds=(0, 1, 2, 3),
    statements=(
        Statement(
            "On sparse gradients adaptive methods outperform the others: FedAdam is better than FedAvgM and FedAvg",
            "Table 1: 25.2 against 23.8 and 19.5",
            if_learnt(NAME, better_than_all(NAME, "FedAdam", ("FedAvgM", "FedAvg"))),
        ),
        Statement(
            "So is FedYogi",
            "Table 1: 25.2 against 23.8 and 19.5",
            if_learnt(NAME, better_than_all(NAME, "FedYogi", ("FedAvgM", "FedAvg"))),
        ),
        Statement(
            "FedAdagrad, too, is better than FedAvg",
            "Table 1: 23.8 against 19.5",
            if_learnt(NAME, better(NAME, "FedAdagrad", "FedAvg")),
        ),
        Statement(
            "Momentum is critical: FedAvgM is better than FedAvg, FedAdam and FedYogi better than FedAdagrad",
            "Section 5.1; Table 1: 23.8 against 19.5, 25.2 and 25.2 against 23.8",
            if_learnt(
                NAME,
                each_better(
                    NAME, (("FedAvgM", "FedAvg"), ("FedAdam", "FedAdagrad"), ("FedYogi", "FedAdagrad"))
                ),
            ),
        ),
    ),
    pictures={
        "curves": Curves("Test accuracy by round, at the paper's rates."),
        "published": Against("The paper's accuracies on Stack Overflow and ours on ChitChat, at the paper's rates."),
    },
    deviations=(
        "The data are not Stack Overflow, which is not here, but a stand-in: ChitChat, messages of students and "
        "others who chatted in pairs, in the Python package chitchat-dataset. A sender is a client; messages are "
        "shorter than posts, and 812 senders come back every 16 to 41 rounds where the paper's users hardly ever "
        "do.",
        "Accuracies are of other words than the paper's: beside its numbers only the order of methods says anything. "
        "A method has learnt if it is better than its start and than the commonest word.",
        "As in the paper accuracy leaves out unknown words and the end of a message. Test messages are later ones "
        "of the same senders.",
        "The rates are those of the documentation of the paper's code, which ran Adam and Yogi with beta2 0.999; "
        "here it is 0.99, the paper's. Senders count by their messages.",
        "After 360 rounds all methods are better than the commonest word, 4.8 %, and none has half of the paper's "
        "accuracy after 1,500. After 150 rounds, on five seeds, FedAvg was not, and FedAdagrad was better than it.",
        "Nothing is tuned: all rates are the paper's best ones, of runs that are longer than the small form's.",
    ),
    cost="The full form was not run. Reckoned from its operations, 3.7e8 a message forward and back, 6,600 "
    "messages a round, 25 runs of 1,500 rounds, 0.9e17 in all, at 6e10 a second of processor time (measured on "
    "Shakespeare's network): 210 h on 2 cores. On a GPU it was not measured.",
    minutes=104,
    quick=Problem(
        title="counting", size="6 made-up clients", task=tiny_text, options={"rounds": 2, "clients_per_round": 3}
    ),
    needs_data=False,
)  # fmt: skip
