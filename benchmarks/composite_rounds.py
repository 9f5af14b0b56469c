"""The table "Cost of a round" of docs/composite.md: processor time and bytes by method, under a nuclear norm.

python benchmarks/composite_rounds.py    # about three minutes

Milliseconds of processor time a round: the difference between long and short runs, the median of three pairs.
"""

from __future__ import annotations

import time
from statistics import median

import numpy as np

import fedsolve as fs
from fedsolve.geometry import NuclearNorm

SIDE, CLIENTS, EXAMPLES, STEPS = 64, 10, 20, 10
SHORT, LONG, REPEATS = 2, 42, 3
PSI = NuclearNorm(0.01)
METHODS = {
    "FedMiDOSP": fs.FedMiDOSP(PSI, 1e-3),
    "SCAFFOLD+FedMiDOSP": fs.ControlVariates(fs.FedMiDOSP(PSI, 1e-3)),
    "FedMiD": fs.FedMiD(PSI, 1e-3),
    "FedDualAvg": fs.FedDualAvg(PSI, 1e-3),
    "ProxTracking": fs.ProxTracking(PSI, 1e-3),
    "FastFedDA": fs.FastFedDA(PSI, gamma=1000.0),
    "CFedDA": fs.CFedDA(PSI, gamma=1000.0),
}


def squares(w, batch):
    """Mean of (<W, X> - y)^2."""
    x, y = batch
    return ((x.reshape(len(x), -1) @ w.ravel() - y) ** 2).mean()


def task() -> fs.Task:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((CLIENTS, EXAMPLES, SIDE, SIDE)).astype(np.float32)
    pairs = [(own, own[:, 0, 0]) for own in x]
    zero = np.zeros((SIDE, SIDE), np.float32)
    return fs.Task.from_arrays(squares, zero, pairs, local_steps=STEPS, batch_size=None)


def milliseconds(method: fs.Algorithm, on: fs.Task) -> float:
    def seconds(rounds: int) -> float:
        begun = time.process_time()
        fs.run(method, on, rounds=rounds, eval_every=rounds)
        return time.process_time() - begun

    for rounds in (SHORT, LONG):  # compiled before
        seconds(rounds)
    pairs = [seconds(LONG) - seconds(SHORT) for _ in range(REPEATS)]
    return 1000 * median(pairs) / (LONG - SHORT)


def main() -> None:
    on = task()
    print("| method | ms | up | down |\n|---|---:|---:|---:|")
    for name, method in METHODS.items():
        log = fs.run(method, on, rounds=2, eval_every=2).rounds
        up, down = (log[way][-1] // CLIENTS for way in ("bytes_up", "bytes_down"))
        print(f"| `{name}` | {milliseconds(method, on):.1f} | {up:,} | {down:,} |", flush=True)


if __name__ == "__main__":
    main()
