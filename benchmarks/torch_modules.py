"""Modules of PyTorch, translated, beside the same model in JAX (N4) and beside a plain PyTorch loop.

    python benchmarks/bench.py n4 modules

N4: 20 of 100 clients of 14 examples a round, batch 7, two steps. `modules`: 20 clients of 40 examples, all in each
round, one epoch in batches of 10: 80 steps. PyTorch runs on one thread and on one a core; which of them is faster
depends on the network.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np
import torch
from torch import nn

import fedsolve as fs
from fedsolve.core.xla.compiler import cores
from measure import Setting, compare, library
from networks import PER_THOUSAND, RATE
from torch_works import Recurrent, program

CLIENTS, EXAMPLES, COHORT, BATCH = 100, 14, 20, 7


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
    "MLP": (lambda: nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)), (64,), mlp, 500),
    "CNN": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(144, 10)
        ),
        (1, 8, 8),
        cnn,
        100,
    ),
}


def translated(module: nn.Module, x: np.ndarray, y: np.ndarray, batch: int) -> fs.Task:
    clients = list(zip(x, y, strict=True))
    loss = nn.CrossEntropyLoss()
    if y.ndim > 2:  # of sequences: classes where PyTorch wants them

        def loss(outputs: Any, labels: Any) -> Any:
            return nn.functional.cross_entropy(outputs.transpose(1, 2), labels)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return fs.tasks.from_torch(module, loss, clients, batch_size=batch, translate=True)


def loops(make: Callable[..., Callable[[], None]], setting: Setting) -> dict[str, Callable[[], None]]:
    """The PyTorch loop on one thread and on one a core, or on a GPU."""
    if setting.torch != "cpu":
        return {"PyTorch loop": make(device=setting.torch)}
    found = {f"PyTorch loop, {n} threads": make(threads=n) for n in sorted({1, setting.pick(cores(), 1)})}
    return {name.replace("1 threads", "1 thread"): run for name, run in found.items()}


def n4(setting: Setting) -> None:
    for name, (make, shape, twin, usual) in WORKS.items():
        draw, rounds = np.random.default_rng(0), setting.pick(usual, 10)
        x = draw.random((CLIENTS, EXAMPLES, *shape), np.float32)
        y = draw.integers(0, 10, (CLIENTS, EXAMPLES))
        torch.manual_seed(0)
        module = make()
        work = translated(module, x, y, BATCH)
        examples = [fs.Examples(a, b.astype(np.int32)) for a, b in zip(x, y, strict=True)]
        same = fs.Task.from_arrays(fs.tasks.CrossEntropy(twin), work.init(None), examples, batch_size=BATCH)
        method, few = fs.FedAvg(client_lr=RATE), rounds // 10  # of PyTorch's, which take ten times as long
        programs = {
            "the same in JAX": library(method, same, COHORT, rounds),
            "translated": library(method, work, COHORT, rounds),
            **loops(partial(program, module, x, y, BATCH, cohort=COHORT, rounds=few), setting),
        }
        thousands = COHORT * EXAMPLES / 1e3
        units = {what: (few if "PyTorch" in what else rounds) * thousands for what in programs}
        about = f"digits' {name} as nn.Module, {COHORT} of {CLIENTS} clients"
        base = "the same in JAX"
        compare(f"N4 {name}", about, programs, units, setting.pick(7, 2), base=base, unit=PER_THOUSAND)


class Attending(nn.Module):
    """A causal transformer of two blocks of width 32 with two heads: logits at each of 20 places."""

    def __init__(self, vocabulary: int = 50, width: int = 32, places: int = 20) -> None:
        super().__init__()
        self.embedding, self.place = nn.Embedding(vocabulary, width), nn.Parameter(torch.zeros(places, width))
        layer = nn.TransformerEncoderLayer(width, 2, 4 * width, dropout=0.0, batch_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.output = nn.Linear(width, vocabulary)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(places))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits (n, places, vocabulary)."""
        h = self.embedding(x) + self.place
        return self.output(self.blocks(h, mask=self.mask, is_causal=True))


def normalised() -> nn.Module:
    """A CNN of 16 and 32 channels, each with BatchNorm, on images of 28 x 28."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(800, 10),
    )  # fmt: skip


def modules(setting: Setting, clients: int = 20, n: int = 40, batch: int = 10) -> None:
    """What a user's module of ordinary small size gains: a CNN with BatchNorm, an LSTM, a transformer."""
    clients, n = setting.pick((clients, n), (4, 10))
    draw = np.random.default_rng(0)
    x, y = draw.random((clients, n, 1, 28, 28), np.float32), draw.integers(0, 10, (clients, n))
    text = draw.integers(1, 50, (clients, n, 21))
    cases = {
        "CNN": ("CNN of 16 and 32 channels with BatchNorm, 28 x 28", normalised, x, y),
        "LSTM": ("LSTM, 2 x 64, 20 tokens", partial(Recurrent, 64, 50), text[..., :-1], text[..., 1:]),
        "transformer": ("transformer, 2 x 32, 20 tokens", Attending, text[..., :-1], text[..., 1:]),
    }
    for name, (about, make, inputs, labels) in cases.items():
        torch.manual_seed(0)
        module = make()
        work = translated(module, inputs, labels, batch)
        loop = partial(program, module, inputs, labels, batch, cohort=clients)
        programs = {"translated": library(fs.FedAvg(RATE), work, None, 1), **loops(loop, setting)}
        about = f"{about}, as nn.Module, {clients} clients x {n}, {n // batch} steps of {batch}"
        compare(f"module {name}", about, programs, 1, setting.pick(15, 2), base="translated")
