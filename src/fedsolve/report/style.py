"""How methods are distinguished, on pages as in plots: colours safe for colour-blind readers, lines and names.

Six colours of Okabe and Ito times four line styles; the first six methods are solid lines.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fedsolve.results.history import History

LIGHT = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
"""Line colours on a white ground."""
DARK = ("#4C9BE8", "#FF8A4C", "#2BC79B", "#E79CC8", "#A5DEFF", "#F5C242")
"""The same colours, lighter, on a dark ground."""
DASHES: tuple[tuple[float, ...], ...] = ((), (7, 3), (2, 2), (8, 2, 2, 2))
"""Line and gap lengths; empty is a solid line."""


@dataclass(frozen=True)
class LineStyle:
    """Colour number (into LIGHT or DARK), dash pattern and position of a method."""

    colour: int
    dash: tuple[float, ...]
    position: int


def line_styles(histories: Sequence[History]) -> dict[str, LineStyle]:
    """A style for each label, in order of appearance; runs of one label (its seeds) share it."""
    return styles_of([h.label for h in histories])


def styles_of(labels: Sequence[str]) -> dict[str, LineStyle]:
    """A style for each different label, in order."""
    return {
        label: LineStyle(i % len(LIGHT), DASHES[i // len(LIGHT) % len(DASHES)], i)
        for i, label in enumerate(dict.fromkeys(labels))
    }


def context(histories: Sequence[History]) -> str:
    """What the runs have in common, for a title: task, clients per round, seeds.

    Several values are listed; a setting that no run has is left out.
    """
    parts = [", ".join(dict.fromkeys(h.task for h in histories))]
    cohorts = _values(histories, "sampling")
    sizes = [re.fullmatch(r"Uniform\(size=(\d+)\)", cohort) for cohort in cohorts]
    if all(sizes) and sizes:
        parts.append(f"{' / '.join(sorted((s[1] for s in sizes if s), key=int))} clients per round")
    elif cohorts:
        parts.append(f"cohorts by {' / '.join(cohorts)}")
    seeds = _values(histories, "seed")
    if seeds:
        shown = seeds if len(seeds) <= 5 else [*seeds[:2], "…", seeds[-1]]
        parts.append(f"seed{'s' if len(seeds) > 1 else ''} {', '.join(shown)}")
    return " · ".join(parts)


def _values(histories: Sequence[History], setting: str) -> list[str]:
    values = dict.fromkeys(h.settings.get(setting) for h in histories)
    return [str(v) for v in sorted((v for v in values if v is not None), key=lambda v: (str(type(v)), v))]


def distinct_names(histories: Sequence[History]) -> list[str]:
    """A name for each run: its label, with a number where a label comes more than once."""
    labels = [h.label for h in histories]
    return [
        f"{label} (run {labels[:i].count(label) + 1})" if labels.count(label) > 1 else label
        for i, label in enumerate(labels)
    ]


def wrapped(lines: Iterable[str], inches: float) -> str:
    """Lines of a title of 9 points, broken where one is wider than an axis that ends so far from the left edge."""
    return "\n".join(part for line in lines for part in _parts(line, 72 * (inches - 0.9)))


def _parts(line: str, points: float) -> list[str]:
    from matplotlib.textpath import TextPath

    letters = max(len(line), 1)
    while True:
        parts = textwrap.wrap(line, letters)
        # a dollar is measured as another letter: it may begin what is no TeX
        widths = [TextPath((0, 0), part.replace("$", "S"), size=9).get_extents().width for part in parts]
        if letters <= 20 or max(widths, default=0) <= points:
            return parts
        letters -= max(1, letters // 20)
