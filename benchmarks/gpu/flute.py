"""FLUTE's three tasks in seconds a round, beside what its README reports of four GPUs: time of all rounds / rounds.

Ten clients a round, one epoch, batches of 20, 20 and 4, as there. Examples are synthetic, as many a client as the data
sets have on average: 198 images of 28 x 28, 100 of 32 x 32, 23 sequences of 80. A round is the same work however many
clients there are; here there are 50.
"""

from __future__ import annotations

import json
import statistics
import sys
import time

import fedsolve as fs
from measure import library
from networks import n1_task, n2_task, n3_task

PUBLISHED = {"FEMNIST CNN": 0.335, "ResNet-18 with group norm": 1.53, "LSTM": 1.09}
GOAL = {"FEMNIST CNN": 0.03, "ResNet-18 with group norm": 0.15, "LSTM": 0.1}


def main(tiny: bool) -> None:
    clients = 10 if tiny else 50
    works = {
        "FEMNIST CNN": (lambda: n1_task([2 if tiny else 198] * clients), 20),
        "LSTM": (lambda: n2_task(*((2, 8, 4) if tiny else (23, 256, 80)), clients=clients), 4),
        "ResNet-18 with group norm": (lambda: n3_task(*((2, 2) if tiny else (100, 64)), clients=clients), 20),
    }
    rows, seconds = {}, {}
    for name, (make, batch) in works.items():
        run = library(fs.FedAvg(0.1), make(), 10, 1, batch_size=batch, epochs=1)
        times = []
        for _ in range(2 if tiny else 10):
            begun = time.perf_counter()
            run()
            times.append(time.perf_counter() - begun)
        seconds[name] = statistics.median(times)
        kept = "tiny" if tiny else "holds" if seconds[name] <= GOAL[name] else "missed"
        rows[name] = (
            f"{seconds[name]:.4f} s a round (FLUTE on four GPUs {PUBLISHED[name]}, goal {GOAL[name]}: {kept})"
        )
        print(json.dumps({"rows": rows, "times": seconds}), flush=True)


if __name__ == "__main__":
    main("--tiny" in sys.argv)
