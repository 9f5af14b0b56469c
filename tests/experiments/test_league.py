"""The league: its methods' defaults are those of the library, and its own rules on made-up numbers."""

import json

import numpy as np
import pytest

from experiments.comparisons.tuning_free_league.statements import POPULAR, fails_nowhere, untuned
from experiments.comparisons.tuning_free_league.study import (
    ALIKE,
    DEFAULTS,
    GIVEN,
    METHODS,
    RANGES,
    SEEDS,
    STUDY,
    TUNING_SEED,
)
from fedsolve.config.build import build
from fedsolve.results.sweep import Selection, SweepRecord
from fedsolve.studies import Cells, Problem
from fedsolve.studies.cells import Cell
from fedsolve.studies.reproduce import reproduce


@pytest.mark.parametrize("name", DEFAULTS)
def test_the_first_setting_is_the_documented_default(name):
    method = METHODS[name]
    given = GIVEN.get(name, {}) | ({} if name in ALIKE else {"weighting": "examples"})
    assert repr(method.make(**method.published)) == repr(build(name, given))
    assert all(RANGES[axis][0] <= value < RANGES[axis][1] for axis, value in DEFAULTS[name].items())


def test_its_size():
    assert len(STUDY.problems) >= 12
    assert len(METHODS) == 20
    assert len(SEEDS) == 5
    assert TUNING_SEED not in SEEDS
    assert {len(values) for m in METHODS.values() for values in m.grid.values()} == {30}
    assert {problem.select for problem in STUDY.problems.values()} == {"validation_loss"}
    assert {problem.metric.partition("_")[0] for problem in STUDY.problems.values()} == {"test"}
    assert set(POPULAR) < set(METHODS)


def made_up(ends):
    """Cells of one seed, from method -> (default's, tuned) losses by problem; all start at 1."""
    problem = Problem("p", "small", lambda data_dir: None, {"rounds": 4}, metric="train_loss")

    def sweep(end):
        lost = np.array([[-1 if np.isfinite(end) else 2]])
        metrics = {"train_loss": np.array([[[1.0, end]]])}
        return SweepRecord(
            "m", "p", {"a": (1,)}, (0,), np.array([0, 4]), metrics, lost, Selection("train_loss", 1)
        )

    cells = {
        (str(i), m): Cell(sweep(default), sweep(tuned), sweep(tuned))
        for m, pairs in ends.items()
        for i, (default, tuned) in enumerate(pairs)
    }
    return Cells({str(i): problem for i in range(2)}, (0,), cells)


def test_a_method_fails_where_it_diverges_or_rises():
    cells = made_up(
        {
            "good": [(0.5, 0.1), (1.0, 0.1)],
            "rises": [(1.1, 0.1), (0.5, 0.1)],
            "lost": [(np.nan, 0.1), (0.5, 0.1)],
        }
    )
    assert fails_nowhere("good")(cells).verdict == "consistent"
    assert fails_nowhere("rises")(cells).verdict == fails_nowhere("lost")(cells).verdict == "refuted"
    assert fails_nowhere("good")(cells).ours.endswith(
        "on none of 2 problems; the others on as many: rises 1, lost 1"
    )


def test_one_method_untuned_among_others_tuned():
    cells = made_up({"a": [(0.5, 0.1)] * 2, "b": [(0.9, 0.2)] * 2, "c": [(0.9, 0.3)] * 2})
    assert untuned("a")(cells).mean.tolist() == [3, 1, 2]
    assert untuned("c")(cells).mean.tolist() == [1, 2, 3]


@pytest.mark.full
def test_quick_run(tmp_path):
    made = reproduce("tuning-free-league", tmp_path, quick=True)
    found = json.loads((tmp_path / "results.json").read_text())
    assert "QUICK" in found["made_with"]
    assert not found["claims"]
    assert all((tmp_path / f"{key}.png").stat().st_size > 2000 for key in made.outcome.pictures)
