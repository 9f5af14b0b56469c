"""What each process of a streamed run reads and holds: one process with two devices, and two with one each.

    python benchmarks/shares.py

100,000 clients of 20 examples with 59 features (480 MB on disk), softmax regression, 1,000 clients a round. The
data lie in a temporary folder.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import fedsolve as fs

ADDRESS, ROUNDS = "127.0.0.1:7322", 100


def main() -> None:
    """One process, then two."""
    rng = np.random.default_rng(0)
    x, y = rng.random((2_000_000, 59), np.float32), rng.integers(0, 10, 2_000_000, np.int32)
    with tempfile.TemporaryDirectory() as folder:
        data = fs.FederatedData(fs.Examples(x, y), np.full(100_000, 20))
        fs.data.write(data, f"{folder}/data")
        for count in (1, 2):
            command = [sys.executable, __file__, folder, str(count)]
            env = os.environ | {"JAX_NUM_CPU_DEVICES": str(2 // count)}
            members = [
                subprocess.Popen([*command, str(i)], env=env, stdout=subprocess.PIPE, text=True)
                for i in range(count)
            ]
            for i, member in enumerate(members):
                read, peak, model = json.loads(member.communicate()[0].splitlines()[-1])
                print(
                    f"{count} processes, {i}: {read:4.0f} MB of examples read, peak {peak:4.0f} MB, {model}"
                )


def member(folder: str, count: int, index: int) -> None:
    """MB that the rounds' windows took, the process's peak in MB and a number of the model's, as JSON."""
    import jax

    if count > 1:
        jax.distributed.initialize(ADDRESS, count, index, cluster_detection_method="deactivate")
    from fedsolve.engine import streaming as stream
    from fedsolve.tasks import CrossEntropy, Softmax

    read = []

    class Counting(stream.Packer):
        def pack(self, clients: np.ndarray) -> stream.PackedClients:
            read.append(int(self.population.data.counts[clients].sum()) * 240)
            return super().pack(clients)

    stream.Packer = Counting
    model = Softmax(59, 10)
    work = fs.Task(
        "shares", model.init, CrossEntropy(model), fs.data.open(f"{folder}/data"), eval_examples=10_000
    )
    found = fs.run(
        fs.FedAvg(0.1), work, rounds=ROUNDS, residency="stream", devices=2, clients_per_round=1000,
        batch_size=10, local_steps=1,
    )  # fmt: skip
    status = Path(
        "/proc/self/status"
    ).read_text()  # `getrusage` would tell the parent's peak where that was higher
    peak = int(status.split("VmHWM:")[1].split()[0]) / 1024
    digest = f"loss {found.history.final('train_loss'):.9f}"
    print(json.dumps([sum(read) / 1e6, peak, digest]))


if __name__ == "__main__":
    if sys.argv[1:]:
        member(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
    else:
        main()
