"""N4: the digits' MLP and a CNN as `nn.Module`, translated, beside the same model in JAX and a plain PyTorch loop.

    python benchmarks/bench.py n4

20 of 100 clients of 14 examples a round, batch 7, two steps. PyTorch has one thread: so small a network gains
nothing from two, and where other programs hold the second core, its threads wait for one another.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import fedsolve as fs
from networks import compare

CLIENTS, EXAMPLES, COHORT, BATCH, RATE = 100, 14, 20, 7, 0.1


def mlp(params: Any, x: Any) -> Any:
    hidden = jax.nn.relu(x @ params["0.weight"].T + params["0.bias"])
    return hidden @ params["2.weight"].T + params["2.bias"]


def cnn(params: Any, x: Any) -> Any:
    dims = ("NCHW", "OIHW", "NCHW")
    y = jax.lax.conv_general_dilated(x, params["0.weight"], (1, 1), "VALID", dimension_numbers=dims)
    y = jax.nn.relu(y + params["0.bias"][:, None, None])
    y = jax.lax.reduce_window(y, -np.inf, jax.lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
    return y.reshape(len(y), -1) @ params["4.weight"].T + params["4.bias"]


WORKS = {
    "mlp": (lambda: nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)), (64,), mlp, 500),
    "cnn": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(144, 10)
        ),
        (1, 8, 8),
        cnn,
        100,
    ),
}


def torch_loop(module: nn.Module, x: Any, y: Any, rounds: int) -> Callable[[], None]:
    """The same rounds in PyTorch, one client after another."""
    draw, params = np.random.default_rng(0), list(module.parameters())
    server = [p.detach().clone() for p in params]
    x, y = torch.from_numpy(x), torch.from_numpy(y)

    def one_round() -> None:
        total = [torch.zeros_like(p) for p in server]
        for client in draw.choice(CLIENTS, COHORT, replace=False):
            with torch.no_grad():
                torch._foreach_copy_(params, server)
            for rows in torch.from_numpy(draw.permutation(EXAMPLES)).split(BATCH):
                gradient = torch.autograd.grad(
                    F.cross_entropy(module(x[client, rows]), y[client, rows]), params
                )
                with torch.no_grad():
                    torch._foreach_add_(params, gradient, alpha=-RATE)
            with torch.no_grad():
                torch._foreach_add_(total, params)
        with torch.no_grad():
            torch._foreach_div_(total, COHORT)
            torch._foreach_copy_(server, total)

    def run() -> None:
        for _ in range(rounds):
            one_round()

    return run


def measure(library: Callable[..., Any], name: str) -> None:
    make, shape, twin, rounds = WORKS[name]
    draw = np.random.default_rng(0)
    x = draw.random((CLIENTS, EXAMPLES, *shape), np.float32)
    y = draw.integers(0, 10, (CLIENTS, EXAMPLES))
    torch.manual_seed(0)
    torch.set_num_threads(1)
    module = make()
    clients = list(zip(x, y, strict=True))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        work = fs.tasks.from_torch(module, nn.CrossEntropyLoss(), clients, batch_size=BATCH, translate=True)
    examples = [fs.Examples(a, b.astype(np.int32)) for a, b in clients]
    same = fs.Task.from_arrays(fs.tasks.CrossEntropy(twin), work.init(None), examples, batch_size=BATCH)
    method, few = fs.FedAvg(client_lr=RATE), rounds // 10  # of PyTorch's, which take ten times as long
    programs = {
        "the same in JAX": (library(method, same, COHORT, rounds), rounds),
        "translated": (library(method, work, COHORT, rounds), rounds),
        "PyTorch loop": (torch_loop(module, x, y, few), few),
    }
    programs = {what: (run, n * COHORT * EXAMPLES) for what, (run, n) in programs.items()}
    title = f"N4  digits' {name.upper()} as nn.Module, {COHORT} of {CLIENTS} clients: per 1,000 examples"
    bounds = {"translated": "<= 1.1"} | ({"PyTorch loop": ">= 10 x translated"} if name == "mlp" else {})
    compare(title, programs, "the same in JAX", bounds)


def n4(library: Callable[..., Any]) -> None:
    for name in WORKS:
        measure(library, name)
