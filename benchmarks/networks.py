"""Networks, N1 to N3: the engine beside plain JAX and plain PyTorch, in one interleaved run.

    python benchmarks/bench.py n1 n2 n3            one device of all cores
    python benchmarks/bench.py n1-2 n2-2 n3-2      each core a device

All in milliseconds per 1,000 examples, since clients of N1 are uneven in the engine and in PyTorch and even by hand.
Two clocks: of the wall, and of the processor (all threads), which a busy machine disturbs less.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import fedsolve as fs
import networks_jax as jax_by_hand
from fedsolve.tasks import CNN, LSTM, CrossEntropy, Examples, NextToken, ResNet18
from stored import table

WRITERS = [
    157,
    155,
    119,
    161,
    152,
    163,
    150,
    138,
    125,
    62,
]  # images of ten writers of the FEMNIST sample, drawn at random (seed 0)
REPEATS = 7


def pictures(sizes: list[int], shape: tuple[int, ...], classes: int) -> fs.FederatedData:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (sum(sizes), *shape)).astype(np.uint8)
    return fs.FederatedData(Examples(x, rng.integers(0, classes, len(x)).astype(np.int32)), np.array(sizes))


def n1_task(sizes: list[int]) -> fs.Task:
    model = CNN(dropout=(0.25, 0.5))
    return fs.Task("n1", model.init, CrossEntropy(model), pictures(sizes, (28, 28, 1), 62))


def n2_task(n: int, hidden: int = 256) -> fs.Task:
    model, clients = LSTM(90, hidden=hidden), 4 * jax_by_hand.COHORT
    text = np.random.default_rng(0).integers(1, 90, (clients * n, 81)).astype(np.int32)
    data = fs.FederatedData(Examples(text[:, :-1], text[:, 1:]), np.full(clients, n))
    return fs.Task("n2", model.init, NextToken(model), data)


def n3_task(n: int, width: int = 16) -> fs.Task:
    model = ResNet18(100, width, groups=2)
    data = pictures([n] * 2 * jax_by_hand.COHORT, (32, 32, 3), 100)
    return fs.Task("n3", model.init, CrossEntropy(model), data)


def compare(
    title: str, programs: dict[str, tuple[Callable[[], None], int]], base: str, bounds: dict[str, str]
) -> None:
    """Interleave programs, each with its examples a round, and print both clocks."""
    wall: dict[str, list[float]] = {name: [] for name in programs}
    processor: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(REPEATS):
        for name, (run, examples) in programs.items():
            begun = time.perf_counter(), time.process_time()
            run()
            wall[name].append(1e6 * (time.perf_counter() - begun[0]) / examples)
            processor[name].append(1e6 * (time.process_time() - begun[1]) / examples)

    def ratio(times: dict[str, list[float]], name: str) -> str:
        return f"{statistics.median(a / b for a, b in zip(times[name], times[base], strict=True)):.2f}"

    rows = [
        (
            name, f"{statistics.median(wall[name]):,.1f}", f"{min(wall[name]):,.1f}", ratio(wall, name),
            f"{min(processor[name]):,.1f}", ratio(processor, name), bounds.get(name, ""),
        )
        for name in programs
    ]  # fmt: skip
    columns = ("program", "ms (median)", "minimum", f"ratio to {base}", "processor (min)", "ratio", "bound")
    table(title, columns, rows)


def fedavg(
    library: Callable[..., Any], task: fs.Task, examples: int, **local: Any
) -> dict[str, tuple[Callable[[], None], int]]:
    """FedAvg, ten clients a round, on one device, and on all where there are more."""
    found = jax.device_count()
    names = {1: "FedAvg"} | ({found: f"FedAvg, {found} devices"} if found > 1 else {})
    return {
        name: (library(fs.FedAvg(0.1), task, 10, 1, devices=devices, **local), examples)
        for devices, name in names.items()
    }


def torch_row(make: str, argument: Any, examples: int) -> dict[str, tuple[Callable[[], None], int]]:
    try:
        import networks_torch
    except ImportError:
        return {}
    return {"PyTorch loop": (getattr(networks_torch, make)(argument), examples)}


def n1(library: Callable[..., Any], by_hand: Callable[..., Any]) -> None:
    even = 20 * round(sum(WRITERS) / len(WRITERS) / 20)
    programs = {
        "by hand, even": (by_hand(lambda: jax_by_hand.make_n1(even), 1), 10 * even),
        **fedavg(library, n1_task(WRITERS), sum(WRITERS), batch_size=20, epochs=1),
        "FedAvg, even": (
            library(fs.FedAvg(0.1), n1_task([even] * 10), 10, 1, batch_size=20, epochs=1),
            10 * even,
        ),
        **torch_row("n1", WRITERS, sum(WRITERS)),
    }
    title = "N1  CNN with dropout, ten writers' uneven numbers of 28 x 28 images, batches of 20: per 1,000 examples"
    compare(title, programs, "by hand, even", {"FedAvg": "<= 1.2", "PyTorch loop": "> FedAvg"})


def n2(library: Callable[..., Any], by_hand: Callable[..., Any], n: int = 20) -> None:
    local = {"batch_size": 10, "epochs": 1}
    programs = {
        f"by hand, {over}": (by_hand(lambda over=over: jax_by_hand.make_n2(n, over), 1), 10 * n)
        for over in ("scan", "vmap")
    }
    programs |= fedavg(library, n2_task(n), 10 * n, **local)
    programs["FedAvg, ten side by side"] = (
        library(fs.FedAvg(0.1), n2_task(n), 10, 1, chunk=10, **local),
        10 * n,
    )
    programs |= torch_row("n2", n, 10 * n)
    title = "N2  LSTM, 2 x 256, sequences of 80, 10 of 40 clients a round, batches of 10: per 1,000 sequences"
    compare(title, programs, "by hand, scan", {"FedAvg": "<= 1.15", "PyTorch loop": "> FedAvg"})


def n3(library: Callable[..., Any], by_hand: Callable[..., Any], n: int = 20) -> None:
    local = {"batch_size": 20, "epochs": 1}
    programs = {
        "by hand": (by_hand(lambda: jax_by_hand.make_n3(n), 1), 10 * n),
        **fedavg(library, n3_task(n), 10 * n, **local),
        **torch_row("n3", n, 10 * n),
    }
    title = (
        "N3  ResNet-18 with group norm, width 16, 10 of 20 clients a round, batches of 20: per 1,000 examples"
    )
    compare(title, programs, "by hand", {"FedAvg": "<= 1.15", "PyTorch loop": "> FedAvg"})
