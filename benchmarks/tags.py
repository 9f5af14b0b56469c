"""Tag regression at the sizes of Stack Overflow, streamed: 342,477 clients, 10,000 words, 500 tags, sparse examples.

    python benchmarks/tags.py [clients]

The posts are synthetic: 32 words each by Zipf's law, up to 4 tags that are a function of the words, slices of a table
of 131,072 posts; a client has 1 to 1,000 of them by a log-normal law of median 10 (Stack Overflow's mean is 397). 50
clients a round, one epoch in batches of 100. The population lies in a temporary folder; the run has its own process.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import fedsolve as fs
from fedsolve.tasks import BinaryCrossEntropy, Examples, RecallAt, SparseLinear

CLIENTS, WORDS, TAGS, LENGTH = 342_477, 10_000, 500, 32
ROUNDS, EVERY = 60, 20


def main(clients: int = CLIENTS) -> None:
    """Seconds of writing and of a round, and the peak of memory."""
    with tempfile.TemporaryDirectory() as folder:
        begun, processor = time.perf_counter(), time.process_time()
        data = fs.data.write(many(clients), f"{folder}/data")
        size = sum(p.stat().st_size for p in Path(f"{folder}/data").iterdir())
        print(
            f"{clients:,} clients, {data.num_examples:,} posts, {size / 1e9:.2f} GB, written in "
            f"{time.perf_counter() - begun:.0f} s, {time.process_time() - processor:.0f} of processor time",
            flush=True,
        )
        found = subprocess.check_output([sys.executable, __file__, "one", f"{folder}/data"])
        wall, processor, peak, losses, recalls = json.loads(found.splitlines()[-1])
        print(
            f"{wall:.2f} s a round, {processor:.2f} of processor time, peak {peak:.0f} MB; loss {losses[0]:.1f} to "
            f"{losses[-1]:.1f}, recall at 5 {recalls[0]:.2f} to {recalls[-1]:.2f}"
        )


def many(clients: int) -> Iterator[Examples]:
    """Clients whose posts lie anywhere in the table."""
    rng = np.random.default_rng(0)
    chance = 1 / np.arange(1, WORDS + 1)
    words = rng.choice(WORDS, (2**17, LENGTH), p=chance / chance.sum()).astype(np.uint16)
    shares = np.full(words.shape, 1 / LENGTH, np.float32)
    tags = np.sort(words[:, :4] % TAGS, axis=1)
    once = np.diff(tags, axis=1, prepend=TAGS) != 0
    sizes = np.clip(rng.lognormal(np.log(10), 1.2, clients).astype(int), 1, 1000)
    for start, size in zip(rng.integers(0, 2**17 - 1000, clients).tolist(), sizes.tolist(), strict=True):
        own = slice(start, start + size)
        yield Examples(fs.SparseRows(words[own], shares[own]), fs.SparseRows(tags[own], once[own]))


def one(folder: str) -> None:
    """Seconds a round by both clocks, the process's peak in MB, loss and recall at the evaluations, as JSON."""
    model = SparseLinear(WORDS, TAGS)
    metrics = {"recall_at_5": RecallAt(model, 5)}
    loss, clocks = BinaryCrossEntropy(model), []
    task = fs.Task(
        "tags", model.init, loss, fs.data.open(folder), metrics=metrics, batch_size=100, eval_examples=2000
    )
    options = {"rounds": ROUNDS, "eval_every": EVERY, "clients_per_round": 50, "residency": "stream"}
    result = fs.run(
        fs.FedAdagrad(10.0, server_lr=10.0, tau=1e-5), task, **options,
        callbacks=[lambda at: clocks.append((time.perf_counter(), time.process_time()))],
    )  # fmt: skip
    spent = np.diff(np.array(clocks[1:]), axis=0).min(axis=0) / EVERY
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    curves = [result.metrics[name].tolist() for name in ("train_loss", "train_recall_at_5")]
    print(json.dumps([*spent, peak, *curves]))


if __name__ == "__main__":
    if sys.argv[1:2] == ["one"]:
        one(sys.argv[2])
    else:
        main(*map(int, sys.argv[1:]))
