"""What a round costs as the population grows, and as one client of it does.

    python benchmarks/scale.py cohorts | long | states | clock

Softmax regression of 20 features and 10 classes, 100 clients a round, 5 examples a client in batches of 5, unless said.
Wall time and processor time of all threads: the least of several interleaved repetitions.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import fedsolve as fs
from fedsolve.core.fleets import asynchronous
from fedsolve.core.types import replace
from fedsolve.engine.options import RunOptions
from fedsolve.engine.prepare import PreparedRun, prepare
from fedsolve.tasks import CrossEntropy, Examples, Softmax
from measure import interleave, library

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
        ("weighted", lambda n: fs.sampling.Weighted(1.0 + np.arange(n) % 100, COHORT)),
        ("those there, half of all", lambda n: fs.sampling.Trace(np.arange(n)[None] % 2 < 1, COHORT)),
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


def states(clients: int = 500_000) -> None:
    """The peak of anonymous memory of a run of SCAFFOLD and of its resumption, in copies of all clients' states."""
    model = Softmax(10, 10)
    copies = clients * 110 * 4  # bytes

    def run(clients: int, **options: Any) -> None:
        rng = np.random.default_rng(0)
        x, y = rng.random((clients, 10), np.float32), rng.integers(0, 10, clients, np.int32)
        data = fs.FederatedData(Examples(x, y), np.ones(clients, int))
        work = fs.Task("states", model.init, CrossEntropy(model), data, eval_examples=1000)
        before, peak, done = anonymous(), [0], threading.Event()

        def watch() -> None:
            while not done.wait(0.003):
                peak[0] = max(peak[0], anonymous())

        watcher = threading.Thread(target=watch)
        watcher.start()
        fs.run(fs.SCAFFOLD(0.1), work, clients_per_round=100, batch_size=1, **options)
        done.set()
        watcher.join()
        print(f"  {clients:,} clients, {options['rounds']} rounds: {(peak[0] - before) / copies:.2f} copies")

    run(200, rounds=1)  # what the first run of a process takes is no run's own
    with tempfile.TemporaryDirectory() as folder:
        run(clients, rounds=20, out=f"{folder}/run")
        run(clients, rounds=40, out=f"{folder}/run", resume=True)


def anonymous() -> int:
    """Bytes of memory of this process that no file backs."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


def clock(clients: int = 10**4, at_work: int = 10**3, messages: int = 10**4) -> None:
    """FedBuff with so many clients at work and messages in all, against as many synchronous client updates."""
    work = task(np.full(clients, EXAMPLES))
    fleet = fs.systems.profile("half-normal", clients)
    seconds = fleet.task_seconds(1, 1000, 1000)
    print(
        f"{clients:,} clients, {at_work:,} at work, {messages:,} messages; milliseconds of processor time in all"
    )
    for size in (10, 100):
        rounds = messages // size

        def ready(method: fs.Algorithm, rounds: int = rounds, **options: Any) -> Callable[[], None]:
            given = RunOptions(rounds=rounds, eval_every=rounds, batch_size=EXAMPLES, **options)
            return again(prepare(method, work, given), rounds)

        programs = {
            f"synchronous, {size} a round": ready(
                fs.FedAvg(0.1, weighting="uniform"), clients_per_round=size
            ),
            f"FedBuff, buffers of {size}": ready(
                fs.FedBuff(0.1, buffer=size), clients_per_round=at_work, systems=fleet
            ),
            "its order of events, on the host": partial(
                asynchronous, fleet, seconds, rounds, 0, buffer=size, concurrency=at_work
            ),
        }
        found = {name: min(times) for name, times in interleave(programs, 1, 7, time.process_time).items()}
        for name, least in found.items():
            print(f"  {name:34s} {least:8.1f}")
        base, late, host = found.values()
        print(f"  ratio {late / base:.2f}, with the order of events {(late + host) / base:.2f}")


def again(setup: PreparedRun, rounds: int) -> Callable[[], None]:
    """A function that runs all rounds from the first one on, compiled already."""
    state = [setup.state]

    def run() -> None:
        state[0], _ = setup.advance(replace(state[0], round=0 * state[0].round), rounds)

    run()
    return run


WORKS = {"cohorts": cohorts, "long": long, "states": states, "clock": clock}

if __name__ == "__main__":
    for name in sys.argv[1:] or WORKS:
        WORKS[name]()
