"""What the record of a million rounds takes: memory, files, and the time to read it again.

python benchmarks/rounds.py
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import fedsolve as fs
from fedsolve.tasks import CrossEntropy, Examples, Softmax

MODEL = Softmax(3, 2)


def main(rounds: int) -> None:
    """A run of few rounds, then one of many."""
    rng = np.random.default_rng(0)
    clients = [Examples(rng.random((4, 3), np.float32), rng.integers(0, 2, 4, np.int32)) for _ in range(4)]
    work = fs.Task("rounds", MODEL.init, CrossEntropy(MODEL), fs.FederatedData.from_clients(clients))
    fs.run(fs.FedAvg(0.1), work, rounds=2000, eval_every=1000, local_steps=1, batch_size=4)
    before, begun = _peak(), time.process_time()
    with tempfile.TemporaryDirectory() as out:
        fs.run(
            fs.FedAvg(0.1),
            work,
            rounds=rounds,
            eval_every=rounds // 10,
            local_steps=1,
            batch_size=4,
            out=out,
        )
        ran, grown = time.process_time() - begun, _peak() - before
        begun = time.process_time()
        columns = len(fs.load(out).rounds)
        print(
            f"{rounds:,} rounds of {columns} columns: {grown:.0f} MB more, {ran:.1f} s of processor time, read again "
            f"in {time.process_time() - begun:.2f} s; kB of files:",
            {file.name: file.stat().st_size // 1000 for file in sorted(Path(out).iterdir())},
        )


def _peak() -> float:
    """The most memory that the process has had, in MB."""
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) / 1000


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 1_000_000)
