"""What accuracy each network task reaches in how much processor time: few rounds, rates from papers, nothing tuned.

    FEDSOLVE_DATA=~/data python benchmarks/accuracies.py [TASK ...]

Each run is a row of accuracies.csv beside this file; rows that are there are not run again. All tasks have their first
seed before any has its second, so that what is cut short has as many tasks as possible.
"""

from __future__ import annotations

import csv
import sys
import time
from pathlib import Path
from typing import Any

import fedsolve as fs
from fedsolve.tasks.catalogue import build

FILE = Path(__file__).with_suffix(".csv")
MEASURES = ("loss", "accuracy", "top5_accuracy", "bits_per_character", "bits_per_token")
KEYS = ("task", "options", "method", "clients_per_round", "rounds", "seed")
COLUMNS = (*KEYS, *(f"test_{m}" for m in MEASURES), "unseen_loss", "unseen_accuracy", "processor_minutes")

# The best rates of Reddi et al. 2021, as their code's documentation has them, where they have the task. FedAvg's 0.1 is
# the best of their CNN and of their ResNet, whose pictures those of the other tasks are like. A ResNet-18 a quarter as
# wide and a CNN stand for the whole one, which has 16 times the former's arithmetic; 0.1 is too much for that CNN.
WORKS = {
    "femnist": ({}, "FedAvg", {"client_lr": 0.1}, 100),
    "femnist-autoencoder": ({}, "FedAdam", {"client_lr": 10.0, "server_lr": 10**-1.5, "tau": 1e-3}, 100),
    "fashion-mnist": ({}, "FedAvg", {"client_lr": 0.1}, 30),
    "cifar10": ({"model": "cnn"}, "FedAvg", {"client_lr": 0.03}, 20),
    "cifar100": (
        {"model": "resnet18-16"},
        "FedAdam",
        {"client_lr": 10**-1.5, "server_lr": 1.0, "tau": 0.1},
        50,
    ),
    "shakespeare": ({}, "FedAvg", {"client_lr": 1.0}, 20),
    "next-word": ({}, "FedAdam", {"client_lr": 10**-0.5, "server_lr": 0.01, "tau": 1e-5}, 60),
}
COHORT = 10


def words(values: dict[str, Any]) -> str:
    return " ".join(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in values.items())


def kept() -> list[dict[str, str]]:
    if not FILE.exists():
        return []
    with FILE.open(newline="") as file:
        return list(csv.DictReader(file))


def main(names: list[str]) -> None:
    for seed in range(3):
        for name in names or WORKS:
            options, method, settings, rounds = WORKS[name]
            row = {
                "task": name,
                "options": words(options),
                "method": f"{method} {words(settings)}",
                "clients_per_round": str(COHORT),
                "rounds": str(rounds),
                "seed": str(seed),
            }
            if any(all(old[k] == row[k] for k in KEYS) for old in kept()):
                continue
            task = build(name, **options)
            began = time.process_time()
            try:
                result = fs.run(
                    getattr(fs, method)(**settings),
                    task,
                    rounds=rounds,
                    clients_per_round=COHORT,
                    seed=seed,
                    eval_every=rounds,
                )
                row |= {k: f"{result.metrics[k][-1]:.5g}" for k in COLUMNS if k in result.metrics}
            except fs.errors.Diverged:
                row["test_loss"] = "diverged"
            row["processor_minutes"] = f"{(time.process_time() - began) / 60:.2f}"
            write([*kept(), row])
            print(row, flush=True)


def write(rows: list[dict[str, str]]) -> None:
    with FILE.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main(sys.argv[1:])
