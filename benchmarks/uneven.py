"""What uneven clients cost: a round of ten of them against ten even ones with as many examples, interleaved.

    python benchmarks/uneven.py cnn | lstm

Processor time of all threads; sizes are log-normal, so that the last batch of most clients is partly padding.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace

import numpy as np

import fedsolve as fs
from fedsolve.tasks import CNN, CrossEntropy, Examples
from fedsolve.tasks.losses.sequences import NextToken
from fedsolve.tasks.models.recurrent import LSTM
from measure import interleave, library, show

CLIENTS = 10


def uneven(mean):
    drawn = np.random.default_rng(0).lognormal(0, 0.45, CLIENTS)
    counts = np.maximum(drawn * mean * CLIENTS / drawn.sum(), 5).astype(int)
    counts[-1] += mean * CLIENTS - counts.sum()
    return counts


def pictures(rng, total):
    return Examples(
        rng.normal(size=(total, 28, 28, 1)).astype(np.float32), rng.integers(0, 62, total).astype(np.int32)
    )


def texts(rng, total):
    tokens = rng.integers(1, 90, (total, 41)).astype(np.int32)
    return Examples(tokens[:, :-1], tokens[:, 1:])


CNN_, LSTM_ = CNN(), LSTM(90, hidden=128, layers=1)
WORKS = {  # model, loss, examples, of them a client has on average, batch
    "cnn": (CNN_, CrossEntropy(CNN_), pictures, 100, 20),
    "lstm": (LSTM_, NextToken(LSTM_), texts, 30, 10),
}


def main(name):
    model, loss, draw, mean, batch = WORKS[name]
    counts = {"even": np.full(CLIENTS, mean), "uneven": uneven(mean)}
    tasks = {}
    for kind, of in counts.items():
        data = fs.FederatedData(draw(np.random.default_rng(1), of.sum()), of)
        tasks[kind] = fs.Task(name, model.init, loss, data)
    tasks["uneven, a plain mean"] = replace(tasks["uneven"], loss=lambda params, b: loss(params, b))
    programs = {
        kind: library(fs.FedAvg(0.05), task, CLIENTS, 1, batch_size=batch) for kind, task in tasks.items()
    }
    steps = {kind: int((-(-of // batch)).sum()) for kind, of in counts.items()}
    times = interleave(programs, 1, 9, time.process_time)
    show("uneven", f"{name}, local steps {steps} (bound 1.3)", times, "even", "ms of processor time a round")


if __name__ == "__main__":
    main(sys.argv[1])
