"""A streamed run with client states, killed (SIGKILL) at random and resumed: it ends with the bits of one that was not.

    python benchmarks/kills.py [KILLS]

2,000 clients of 10 examples, 100 a round, SCAFFOLD, a checkpoint after every call; 50 kills by default, each after a
time drawn up to that of a whole run, so that they fall into reading, training, writing and saving alike.
"""

from __future__ import annotations

import hashlib
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np
from safetensors.numpy import load_file

import fedsolve as fs
from fedsolve.engine import loop, streaming
from fedsolve.folders.run_folder import RunFolder
from fedsolve.tasks import CrossEntropy, Examples, Softmax

MODEL, CLIENTS, ROUNDS = Softmax(20, 10), 2000, 120
STATE_BYTES = 4 * 210


def clients() -> Iterator[Examples]:
    rng = np.random.default_rng(0)
    for _ in range(CLIENTS):
        yield Examples(rng.random((10, 20), np.float32), rng.integers(0, 10, 10, np.int32))


def run(folder: Path) -> None:
    """Go on with the run in a folder; its digest in the end."""
    streaming.WINDOW_BYTES = 2**20
    loop._CALL_SECONDS = 0.02
    print("ready", flush=True)
    RunFolder.due = property(lambda self: True)  # pyright: ignore[reportAttributeAccessIssue]
    work = fs.Task(
        "kills", MODEL.init, CrossEntropy(MODEL), fs.data.open(folder / "data"), eval_examples=1000
    )
    resume = (folder / "run" / "checkpoint.safetensors").exists()
    result = fs.run(
        fs.SCAFFOLD(0.1), work, rounds=ROUNDS, clients_per_round=100, batch_size=5, eval_every=40,
        residency="stream", out=folder / "run", resume=resume,
    )  # fmt: skip
    leaves = [
        *jax.tree.leaves(result.params),
        *(result.metrics[k] for k in ("train_loss", "client_loss_worst")),
    ]
    digest = hashlib.sha256(b"".join(np.asarray(x).tobytes() for x in leaves))
    known = load_file(folder / "run" / "checkpoint.safetensors")
    states = np.fromfile(folder / "run" / "clients.states", np.uint8).reshape(-1, STATE_BYTES)
    rows = known[".clients['rows']"]  # -1 of a client that never came
    digest.update(
        rows.argsort(kind="stable")[: (rows < 0).sum()].tobytes() + states[rows[rows >= 0]].tobytes()
    )
    (folder / "digest").write_text(digest.hexdigest())


def whole(folder: Path, span: float | None, draw: random.Random) -> tuple[str, float, int]:
    """The digest of a run, the seconds of its last process from its imports on, and how many processes were killed.

    Each process is killed after a part of `span` seconds, unless it is through by then.
    """
    fs.data.write(clients(), folder / "data")
    kills, seconds = 0, 0.0
    while not (folder / "digest").exists():
        command = [sys.executable, __file__, "--run", str(folder)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        process.stdout.readline()  # it is ready
        begun = time.monotonic()
        try:
            if process.wait(None if span is None else draw.uniform(0, 1) * span):
                raise SystemExit("a process ended by itself, and not well")
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            kills += 1
        seconds = time.monotonic() - begun
    return (folder / "digest").read_text(), seconds, kills


def main(wanted: int) -> int:
    """Runs until so many processes were killed; 1 if one of them ended with other bits."""
    draw, killed = random.Random(0), 0
    with tempfile.TemporaryDirectory() as folder:
        digest, span, _ = whole(Path(folder), None, draw)
    print(f"undisturbed: {span:.1f} s, {digest[:16]}", flush=True)
    while killed < wanted:
        with tempfile.TemporaryDirectory() as folder:
            found, _, kills = whole(Path(folder), span, draw)
        killed += kills
        print(f"{killed} kills, {found[:16]}: {'the same' if found == digest else 'ANOTHER'}", flush=True)
        if found != digest:
            return 1
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--run"]:
        run(Path(sys.argv[2]))
    else:
        sys.exit(main(int(sys.argv[1]) if sys.argv[1:] else 50))
