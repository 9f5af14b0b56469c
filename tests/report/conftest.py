"""Made-up runs that look like real ones: accuracies rise, losses fall, methods are noisy, one diverges."""

from __future__ import annotations

import numpy as np
import pytest

from fedsolve.results.history import History

METHODS = (
    "FedAvg", "FedProx", "SCAFFOLD", "FedAdagrad", "FedAdam", "FedYogi",
    "FedExP", "FedDuA", "FedLiLU", "FedFW", "FedDR", "FedAvgM",
)  # fmt: skip


def make_history(
    label: str = "FedAvg",
    *,
    speed: float = 0.03,
    seed: int = 0,
    rounds: int = 200,
    accuracy: bool = True,
    **changes,
) -> History:
    rng = np.random.default_rng(seed)
    at = np.arange(0, rounds + 1, 5)
    noise = rng.normal(0, 0.012, len(at)) * (at > 0)
    reached = 1 - np.exp(-speed * at)
    loss = 2.3026 * np.exp(-speed * at) + 0.05 + 0.02 * np.abs(noise)
    columns = {
        "round": at,
        "seconds": at * 0.021 * (1 + speed),
        "train_loss": loss,
        "test_loss": loss * 1.1 + 0.02,
    }
    if accuracy:
        columns["test_accuracy"] = np.clip(0.1 + (0.86 - 0.4 * speed) * reached + noise, 0, 1)
    for name in ("train_loss", "test_loss", "test_accuracy"):
        if name in columns:
            columns[f"{name}_averaged"] = columns[name] + (0.004 if name == "test_accuracy" else -0.003)
    for name, factor in (("mean", 1.0), ("p10", 0.4), ("p90", 1.9), ("worst", 3.2)):
        columns[f"client_loss_{name}"] = loss * factor + 0.01 * factor
    steps = np.arange(1, rounds + 1)
    walk = np.convolve(rng.normal(0, 0.5, rounds), np.ones(12) / 12, "same")
    rate = np.exp(walk + 0.6 * np.sin(steps / 40 + 40 * speed)) * (1 + 10 * speed)
    per_round = {
        "round": steps,
        "server_lr": rate
        if label.startswith(("FedExP", "FedDuA", "FedLi"))
        else np.full(rounds, 1 + 10 * speed),
        "participants": np.full(rounds, 20),
        "dropped": np.zeros(rounds, int),
        "bytes_up": np.full(rounds, 20 * 318_040 * (2 if label == "SCAFFOLD" else 1)),
        "bytes_down": np.full(rounds, 20 * 318_040),
    }
    settings = {
        "algorithm": label,
        "sampling": "Uniform(size=20)",
        "seed": seed,
        "client_lr": 0.1,
        "server_lr": 1.0,
    }
    fields = {
        "task": "mnist-logistic", "settings": settings, "evaluations": columns, "rounds": per_round,
        "seconds": 4.3 + 10 * speed, "compile_seconds": 1.9,
    }  # fmt: skip
    return History(label, **(fields | changes))


def make_all() -> list[History]:
    runs = [make_history(m, speed=0.012 * 1.22**i, seed=0) for i, m in enumerate(METHODS)]
    broken = runs[4]
    for name in list(broken.evaluations):
        if name not in ("round", "seconds"):
            broken.evaluations[name] = np.where(
                broken.evaluations["round"] > 120, np.nan, broken.evaluations[name]
            )
    broken.rounds["dropped"][120:] = 20
    return runs


@pytest.fixture
def history() -> History:
    return make_history()


@pytest.fixture
def histories() -> list[History]:
    return make_all()
