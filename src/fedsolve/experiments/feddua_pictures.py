"""Pictures of the FedDuA experiments: losses and global learning rates by round."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from fedsolve.experiments.feddua_methods import METHODS, family
from fedsolve.studies.panels import Line, Panel, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Curves = Mapping[str, np.ndarray]
"""A method at its chosen setting: `round` (evaluations,), `last`, `averaged` (data, evaluations), `server_lr`
(data, rounds)."""


WINDOW = 10
"""Rounds of the running mean of learning rates."""


def running(rates: np.ndarray) -> np.ndarray:
    """The geometric mean over each window of rounds, shape (data, rounds - WINDOW + 1).

    >>> running(np.array([[1.0, 100.0] * 5])).round(6)
    array([[10.]])
    """
    with np.errstate(divide="ignore"):
        windows = np.lib.stride_tricks.sliding_window_view(np.log(rates), WINDOW, axis=1)
    return np.exp(windows.mean(axis=-1))


def headline(name: str) -> str:
    """Which iterate a method is judged by: `averaged` or `last`."""
    return "averaged" if METHODS[name].averaged else "last"


def _families(names: Mapping[str, object]) -> list[tuple[str, list[str]]]:
    """The two panels of Figure 1, those that have methods."""
    found = [(title, [n for n in family(m) if n in names]) for title, m in _PANELS]
    return [(title, members) for title, members in found if members]


_PANELS = (("Without server momentum", False), ("With server momentum", True))


def loss_picture(curves: Mapping[str, Curves], note: str) -> Figure:
    """The headline iterate's loss by round, a panel for each half of Figure 1."""
    row = [
        Panel(
            title,
            [Line(name, curves[name]["round"], curves[name][headline(name)]) for name in members],
            "training loss (mean of squares)",
        )
        for title, members in _families(curves)
    ]
    return panels([row], f"Training loss of the headline iterate\n{note}", width=5.6, height=4.2)


def iterates_picture(curves: Mapping[str, Curves], note: str) -> Figure:
    """Last iterate and the mean of the last two, for the methods whose rate adapts."""
    row = [
        Panel(
            name,
            [
                Line("last iterate", c["round"], c["last"]),
                Line("mean of the last two", c["round"], c["averaged"]),
            ],
            "training loss (mean of squares)",
        )
        for name, c in curves.items()
        if METHODS[name].averaged
    ]
    return panels([row], f"The two iterates\n{note}", width=3.6, height=3.2)


def rates_picture(curves: Mapping[str, Curves], note: str) -> Figure:
    """The global learning rate by round, as a running mean: by itself it jumps by a decade from round to round."""
    row = [
        Panel(
            title,
            [
                Line(name, np.arange(WINDOW, rounds + 1), running(curves[name]["server_lr"]))
                for name in members
                if (rounds := curves[name]["server_lr"].shape[1]) >= WINDOW
            ],
            "global learning rate (no unit)",
        )
        for title, members in _families(curves)
    ]
    title = "Global learning rates; under a preconditioner the scale is another"
    return panels([row], f"{title}\n{note}", width=5.6, height=4.2)
