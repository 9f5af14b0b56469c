"""The picture of docs/choosing.md: four methods by client rate on the digits task, all else untuned, five seeds.

    python experiments/digits/choosing.py

Line: mean over seeds; band: their range.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

import fedsolve as fs
from fedsolve.studies.pictures import Line, Panel, panels, save

METHODS = {
    "FedAvg": fs.FedAvg,
    "FedAdagrad": lambda client_lr: fs.FedAdagrad(client_lr, server_lr=0.1),
    "SCAFFOLD": fs.SCAFFOLD,
    "FedDuAdam": fs.FedDuAdam,
}
RATES = (0.01, 0.03, 0.1, 0.3, 1.0)
SEEDS, ROUNDS, COHORT = 5, 100, 20


def line(name: str) -> Line:
    """The test accuracy in percent after the last round, by client rate and seed."""
    grid = {"client_lr": RATES}
    options = {"rounds": ROUNDS, "clients_per_round": COHORT, "seeds": SEEDS, "progress": False}
    found = fs.sweep(METHODS[name], fs.tasks.digits(), grid, **options)
    accuracy = 100 * np.asarray(found.final("test_accuracy")).reshape(len(RATES), SEEDS)
    print(name, dict(zip(RATES, accuracy.mean(axis=1).round(1), strict=True)))
    return Line(name, np.array(RATES), accuracy.T)


def main() -> None:
    """Run and draw."""
    title = (
        f"Handwritten digits, 100 clients, {COHORT} a round, {ROUNDS} rounds: mean and range of {SEEDS} seeds"
    )
    shown = Panel(
        "", [line(n) for n in METHODS], "Test accuracy (%)", "Client learning rate", False, True, True
    )
    figure = panels([[shown]], title, 7.0, 3.0)
    save(figure, Path(__file__).parents[2] / "docs" / "choosing.png")


if __name__ == "__main__":
    main()
