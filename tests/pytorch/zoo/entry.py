"""What a row of the collection says: a module, its loss, its data, and the verdict that it must have."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

Draw = np.random.Generator
Drawn = tuple[Any, Any]


@dataclass(frozen=True)
class Verdict:
    """What `from_torch` makes of a module; `words` is a pattern that its note or its refusal matches."""

    kind: Literal["translated", "in PyTorch", "refused"]
    words: str = ""

    def holds(self, kind: str, text: str) -> bool:
        return kind == self.kind and re.search(self.words, text) is not None


TRANSLATED = Verdict("translated")


def noted(words: str) -> Verdict:
    """It runs in PyTorch, and a note says why."""
    return Verdict("in PyTorch", words)


def refused(words: str) -> Verdict:
    """It is refused in one line."""
    return Verdict("refused", words)


@dataclass(frozen=True)
class Entry:
    """A module with a loss, and what must become of it.

    Attributes:
        name: unique in the collection.
        make: makes the module in the same way at every call; or a pair (module, loss) where the loss holds it.
        data: (generator, number of examples) -> (inputs, targets).
        loss: (outputs, targets) -> tensor.
        verdict: what must become of it; what is not refused equals PyTorch.
        gate: whether `make test` runs it.
        tolerance: of a step, relative to the largest entry of each parameter's or buffer's.
        needs: packages without which it is skipped.
    """

    name: str
    make: Callable[[], Any]
    data: Callable[[Draw, int], Drawn]
    loss: Callable[..., Any] = F.cross_entropy
    verdict: Verdict = TRANSLATED
    gate: bool = False
    tolerance: float = 1e-9
    needs: tuple[str, ...] = ()


class Net(nn.Module):
    """Named parts, and a function of the module and its inputs: modules, parameters, and tensors as buffers."""

    def __init__(self, run: Callable[[Any, Any], Any], **parts: Any) -> None:
        super().__init__()
        self.run = run
        for name, part in parts.items():
            if isinstance(part, Tensor) and not isinstance(part, nn.Parameter):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)

    def forward(self, x: Any) -> Any:
        return self.run(self, x)


def weight(*shape: int, scale: float = 0.5) -> nn.Parameter:
    """A parameter of normal numbers."""
    return nn.Parameter(scale * torch.randn(*shape))


def around(middle: nn.Module, into: int = 8, out: int = 8) -> nn.Module:
    """A module between two linear layers, from 6 numbers to 3 classes."""
    return nn.Sequential(nn.Linear(6, into), middle, nn.Linear(out, 3))


def vectors(draw: Draw, n: int) -> Drawn:
    """Six numbers, one of three classes."""
    return draw.normal(size=(n, 6)), draw.integers(0, 3, n)


def integers(draw: Draw, n: int) -> Drawn:
    """Six whole numbers, where activations have corners and reductions have ties."""
    return draw.integers(-4, 5, (n, 6)).astype(np.float64), draw.integers(0, 3, n)


def regression(draw: Draw, n: int) -> Drawn:
    """Six numbers, three numbers as targets."""
    return draw.normal(size=(n, 6)), draw.normal(size=(n, 3))


def images(draw: Draw, n: int) -> Drawn:
    """Two channels of 8 x 8, one of three classes."""
    return draw.normal(size=(n, 2, 8, 8)), draw.integers(0, 3, n)


def series(draw: Draw, n: int) -> Drawn:
    """Seven times four numbers, one of three classes."""
    return draw.normal(size=(n, 7, 4)), draw.integers(0, 3, n)


def words(draw: Draw, n: int) -> Drawn:
    """Seven of eleven words, padded at the end with word 0; one of three classes."""
    tokens = draw.integers(1, 11, (n, 7))
    tokens[np.arange(7) >= draw.integers(2, 8, n)[:, None]] = 0
    return tokens, draw.integers(0, 3, n)


def next_words(draw: Draw, n: int) -> Drawn:
    """Words as above, and as targets the words that follow, with -100 where none does."""
    tokens, _ = words(draw, n)
    following = np.concatenate([tokens[:, 1:], np.zeros((n, 1), int)], axis=1)
    return tokens, np.where(following == 0, -100, following)
