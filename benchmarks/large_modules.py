"""Networks of 10 to 27 million parameters, translated, beside a plain PyTorch loop.

    python benchmarks/bench.py large               a round, in turns
    python benchmarks/large_modules.py             the start and the peak memory of each, in processes of their own

T10 and T27 are causal transformers of a vocabulary of 8,000 (8 x 256 and 12 x 384): two clients, two steps of four
sequences of 32 tokens each. R11 is ResNet-18 of width 64 with group norm: two clients, two steps of eight images. The
second command also shows T104 (13 x 768): one client, two steps of two sequences.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np
import torch
from torch import nn

import fedsolve as fs
from measure import Setting, compare, library
from stored import table
from torch_modules import Attending, loops, translated
from torch_works import program, resnet

VOCABULARY, TOKENS = 8_000, 32


class Causal(Attending):
    """A causal transformer of so many blocks of a width, with heads of 64."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__(VOCABULARY, width, TOKENS)
        layer = nn.TransformerEncoderLayer(
            width, width // 64, 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)


def _text(draw: np.random.Generator, clients: int = 2, rows: int = 8) -> tuple[np.ndarray, np.ndarray]:
    text = draw.integers(0, VOCABULARY, (clients, rows, TOKENS + 1))
    return text[..., :-1], text[..., 1:]


def _images(draw: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    return draw.random((2, 16, 32, 32, 3), np.float32), draw.integers(0, 100, (2, 16))


Make = Callable[[], nn.Module]
Data = Callable[[np.random.Generator], tuple[np.ndarray, np.ndarray]]
WORKS: dict[str, tuple[Make, Data, int]] = {
    "T10": (partial(Causal, 8, 256), _text, 4),
    "T27": (partial(Causal, 12, 384), _text, 4),
    "R11": (partial(resnet, 64), _images, 8),
}
LARGEST: dict[str, tuple[Make, Data, int]] = {
    "T104": (partial(Causal, 13, 768), partial(_text, clients=1, rows=4), 2)
}
TINY: dict[str, tuple[Make, Data, int]] = {"T0": (partial(Causal, 1, 64), _text, 4)}


def _made(name: str) -> tuple[nn.Module, np.ndarray, np.ndarray, int]:
    make, data, batch = (WORKS | LARGEST | TINY)[name]
    torch.manual_seed(0)
    return make(), *data(np.random.default_rng(0)), batch


def large(setting: Setting) -> None:
    for name in setting.pick(WORKS, TINY):
        module, x, y, batch = _made(name)
        size = sum(p.numel() for p in module.parameters()) / 1e6
        work = translated(module, x, y, batch)
        loop = partial(program, module, x, y, batch, cohort=len(x))
        programs = {"translated": library(fs.FedAvg(0.01), work, None, 1), **loops(loop, setting)}
        about = f"{size:.1f} million parameters, 2 clients x 2 steps of {batch}"
        compare(f"large {name}", about, programs, 1, setting.pick(9, 2), base="translated")


def _peak() -> float:
    """The most memory that this process held, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def _start(name: str, side: str) -> list[Any]:
    """Seconds to make a task, of the first run of a round and of the second, and peaks of memory, in this process."""
    module, x, y, batch = _made(name)
    begun, times, peaks = time.perf_counter(), [], []

    def note() -> None:
        nonlocal begun
        times.append(f"{time.perf_counter() - begun:.1f}")
        peaks.append(f"{_peak():.2f}")
        begun = time.perf_counter()

    if side == "PyTorch":
        program(module, x, y, batch, cohort=len(x))
        note()
        return ["", times[0], "", "", peaks[0]]
    work = translated(module, x, y, batch)
    note()
    for _ in range(2):
        jax.block_until_ready(fs.run(fs.FedAvg(0.01), work, rounds=1).params)
        note()
    return [*times, peaks[0], peaks[-1]]


def starts(names: list[str]) -> None:
    """Print the table of starts, each in a process of its own."""
    rows = []
    for name in names or WORKS | LARGEST:
        for side in ("translated", "PyTorch"):
            command = [sys.executable, __file__, "--one", name, side]
            found = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            rows.append((name, side, *found.strip().splitlines()[-1].split(",")))
    head = ("work", "side", "task, s", "first round, s", "second, s", "peak of the task, GB", "peak, GB")
    table("start and memory", head, rows)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        print(",".join(_start(sys.argv[2], sys.argv[3])))
    else:
        starts(sys.argv[1:])
