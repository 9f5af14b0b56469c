"""A method's colour and line: the same in every picture of every study."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle

from fedsolve.report.style import DASHES, LIGHT

_ORDER = (
    "FedAvg", "FedAdam", "FedDuAdam", "FedDuA", "FedExP", "FedAvgM", "FedAdagrad", "FedDuAdagrad", "FedExPM", "FedYogi",
    "SCAFFOLD", "FedProx", "FedLiLU", "FedLiLS", "FedFW", "FedDualAvg", "FedMiD", "FedDR", "DiLoCo",
    "SCAFFOLD+FedExP", "SCAFFOLD+FedDuAdagrad",
    "FedFWPlus", "FedFWSto",
)  # fmt: skip


def styles(labels: Sequence[str]) -> dict[str, tuple[str, tuple[float, ...]]]:
    """Colour and dashes of each label: a method's own wherever it is drawn.

    Others take what is free in this figure, colours that none of those has before the rest.
    """
    every = [(colour, dash) for dash in DASHES for colour in LIGHT]
    known = {label: every[_ORDER.index(label)] for label in labels if label in _ORDER}
    taken = {colour for colour, _ in known.values()}
    rest = [style for style in every if style not in known.values()] or every
    free = cycle(sorted(rest, key=lambda style: style[0] in taken))
    return {label: known[label] if label in known else next(free) for label in dict.fromkeys(labels)}
