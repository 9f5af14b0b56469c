"""What a round costs as the population grows, and as one client of it does.

    python benchmarks/scale.py cohorts | long

Softmax regression of 20 features and 10 classes, 100 clients a round, 5 examples a client in batches of 5, unless said.
Wall time and processor time of all threads: the least of several interleaved repetitions.
"""

from __future__ import annotations

import sys
import time

import numpy as np

import fedsolve as fs
from bench import interleave, library
from fedsolve.tasks import CrossEntropy, Examples, Softmax

COHORT, EXAMPLES, MODEL = 100, 5, Softmax(20, 10)
POPULATIONS = (10**2, 10**3, 10**4, 10**5, 10**6)


def task(counts: np.ndarray) -> fs.Task:
    rng, total = np.random.default_rng(0), int(counts.sum())
    x, y = rng.random((total, 20), np.float32), rng.integers(0, 10, total, np.int32)
    return fs.Task("scale", MODEL.init, CrossEntropy(MODEL), fs.FederatedData(Examples(x, y), counts))


def show(title: str, programs: dict, rounds: int, repeats: int = 5) -> None:
    """The least milliseconds a round of each program, by the wall's clock and the processor's."""
    print(title)
    found = {}
    for clock in (time.perf_counter, time.process_time):
        for name, times in interleave(programs, rounds, repeats, clock).items():
            found.setdefault(name, []).append(min(times))
    for name, (wall, processor) in found.items():
        print(f"  {name:40s} {wall:9.3f} ms a round, {processor:9.3f} of processor time")


def cohorts() -> None:
    """A cohort of 100 of ever more clients."""
    tasks = {n: task(np.full(n, EXAMPLES)) for n in POPULATIONS}
    for name, sampling in (
        ("uniform", lambda n: fs.sampling.Uniform(COHORT)),
        ("Bernoulli", lambda n: fs.sampling.Bernoulli(COHORT / n)),
    ):
        programs = {
            f"{n:,}": library(fs.FedAvg(0.1), work, None, 5, batch_size=EXAMPLES, sampling=sampling(n))
            for n, work in tasks.items()
        }
        show(f"{name}, {COHORT} a round on average, by clients", programs, 5)


def long() -> None:
    """10,000 clients, one of them with many times the others' examples, and clients of log-normal sizes."""
    even = np.full(10**4, EXAMPLES)
    sizes = {"even": even}
    for times in (100, 1_000, 10_000):
        sizes[f"one of {times:,} times as many"] = np.concatenate([even[:-1], [times * EXAMPLES]])
    drawn = np.random.default_rng(0).lognormal(0, 1, 10**4)
    sizes["log-normal"] = np.maximum(drawn / drawn.mean() * EXAMPLES, 1).astype(int)
    for title, local in (
        ("one step of 5", {"batch_size": EXAMPLES, "local_steps": 1}),
        ("one epoch", {"batch_size": EXAMPLES}),
    ):
        programs = {
            name: library(fs.FedAvg(0.1), task(counts), COHORT, 20, **local) for name, counts in sizes.items()
        }
        show(f"10,000 clients, {COHORT} a round, {title}", programs, 20)


WORKS = {"cohorts": cohorts, "long": long}

if __name__ == "__main__":
    for name in sys.argv[1:] or WORKS:
        WORKS[name]()
