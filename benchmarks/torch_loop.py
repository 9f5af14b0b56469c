"""The CNN work (W2) as a plain PyTorch loop: 10 of 100 clients, 100 examples each, batch 20, one epoch.

    python benchmarks/torch_loop.py

Prints seconds a round on two threads, for the default and the channels-last layout.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import nn

CLIENTS, EXAMPLES, COHORT, BATCH, RATE = 100, 100, 10, 20, 0.1


def make_model() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(9216, 128),
        nn.ReLU(),
        nn.Linear(128, 62),
    )


def federated_round(
    model: nn.Module, server: list[torch.Tensor], x: torch.Tensor, y: torch.Tensor, rng: np.random.Generator
) -> None:
    """One round of federated averaging; `server` is updated in place, the model is scratch space."""
    params = list(model.parameters())
    total = [torch.zeros_like(p) for p in server]
    for client in rng.choice(CLIENTS, COHORT, replace=False):
        with torch.no_grad():
            torch._foreach_copy_(params, server)
        order = torch.from_numpy(rng.permutation(EXAMPLES))
        for rows in order.split(BATCH):
            loss = nn.functional.cross_entropy(model(x[client, rows]), y[client, rows])
            gradients = torch.autograd.grad(loss, params)
            with torch.no_grad():
                torch._foreach_add_(params, gradients, alpha=-RATE)
        with torch.no_grad():
            torch._foreach_add_(total, params)
    with torch.no_grad():
        torch._foreach_div_(total, COHORT)
        torch._foreach_copy_(server, total)


def program(channels_last: bool = True) -> Callable[[], None]:
    """A function that does one round, warmed up."""
    torch.set_num_threads(2)
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.standard_normal((CLIENTS, EXAMPLES, 1, 28, 28), np.float32))
    y = torch.from_numpy(rng.integers(0, 62, (CLIENTS, EXAMPLES)))
    torch.manual_seed(0)
    model = make_model()
    if channels_last:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    server = [p.detach().clone() for p in model.parameters()]

    def one_round() -> None:
        federated_round(model, server, x, y, rng)

    one_round()
    return one_round


def measure(channels_last: bool, repeats: int = 5) -> tuple[float, float]:
    """Seconds a round: (minimum, median)."""
    one_round, times = program(channels_last), []
    for _ in range(repeats):
        start = time.perf_counter()
        one_round()
        times.append(time.perf_counter() - start)
    return min(times), statistics.median(times)


if __name__ == "__main__":
    for channels_last in (False, True):
        best, middle = measure(channels_last)
        print(
            f"channels_last={channels_last!s:5}  min {best:.3f} s  median {middle:.3f} s  a round", flush=True
        )
