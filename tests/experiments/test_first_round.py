"""FedDuAdagrad with another first round against NumPy, and the rule that counts collapsed runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from equations.cases import SOME, check_fedopt
from equations.transcript import LocalSGD
from experiments.feddua.first_round import study
from experiments.feddua.first_round.cures import method

EPS = 1e-3


class OtherFirstRound:
    """s <- s + D^2 (mean square: + mean of D^2 at first), G = sqrt(s) + eps, eta = mean |D_i|^2 / 2 <D, D/G>."""

    def __init__(self, cure):
        self.cure, self.s = cure, 0.0

    def __call__(self, w, D, spread, size, t):
        self.s = self.s + D**2
        if self.cure == "mean square" and t == 0:
            self.s = self.s + np.mean(D**2)
        step = D / (np.sqrt(self.s) + (np.sqrt(np.mean(D**2)) if self.cure == "relative eps" else EPS))
        if self.cure == "plain round" and t == 0:
            step = D
        eta = spread / 2 / (D @ step)
        return w + eta * step, eta


@pytest.mark.parametrize("cure", ["none", *study.CURES])
def test_each_first_round_follows_its_formula(cure):
    check_fedopt(method(cure, EPS, 0.1), lambda: OtherFirstRound(cure), LocalSGD(0.1), "uniform", SOME)


class Ended:
    """Cells of one problem that ended at given accuracies."""

    problems = ("p",)

    def __init__(self, **accuracies):
        self.accuracies = accuracies

    def final(self, problem, name):
        return np.array(self.accuracies[name])


def test_a_run_that_diverged_or_guesses_has_collapsed():
    """12 of 20 seeds saved and 1 lost: p = 2 (1 + 13) / 2^13 of the sign test; a method that saves none holds not."""
    cells: Any = Ended(
        a=[0.1] * 11 + [np.nan] + [0.9] * 8, b=[0.9] * 12 + [0.15] + [0.9] * 7, c=[0.1] * 12 + [0.9] * 8
    )
    assert study.lost(cells, "p", "a").sum() == 12
    found = study.fewer(("b",), "a")(cells)
    assert found.verdict == "reproduced"
    assert found.ours.startswith("collapsed: a 12 of 20")
    assert "b 1 (12 saved, 1 lost), the others' median accuracy 90.0 %" in found.ours
    assert "b 0.0034" in found.reason
    assert study.fewer(("b", "c"), "a")(cells).verdict == "partly"
    assert study.fewer(("c",), "a")(cells).verdict == "underpowered"
    contrary = study.fewer(("a",), "b")(cells)  # two-sided: significantly more collapse
    assert contrary.verdict == "not reproduced"
    assert "a 0.0034" in contrary.reason
    assert study.some("a")(cells).verdict == "reproduced"
