"""The table "Loss of accuracy" of docs/privacy.md: seven methods on digits, without and with differential privacy.

python benchmarks/private_table.py    # about two minutes on 2 cores
"""

from __future__ import annotations

import numpy as np
from scipy.stats import t

import fedsolve as fs

ROUNDS, SEEDS = 50, 5
PLAN = {"cohort": 20, "population": 100, "delta": 1e-3, "sampling": "poisson"}
METHODS = {
    "FedAvg": fs.FedAvg(0.1, weighting="uniform"),
    "FedAvgM": fs.FedAvgM(0.1, weighting="uniform"),
    "FedAdam, server_lr 0.03": fs.FedAdam(0.1, server_lr=0.03, weighting="uniform"),
    "FedExP": fs.FedExP(0.1),
    "FedExPM": fs.FedExPM(0.1),
    "FedDuAdagrad": fs.FedDuAdagrad(0.1),
    "FedDuAdam": fs.FedDuAdam(0.1),
}


def accuracy(method: fs.Algorithm, task: fs.Task) -> str:
    """Mean over the seeds and half the 95 % interval, in percent."""
    last = []
    for seed in range(SEEDS):
        result = fs.run(
            method, task, rounds=ROUNDS, sampling=fs.sampling.Bernoulli(0.2), seed=seed, eval_every=ROUNDS
        )
        last.append(100 * result.metrics["test_accuracy"][-1])
    half = t.ppf(0.975, SEEDS - 1) * np.std(last, ddof=1) / SEEDS**0.5
    return f"{np.mean(last):.1f} ± {half:.1f} %"


def main() -> None:
    task = fs.tasks.digits()
    print("| | no privacy | $C=0.5$ | adaptive from 0.1 |\n|---|---|---|---|")
    for name, method in METHODS.items():
        fixed = fs.privacy.DifferentialPrivacy(method, 1.02, 0.5, **PLAN)
        adaptive = fs.privacy.DifferentialPrivacy(method, 1.02, 0.1, clipping="adaptive", **PLAN)
        print(
            f"| {name} |", " | ".join(accuracy(m, task) for m in (method, fixed, adaptive)), "|", flush=True
        )


if __name__ == "__main__":
    main()
