"""What bench.py's times must keep, claim by claim; `bench.py --check` and the pages read this list."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple


class Bound(NamedTuple):
    """A limit of a program's time: of its ratio to the time of another, or of the time itself.

    Attributes:
        work: the key of the work.
        program: whose time it is.
        limit: of the ratio, or of the time in the work's unit.
        over: the program whose time it is divided by; of several whose names begin so, the fastest. Empty for none.
        at_least: whether the limit is the least that is allowed, not the most.
        label: what tables call it.
    """

    work: str
    program: str
    limit: float
    over: str = ""
    at_least: bool = False
    label: str = ""

    def value(self, works: Mapping[str, Mapping[str, Any]]) -> float | None:
        """The ratio or time that was measured, the median over repetitions; None where it was not."""
        times = works.get(self.work, {}).get("times", {})
        if self.program not in times:
            return None
        if not self.over:
            return statistics.median(times[self.program])
        others = [values for name, values in times.items() if _is_of(name, self.over)]
        if not others:
            return None
        other = min(others, key=statistics.median)
        return statistics.median(a / b for a, b in zip(times[self.program], other, strict=True))

    def holds(self, works: Mapping[str, Mapping[str, Any]]) -> bool:
        """Whether it was measured and kept."""
        value = self.value(works)
        return value is not None and (value >= self.limit if self.at_least else value <= self.limit)

    def parts(self, works: Mapping[str, Mapping[str, Any]]) -> tuple[str, str]:
        """The claim and its limit, such as `N1: FedAvg / PyTorch loop` and `<= 0.85`."""
        unit = "" if self.over else f" {works.get(self.work, {}).get('unit', 's')}"
        over = f" / {self.over}" if self.over else ""
        return f"{self.work}: {self.program}{over}", f"{'>=' if self.at_least else '<='} {self.limit:g}{unit}"


def _is_of(name: str, over: str) -> bool:
    """`PyTorch loop, 2 threads` is of `PyTorch loop`; `FedAvg, 1 device` is not of `FedAvg`."""
    return name == over or (name.startswith(f"{over}, ") and name.endswith((" thread", " threads")))


PYTORCH = "PyTorch loop"
HEADLINES = (
    Bound("N1", "FedAvg", 0.85, PYTORCH, label="CNN with dropout, uneven clients"),
    Bound("N2", "FedAvg", 0.85, PYTORCH, label="LSTM 2 x 256, sequences of 80"),
    Bound("N3", "FedAvg", 1.0, PYTORCH, label="ResNet-18 with group norm, width 16"),
    Bound("W2", "FedAvg", 0.85, PYTORCH, label="CNN of 1.2 M parameters"),
    Bound("module CNN", "translated", 0.85, PYTORCH, label="translated module: CNN with BatchNorm"),
    Bound("module LSTM", "translated", 0.85, PYTORCH, label="translated module: LSTM 2 x 64"),
    Bound("module transformer", "translated", 0.85, PYTORCH, label="translated module: transformer 2 x 32"),
)
"""The engine against what a user of networks would write; the README shows these."""
BOUNDS = (
    *HEADLINES,
    Bound("W2", "matrix products", 0.8, "FedAvg", at_least=True),
    Bound("W2", "FedAvg, 1 device", 1.1, "by hand"),
    Bound("N1", "FedAvg, 1 device", 1.2, "by hand, even"),
    Bound("N2", "FedAvg, 1 device", 1.15, "by hand"),
    Bound("N3", "FedAvg, 1 device", 1.15, "by hand"),
    Bound("N4 MLP", "translated", 1.1, "the same in JAX"),
    Bound("N4 MLP", PYTORCH + ", 1 thread", 10, "translated", at_least=True),
    Bound("N4 CNN", "translated", 1.1, "the same in JAX"),
    Bound("W1", "FedAvg", 1.2, "by hand"),
    Bound("W1", "FedDuAdam", 1.3, "FedAvg"),
    Bound("W1", "SCAFFOLD", 1.45, "by hand"),
    Bound("W3", "FedAvg", 1.2, "by hand"),
    Bound("W3", "FedDuAdam", 1.3, "FedAvg"),
    Bound("W3", "SCAFFOLD", 1.45, "by hand"),
    Bound("W3", "SCAFFOLD, all cores", 1.45, "by hand, all cores"),
    Bound("W3", "SCAFFOLD, all cores", 1.0, "SCAFFOLD"),
    Bound("W4", "FedFW", 1.3, "FedAvg"),
    Bound("W4", "FedFW, l2 ball", 1.5, "FedAvg"),
    Bound("W4", "FedFW, a ball a leaf", 1.5, "FedAvg"),
    Bound("W5 even", "FedAvg", 1.2, "Python loop"),
    Bound("W5 uneven", "FedAvg", 1.2, "Python loop"),
    Bound("W6", "FedAvg", 1.0, "by hand"),
    Bound("W6", "SCAFFOLD", 1.2, "by hand"),
    Bound("S1", "runs in a row", 3, "sweep", at_least=True),
    Bound("S1 diverged", "runs in a row", 3, "sweep", at_least=True),
    Bound("S1 diverged", "sweep", 0.8),
    Bound("S2", "runs in a row", 5, "sweep", at_least=True),
    Bound("start", "import fedsolve", 1.5),
    Bound("start", "first round", 5),
    Bound("start N1", "second start", 3),
    Bound("start N2", "second start", 3),
    Bound("start N3", "second start", 3),
    Bound("make run", "second", 8),
    Bound("T1", "FedAvg", 1.5, PYTORCH),
)


def broken(works: Mapping[str, Mapping[str, Any]], bounds: Iterable[Bound] = BOUNDS) -> list[str]:
    """A line for each bound that does not hold, or was not measured."""
    lines = []
    for bound in bounds:
        value = bound.value(works)
        if not bound.holds(works):
            measured = "not measured" if value is None else f"measured {value:.3g}"
            lines.append(f"{' '.join(bound.parts(works))}: {measured}")
    return lines
