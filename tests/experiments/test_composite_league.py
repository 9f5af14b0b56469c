"""The composite league: penalties and methods by problem, ranks and counts by what is found, on made-up numbers."""

from __future__ import annotations

import json

import numpy as np
import pytest

from experiments.comparisons.composite_league import study as league
from experiments.comparisons.composite_league.composite_problems import COMPOSITES, LOW_RANK, SPARSE
from fedsolve.results.sweep import Selection, SweepRecord
from fedsolve.studies import Cells
from fedsolve.studies.cells import Cell
from fedsolve.studies.reproduce import reproduce

SEEDS = league.SEEDS


def made_up(f1, rank):
    """Cells in which methods end at an F1 score on every sparse problem and at a rank on every problem of matrices."""

    def sweep(**ends):
        metrics = {name: np.full((1, len(SEEDS), 2), end) for name, end in ends.items()}
        return SweepRecord(
            "m", "p", {}, SEEDS, np.array([0, 4]), metrics, np.full((1, 5), -1), Selection("objective", 1)
        )

    cells = {(p, m): Cell(sweep(f1=end), None, None) for p in SPARSE for m, end in f1.items()}
    cells |= {(p, m): Cell(sweep(rank=end), None, None) for p in LOW_RANK for m, end in rank.items()}
    return Cells(league.STUDY.problems, SEEDS, cells)


def test_all_methods_have_the_same_draws_and_their_problem_s_penalty():
    for name, one in COMPOSITES.items():
        made = league.methods(name)
        (axis,) = {repr(method.grid) for method in made.values()}
        assert axis.startswith("{'client_lr, server_lr': ((0.1, 1.0), ")
        setting = {"client_lr, server_lr": (0.02, 3.0)}
        built = {label: method.make(**setting) for label, method in made.items()}
        assert repr(built["FedMiDOSP"].psi) == repr(built["FedDR"].psi) == repr(one.penalty(1.0))
        assert repr(built["FedMiD"].psi) == repr(one.penalty(0.5))  # it applies it twice
        assert (built["FedDR"].eta, built["FedDR"].local.lr) == (3.0, 0.02)
    assert {len(method.grid["client_lr, server_lr"]) for method in made.values()} == {30}
    assert league.TUNING_SEED not in SEEDS


def test_ranks_by_what_is_found_of_the_truth():
    """A rank that is too low is as far off as one too high; a run that diverged is last."""
    cells = made_up({"a": 1.0, "b": 0.9, "c": np.nan}, {"a": 2.0, "b": 1.0, "c": 0.0})
    found = league.recovered(cells)
    assert found.by_problem[:, : len(SPARSE)].T.tolist() == [[1, 2, 3]] * len(SPARSE)
    assert found.by_problem[:, len(SPARSE) :].T.tolist() == [[2.5, 1, 2.5]]


def test_one_data_set_refutes_that_all_is_found():
    cells = made_up({"a": 1.0, "b": 0.98}, {"a": 1.0, "b": 1.0})
    found = league.finds_all("a")(cells)
    assert (found.verdict, found.ours) == ("consistent", "of 20 supports and 5 ranks: a 20 and 5, b 0 and 5")
    cells.by_name["low rank III", "a"].published.metrics["rank"][0, 3, -1] = 2
    assert league.finds_all("a")(cells).verdict == "refuted"


@pytest.mark.full
def test_quick_run(tmp_path):
    made = reproduce("composite-league", tmp_path, quick=True)
    assert "QUICK" in json.loads((tmp_path / "results.json").read_text())["made_with"]
    assert all((tmp_path / f"{key}.png").stat().st_size > 2000 for key in made.outcome.pictures)
