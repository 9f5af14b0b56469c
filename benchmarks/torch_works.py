"""The works of bench.py as plain PyTorch loops: federated averaging, one client after another, on a CPU or a GPU.

On a GPU clients' examples lie there before, products may use TF32 as XLA's do, and a call ends when the GPU is done.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from fedsolve.core.xla.compiler import cores

RATE, COHORT = 0.1, 10


def program(
    model: nn.Module,
    x: Any,
    y: Any,
    batch: int,
    *,
    sizes: list[int] | None = None,
    cohort: int = COHORT,
    steps: int | None = None,
    rounds: int = 1,
    device: str = "cpu",
    threads: int | None = None,
) -> Callable[[], None]:
    """A function that does some rounds, warmed up.

    Args:
        model: the module; what it computes of inputs are logits, with the classes last.
        x: inputs (clients, examples, ...).
        y: labels (clients, examples, ...).
        batch: examples of a step.
        sizes: examples of each client, None for all.
        cohort: clients of a round.
        steps: local steps, None for an epoch.
        rounds: of a call.
        device: of PyTorch.
        threads: of PyTorch on a CPU, None for one a core.
    """
    torch.manual_seed(0)
    rng, model = np.random.default_rng(0), model.to(device)
    x, y = (torch.as_tensor(np.array(a)).to(device) for a in (x, y))
    y = y.long()
    sizes = sizes or [x.shape[1]] * x.shape[0]
    trained = list(model.parameters())
    state = [*trained, *(b for b in model.buffers() if b.is_floating_point())]
    server = [p.detach().clone() for p in state]

    def train(client: int) -> None:
        order = torch.from_numpy(rng.permutation(sizes[client])).to(device)
        for rows in order.split(batch)[:steps]:
            outputs = model(x[client, rows])
            loss = F.cross_entropy(outputs.flatten(0, -2), y[client, rows].flatten())
            gradients = torch.autograd.grad(loss, trained)
            with torch.no_grad():
                torch._foreach_add_(trained, gradients, alpha=-RATE)

    def one_round() -> None:
        chosen = rng.choice(len(sizes), cohort, replace=False)
        total, examples = [torch.zeros_like(p) for p in server], sum(sizes[c] for c in chosen)
        for client in chosen:
            with torch.no_grad():
                torch._foreach_copy_(state, server)
            train(client)
            with torch.no_grad():
                torch._foreach_add_(total, state, alpha=sizes[client] / examples)
        with torch.no_grad():
            torch._foreach_copy_(server, total)

    def run() -> None:
        torch.set_num_threads(threads or cores())
        torch.set_float32_matmul_precision("highest" if device == "cpu" else "high")
        for _ in range(rounds):
            one_round()
        if device != "cpu":
            torch.cuda.synchronize()

    run()
    return run


def channels_last(model: nn.Module) -> nn.Module:
    """The module with images' channels last in memory, which is the faster layout on both kinds of device."""
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


class Pictures(nn.Module):
    """Images (n, h, w, c), bytes as x / 255, as numbers (n, c, h, w) in the channels-last layout."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Channels before the axes of an image."""
        y = x.permute(0, 3, 1, 2)
        return y if y.is_floating_point() else y.float() / 255


def cnn(classes: int = 62, dropout: tuple[float, float] = (0.0, 0.0)) -> nn.Module:
    """The CNN of Reddi et al. 2021 for images of 28 x 28."""
    layers = [
        Pictures(), nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Dropout(dropout[0]), nn.Flatten(), nn.Linear(9216, 128), nn.ReLU(), nn.Dropout(dropout[1]),
        nn.Linear(128, classes),
    ]  # fmt: skip
    return channels_last(nn.Sequential(*(x for x in layers if getattr(x, "p", 1.0) > 0)))


class Recurrent(nn.Module):
    """Embedding, LSTM layers, logits at each position."""

    def __init__(self, hidden: int = 256, vocabulary: int = 90) -> None:
        super().__init__()
        self.embedding, self.lstm = nn.Embedding(vocabulary, 8), nn.LSTM(8, hidden, 2, batch_first=True)
        self.output = nn.Linear(hidden, vocabulary)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits (n, time, vocabulary)."""
        return self.output(self.lstm(self.embedding(x))[0])


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


def resnet(width: int = 16, classes: int = 100) -> nn.Module:
    """ResNet-18 with group norm of two groups and a 3 x 3 stem."""
    sizes = [width, *[width * 2**s for s in range(4) for _ in range(2)]]
    blocks = [Block(a, b) for a, b in pairwise(sizes)]
    model = nn.Sequential(
        Pictures(), convolution(3, 3, width, 1), nn.ReLU(), *blocks,
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(sizes[-1], classes),
    )  # fmt: skip
    return channels_last(model)


def mlp(*sizes: int) -> nn.Module:
    """Dense layers of such sizes with ReLU between them; softmax regression where there are two."""
    layers = [layer for a, b in pairwise(sizes) for layer in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def small_cnn() -> nn.Module:
    """The CNN of flax_loop.py: 105,866 parameters on images of 28 x 28."""
    model = nn.Sequential(
        Pictures(), nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(1568, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip
    return channels_last(model)
