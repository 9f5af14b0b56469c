"""What a round, its memory and its checkpoints cost where clients are streamed from disk, as the population grows.

    python benchmarks/streams.py

Softmax regression, 20 examples of 59 features a client (4.8 GB of a million), 1,000 clients a round, one step of
10 examples; each run in its own process, the least of two. It writes the populations to a temporary folder.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

import fedsolve as fs
from fedsolve.engine.checkpoint import Checkpoints
from fedsolve.tasks import CrossEntropy, Examples, Softmax

MODEL = Softmax(59, 10)
POPULATIONS = (10**4, 10**5, 10**6)
ROUNDS, EVERY = 200, 40


def main() -> None:
    """1,000 clients a round, one step of 10, of ever more clients on disk: round, memory, checkpoint."""
    for clients in POPULATIONS:
        with tempfile.TemporaryDirectory() as folder:
            begun = time.perf_counter()
            fs.data.write(many(clients), f"{folder}/data")
            print(f"{clients:,} clients, written in {time.perf_counter() - begun:.0f} s")
            for method in ("FedAvg", "SCAFFOLD"):
                for residency in ("device", "stream") if clients == POPULATIONS[0] else ("stream",):
                    command = [sys.executable, __file__, "one", folder, method, residency]
                    found = [json.loads(subprocess.check_output(command).splitlines()[-1]) for _ in range(2)]
                    wall, processor, peak, saving = (min(one[i] for one in found) for i in range(4))
                    print(
                        f"  {method:9s} {residency:7s} {wall:7.2f} ms a round, {processor:7.2f} of processor time, "
                        f"peak {peak:6.0f} MB, a checkpoint {saving:.2f} s at most",
                        flush=True,
                    )


def many(clients: int) -> Iterator[Examples]:
    """Clients whose examples lie anywhere in a table of random ones."""
    rng = np.random.default_rng(0)
    x, y = rng.random((2**17, 59), np.float32), rng.integers(0, 10, 2**17, np.int32)
    for start in rng.integers(0, 2**17 - 20, clients):
        yield Examples(x[start : start + 20], y[start : start + 20])


def one(folder: str, method: str, residency: Any) -> None:
    """Milliseconds a round by both clocks, the process's peak in MB and the longest checkpoint in seconds, as JSON."""
    work = fs.Task(
        "streams", MODEL.init, CrossEntropy(MODEL), fs.data.open(f"{folder}/data"), eval_examples=10_000
    )
    clocks, savings = [], [0.0]
    save = Checkpoints.save

    def timed(*args: Any) -> None:
        begun = time.perf_counter()
        save(*args)
        savings.append(time.perf_counter() - begun)

    Checkpoints.save = timed
    options = {"clients_per_round": 1000, "batch_size": 10, "local_steps": 1, "eval_every": EVERY}
    with tempfile.TemporaryDirectory(dir=folder) as out:
        fs.run(
            fs.build(method, {"client_lr": 0.1}), work, rounds=ROUNDS, residency=residency, out=out, **options,
            callbacks=[lambda at: clocks.append((time.perf_counter(), time.process_time()))],
        )  # fmt: skip
    spent = 1e3 * np.diff(np.array(clocks[1:]), axis=0).min(axis=0) / EVERY
    print(json.dumps([*spent, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, max(savings)]))


if __name__ == "__main__":
    if sys.argv[1:2] == ["one"]:
        one(*sys.argv[2:])
    else:
        main()
