"""What the adapter adds to a round of a real federation: everything on the server but the network and the clients.

Three clients, one million parameters: orders encoded into Flower's records, replies decoded, checked and reduced,
the update, the checkpoint. The clients' side without local work (decode, encode, state file) is timed beside it.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

import fedsolve as fs
from fedsolve import wire
from fedsolve.deploy.codec import Expected, record_to_reply, to_record
from fedsolve.deploy.message import TrainReply
from fedsolve.deploy.server.checkpoint import DeploymentCheckpoint
from fedsolve.deploy.server.coordinator import Coordinator, Federation
from fedsolve.deploy.signature import signature_digest
from fedsolve.engine.record import Recorder

CLIENTS, PARAMETERS = 3, 1_000_000
METHODS = {"FedAvg": fs.FedAvg(0.1), "FedDuAdam": fs.FedDuAdam(0.1), "SCAFFOLD": fs.SCAFFOLD(0.1)}


def rounds(method: fs.Algorithm, folder: Path, count: int) -> dict[str, list[float]]:
    """Milliseconds of each part of a round, by round."""
    rng = np.random.default_rng(0)
    params = {"w": rng.standard_normal((1000, 990)).astype(np.float32), "b": np.zeros(10_000, np.float32)}
    spent: dict[str, list[float]] = {}
    with DeploymentCheckpoint.at(folder, {}, "bench", False) as checkpoint:
        coordinator = Coordinator(
            method, params, Federation(CLIENTS, fs.sampling.Uniform(CLIENTS), 0, checkpoint.experiment), norm_bound=1e9,
        )  # fmt: skip
        message = coordinator.method.zero_message
        digest, data = signature_digest(message), wire.encode(message)
        limit = coordinator.method.max_message_bytes
        recorder = Recorder()
        for number in range(count):
            replies = [
                to_record(TrainReply(checkpoint.experiment, number, i, digest, 1, data, {}))
                for i in range(CLIENTS)
            ]
            clock = _Clock(spent)
            cohort = coordinator.draw_cohort()
            down = [to_record(coordinator.train_request(i)) for i in cohort]
            clock("orders")
            accepted = {
                i: coordinator.validate_reply(i, record_to_reply(TrainReply, replies[i], Expected(limit)))
                for i in cohort
            }
            clock("replies")
            coordinator.finish_round(accepted, len(cohort))
            clock("update")
            checkpoint.save(coordinator, recorder)
            clock("checkpoint")
            del down
    return spent


class _Clock:
    def __init__(self, spent: dict[str, list[float]]) -> None:
        self._spent, self._last = spent, time.perf_counter()

    def __call__(self, part: str) -> None:
        now = time.perf_counter()
        self._spent.setdefault(part, []).append(1e3 * (now - self._last))
        self._last = now


def measure(table: Callable[[str, Sequence[str], Sequence[Sequence[str]]], None], count: int = 12) -> None:
    """Make a table of the median of every part, compilation of the first two rounds left out."""
    rows, parts = [], []
    for name, method in METHODS.items():
        with tempfile.TemporaryDirectory() as folder:
            spent = rounds(method, Path(folder) / "run", count)
        parts = [*spent]
        medians = [f"{np.median(times[2:]):.1f}" for times in spent.values()]
        whole = float(np.median(np.sum([times[2:] for times in spent.values()], axis=0)))
        rows.append((name, f"{whole:.1f}", *medians, "<= 50"))
    title = f"A1  the adapter's own milliseconds a round: {CLIENTS} clients x {PARAMETERS:,} parameters"
    table(title, ("method", "in all", *parts, "bound"), rows)


if __name__ == "__main__":
    from stored import table

    measure(table)
