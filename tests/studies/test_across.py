"""Several problems at once: a comparison on all of them."""

from __future__ import annotations

import numpy as np
import pytest

from fedsolve.results.sweep import Selection, SweepRecord
from fedsolve.studies import Cells, Problem
from fedsolve.studies.cells import Cell
from fedsolve.studies.rules import better_in_each

NOISE = 0.01 * np.array([1.0, -1.0, 0.5, -0.5, 0.0])
WIDE = 0.5 * np.array([1.0, -1.0, 0.5, -0.5, 0.0])


def cells(**ends):
    """Cells of problems by name: method -> training losses at the end, by seed."""
    found, problems = {}, {}
    for name, methods in ends.items():
        problems[name] = Problem(name, "made up", lambda d: None, {"rounds": 4}, metric="train_loss")  # pyright: ignore
        for method, end in methods.items():
            end = np.asarray(end, float)
            curve = np.stack([np.full_like(end, 2.0), end], axis=-1)[None]
            lost = np.where(np.isfinite(end), -1, 1)[None]
            one = SweepRecord(
                method, name, {"client_lr": (0.1,)}, tuple(range(5)), np.array([0, 4]), {"train_loss": curve}, lost,
                Selection("train_loss", 1),
            )  # fmt: skip
            found[name, method] = Cell(one, None, None)
    return Cells(problems, tuple(range(5)), found)


ONE = {"A": 0.5 + NOISE, "B": 0.6 - NOISE}
OTHER = {"A": 0.9 + NOISE, "B": 0.6 - NOISE}
OPEN = {"A": 0.5 + WIDE, "B": 0.55 - WIDE}


@pytest.mark.parametrize(
    ("second", "verdict", "words"),
    [
        (ONE, "reproduced", "A over B: better on 2 of 2"),
        (OTHER, "partly", "A over B: better on 1 of 2, worse on 1 (second)"),
        (OPEN, "partly", "A over B: better on 1 of 2, open on 1 (second)"),
    ],
)
def test_better_in_each_says_where(second, verdict, words):
    judged = better_in_each(("first", "second"), "A", ("B",))(cells(first=ONE, second=second))
    assert judged.verdict == verdict
    assert judged.ours.endswith(words)
    assert "least and greatest of 2 problems: A 0.5" in judged.ours


def test_better_in_none():
    assert better_in_each(("one",), "A", ("B",))(cells(one=OTHER)).verdict == "not reproduced"
    assert better_in_each(("one",), "A", ("B",))(cells(one=OPEN)).verdict == "underpowered"
    lost = {"A": 0.5 + NOISE, "B": [np.nan, 0.1, 0.1, 0.1, 0.1]}
    judged = better_in_each(("one",), "A", ("B",))(cells(one=lost))
    assert (judged.verdict, "B diverged on some" in judged.ours) == ("reproduced", True)


def test_comparisons_share_the_level():
    """A difference that one comparison shows is open among forty."""
    small = {"A": 0.5 + NOISE, "B": 0.525 + 0 * NOISE}
    assert better_in_each(("p0",), "A", ("B",))(cells(p0=small)).verdict == "reproduced"
    many = {f"p{i}": small for i in range(40)}
    assert better_in_each(tuple(many), "A", ("B",))(cells(**many)).verdict == "underpowered"
