"""Fifteen million enrolled clients of one example each: what a round costs, in memory and streamed, and what it holds.

    python benchmarks/enrolled.py

Softmax regression, 4 features and 2 classes, 1,000 clients a round, one step; each run in a process of its own. The
population (420 MB) lies in a temporary folder. A number after the command is another number of clients.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import fedsolve as fs
from fedsolve.tasks import CrossEntropy, Examples, Softmax

MODEL = Softmax(4, 2)
CLIENTS, ROUNDS, EVERY = 15_000_000, 5000, 1000


def main(clients: int) -> None:
    """Write the population, then each run."""
    with tempfile.TemporaryDirectory() as folder:
        begun, processor = time.perf_counter(), time.process_time()
        fs.data.write(population(clients), f"{folder}/data")
        took = time.perf_counter() - begun, time.process_time() - processor
        print(f"{clients:,} clients, made and written in {took[0]:.0f} s ({took[1]:.0f} of processor time)")
        for method, residency in (
            ("FedAvg", "device"),
            ("FedAvg", "stream"),
            ("SCAFFOLD", "device"),
            ("SCAFFOLD", "stream"),
        ):
            command = [sys.executable, __file__, "one", folder, method, residency]
            wall, processor, peak, before, states = json.loads(
                subprocess.check_output(command).splitlines()[-1]
            )
            print(
                f"  {method:9s} {residency:7s} {wall:7.2f} ms a round, {processor:7.2f} of processor time, ready after "
                f"{before:.0f} s of it, peak {peak:6.0f} MB, states on disk {states:.1f} MB",
                flush=True,
            )


def population(clients: int) -> fs.FederatedData:
    """Two classes about two centres."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((clients, 4), np.float32), rng.integers(0, 2, clients, np.int32)
    x[:, 0] += y
    return fs.FederatedData(Examples(x, y), np.ones(clients, np.int64))


def one(folder: str, method: str, residency: Any) -> None:
    """Milliseconds a round by both clocks, the peak in MB, seconds until the first round and MB of states, as JSON."""
    data = fs.data.open(f"{folder}/data")
    work = fs.Task("enrolled", MODEL.init, CrossEntropy(MODEL), data, eval_examples=10_000)
    clocks = []
    with tempfile.TemporaryDirectory(dir=folder) as out:
        fs.run(
            fs.build(method, {"client_lr": 0.1}), work, rounds=ROUNDS, residency=residency, out=out,
            clients_per_round=1000, batch_size=1, local_steps=1, eval_every=EVERY,
            callbacks=[lambda at: clocks.append((time.perf_counter(), time.process_time()))],
        )  # fmt: skip
        states = sum(file.stat().st_blocks * 512 for file in Path(out).glob("clients.states"))
    at = np.array(clocks)
    spent = 1e3 * (at[-1] - at[1]) / (ROUNDS - EVERY)  # the reading of windows is in it
    status = Path(
        "/proc/self/status"
    ).read_text()  # `getrusage` would tell the parent's peak where that was higher
    peak = int(status.split("VmHWM:")[1].split()[0]) / 1024
    print(json.dumps([*spent, peak, at[0, 1], states / 1e6]))


if __name__ == "__main__":
    if sys.argv[1:2] == ["one"]:
        one(*sys.argv[2:])
    else:
        main(int(sys.argv[1]) if sys.argv[1:] else CLIENTS)
