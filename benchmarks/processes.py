"""Two processes with a core each against one on one core: rounds of W2, the CNN of 1.2 M parameters of bench.py.

    python benchmarks/processes.py           # one run that they share
    python benchmarks/processes.py executor  # four runs on an executor of two processes, and what a unit costs there

Both teams are started and compiled before anything is timed, each process pinned to its core; then they take turns, and
who waits for its turn sleeps. The ratio is the median over turns: by the wall's clock, and by the processor time of
the busiest process of each, which other work on the machine does not disturb.

With `executor` they are runs of four seeds by `fs.run`, in this process and on workers that have been warmed up; the
cost of a unit is what each further seed of one round takes there beyond what it takes here.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import subprocess
import sys
import time
from typing import IO, Any

TURNS, ROUNDS, RUN_ROUNDS = 7, 2, 2


def member(core: int, address: str, count: int, index: int) -> None:
    """One process of a team: rounds for each line that it reads, then their wall and processor seconds."""
    os.sched_setaffinity(0, {core})
    import jax

    if count > 1:
        jax.distributed.initialize(address, count, index, cluster_detection_method="deactivate")
    import fedsolve as fs
    from fedsolve.tasks import CNN
    from measure import library, task

    work = task("w2", CNN(), 100, 100, (28, 28, 1), 62)
    run = library(fs.FedAvg(0.1), work, 10, ROUNDS, devices=count, batch_size=20, epochs=1)
    print("ready", flush=True)
    for _ in sys.stdin:
        wall, processor = time.perf_counter(), time.process_time()
        run()
        print("took", time.perf_counter() - wall, time.process_time() - processor, flush=True)


class Team:
    """Processes that share a run, one on each of the first cores."""

    def __init__(self, count: int, port: int) -> None:
        self.members = [
            subprocess.Popen(
                [sys.executable, __file__, str(i), f"127.0.0.1:{port}", str(count), str(i)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for i in range(count)
        ]
        self.answers()

    def answers(self) -> list[list[float]]:
        """What each says next; what Gloo says is passed over."""
        return [_answer(m.stdout) for m in self.members]

    def turn(self) -> tuple[float, float]:
        """Wall and processor milliseconds a round, of the slowest of the team."""
        for m in self.members:
            assert m.stdin is not None
            print(file=m.stdin, flush=True)
        wall, processor = (max(times) for times in zip(*self.answers(), strict=True))
        return 1e3 * wall / ROUNDS, 1e3 * processor / ROUNDS

    def end(self) -> None:
        """Let all end."""
        for m in self.members:
            assert m.stdin is not None
            m.stdin.close()
        for m in self.members:
            m.wait()


def _answer(stream: IO[str] | None) -> list[float]:
    assert stream is not None
    for line in stream:
        word, *numbers = line.split()
        if word in ("ready", "took"):
            return [float(x) for x in numbers]
    raise SystemExit("a process has ended")


def on_executor() -> None:
    """Four runs here and on two workers, in turns; then the cost of a unit."""
    from concurrent.futures import ProcessPoolExecutor

    import fedsolve as fs
    from fedsolve.tasks import CNN
    from measure import task

    work, small = task("w2", CNN(), 100, 100, (28, 28, 1), 62), fs.tasks.digits()
    context = multiprocessing.get_context("spawn")

    def seconds(problem: Any, seeds: int, rounds: int, executor: Any) -> float:
        begun = time.perf_counter()
        fs.run(
            fs.FedAvg(0.1),
            problem,
            rounds=rounds,
            clients_per_round=10,
            seeds=seeds,
            executor=executor,
            progress=False,
        )
        return time.perf_counter() - begun

    with ProcessPoolExecutor(2, context) as two, ProcessPoolExecutor(1, context) as one:
        first = [seconds(work, 4, RUN_ROUNDS, executor) for executor in (None, two)]
        print(f"with start and compilation: here {first[0]:.1f} s, on two workers {first[1]:.1f} s")
        pairs = [
            [seconds(work, 4, RUN_ROUNDS, executor) for executor in (None, two)] for _ in range(TURNS // 2)
        ]
        here, there = (statistics.median(times) for times in zip(*pairs, strict=True))
        ratio = statistics.median(a / b for a, b in pairs)
        print(f"four runs: here {here:.2f} s, on two workers {there:.2f} s: {ratio:.2f} times as fast")
        for executor in (None, one):
            seconds(small, 2, 1, executor)
        further = [
            [
                (seconds(small, 9, 1, executor) - seconds(small, 1, 1, executor)) / 8
                for executor in (None, one)
            ]
            for _ in range(TURNS)
        ]
        costs = [statistics.median(times) for times in zip(*further, strict=True)]
        print(f"a further unit: here {1e3 * costs[0]:.0f} ms, on a worker {1e3 * costs[1]:.0f} ms")


def main() -> None:
    one, two = Team(1, 0), Team(2, 7321)
    turns = [(one.turn(), two.turn()) for _ in range(TURNS)]
    for place, clock in enumerate(("wall", "processor")):
        pairs = [(a[place], b[place]) for a, b in turns]
        alone, shared = (statistics.median(times) for times in zip(*pairs, strict=True))
        ratio = statistics.median(a / b for a, b in pairs)
        print(f"{clock:10s} one {alone:7.0f} ms a round, two {shared:7.0f}: {ratio:.2f} times as fast")
    for team in (one, two):
        team.end()


if __name__ == "__main__":
    if sys.argv[1:] == ["executor"]:
        on_executor()
    elif sys.argv[1:]:
        member(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    else:
        main()
