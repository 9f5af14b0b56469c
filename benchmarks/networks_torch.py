"""Works N1 to N3 as plain PyTorch loops, as `torch_loop.py` has the CNN: FedAvg over 10 clients, one after another."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import torch
from torch import nn

RATE, COHORT = 0.1, 10


def program(
    model: nn.Module, x: torch.Tensor, y: torch.Tensor, sizes: list[int], batch: int
) -> Callable[[], None]:
    """A function that does one round on clients of such sizes, warmed up; x (clients, n, ...), y (clients, n, ...)."""
    torch.set_num_threads(2)
    rng = np.random.default_rng(0)
    params = list(model.parameters())
    server = [p.detach().clone() for p in params]

    def one_round() -> None:
        total = [torch.zeros_like(p) for p in server]
        for client in rng.choice(len(sizes), COHORT, replace=False):
            with torch.no_grad():
                torch._foreach_copy_(params, server)
            for rows in torch.from_numpy(rng.permutation(sizes[client])).split(batch):
                outputs = model(x[client, rows])
                loss = nn.functional.cross_entropy(outputs.flatten(0, -2), y[client, rows].flatten())
                gradients = torch.autograd.grad(loss, params)
                with torch.no_grad():
                    torch._foreach_add_(params, gradients, alpha=-RATE)
            with torch.no_grad():
                torch._foreach_add_(total, params, alpha=sizes[client] / sum(sizes))
        with torch.no_grad():
            torch._foreach_copy_(server, total)

    one_round()
    return one_round


class Pictures(nn.Module):
    """Bytes (n, h, w, c) as numbers (n, c, h, w) in the channels-last layout."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x / 255."""
        return x.permute(0, 3, 1, 2).float() / 255


def bytes_and_labels(shape: tuple[int, ...], classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.integers(0, 256, shape).astype(np.uint8))
    return x, torch.from_numpy(rng.integers(0, classes, shape[:2]))


def n1(sizes: list[int]) -> Callable[[], None]:
    model = nn.Sequential(
        Pictures(), nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Dropout(0.25), nn.Flatten(), nn.Linear(9216, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 62),
    ).to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # fmt: skip
    return program(model, *bytes_and_labels((COHORT, max(sizes), 28, 28, 1), 62), sizes, 20)


class Recurrent(nn.Module):
    """Embedding, two LSTM layers, logits at each position."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.lstm = nn.Embedding(90, 8), nn.LSTM(8, 256, 2, batch_first=True)
        self.output = nn.Linear(256, 90)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits (n, time, 90)."""
        return self.output(self.lstm(self.embedding(x))[0])


def n2(n: int) -> Callable[[], None]:
    text = torch.from_numpy(np.random.default_rng(0).integers(1, 90, (4 * COHORT, n, 81)))
    return program(Recurrent(), text[..., :-1], text[..., 1:], [n] * 4 * COHORT, 10)


class Block(nn.Module):
    """Two convolutions around which the input goes."""

    def __init__(self, into: int, out: int) -> None:
        super().__init__()
        stride = 1 if into == out else 2
        self.first, self.second = convolution(3, into, out, stride), convolution(3, out, out, 1)
        self.shortcut = nn.Identity() if into == out else convolution(1, into, out, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The next block's input."""
        return torch.relu(self.second(torch.relu(self.first(x))) + self.shortcut(x))


def convolution(size: int, into: int, out: int, stride: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(into, out, size, stride, size // 2, bias=False), nn.GroupNorm(2, out))


def n3(n: int, width: int = 16) -> Callable[[], None]:
    sizes = [width, *[width * 2**s for s in range(4) for _ in range(2)]]
    blocks = [Block(a, b) for a, b in pairwise(sizes)]
    model = nn.Sequential(
        Pictures(), convolution(3, 3, width, 1), nn.ReLU(), *blocks,
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(sizes[-1], 100),
    ).to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # fmt: skip
    x, y = bytes_and_labels((2 * COHORT, n, 32, 32, 3), 100)
    return program(model, x, y, [n] * 2 * COHORT, 20)
