"""Time to accuracy: the rule on made-up clocks, a method's own way of running, the study's sizes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import fedsolve as fs
from experiments.systems.fleet_clock import study
from fedsolve.results.sweep import Selection, SweepRecord
from fedsolve.studies import Cells
from fedsolve.studies.cells import Cell
from fedsolve.studies.experiment import Context
from fedsolve.studies.reproduce import reproduce
from fedsolve.studies.rules import sooner
from fedsolve.studies.rules.comparisons import time_to
from fedsolve.studies.runner import solve

NAME = "stragglers"


def made_up(**clocks):
    """Methods that reach 0.55 at their second evaluation, at the given seconds by seed; NaN: never."""
    cells = {}
    for method, seconds in clocks.items():
        seconds = np.asarray(seconds, float)
        accuracy = np.stack(
            [np.full(5, 0.1), np.where(np.isnan(seconds), 0.5, 0.55), np.full(5, 0.52)], axis=1
        )
        time = np.stack([np.zeros(5), seconds, 2 * seconds], axis=1)
        metrics = {
            "test_accuracy": accuracy[None],
            "time": time[None],
            "train_loss": np.ones((1, 5, 3)) * [3, 2, 1],
        }
        seeds, rounds = tuple(range(5)), np.array([0, 1, 2])
        sweep = SweepRecord(
            method, NAME, {"a": (1,)}, seeds, rounds, metrics, np.full((1, 5), -1), Selection("train_loss", 1)
        )
        cells[NAME, method] = Cell(sweep, None, None)
    return Cells({NAME: study.problem(NAME)}, tuple(range(5)), cells)


SLOW = [10.0, 12.0, 9.0, 11.0, 10.0]
HALF = [5.1, 5.9, 4.6, 5.4, 5.0]


@pytest.mark.parametrize(
    ("ours", "verdict"),
    [
        (HALF, "reproduced"),
        ([21.0, 23.0, 19.0, 22.0, 20.0], "not reproduced"),
        ([5.0, 24.0, 9.0, 11.0, 10.0], "underpowered"),
        ([*HALF[:4], np.nan], "underpowered"),
    ],
)
def test_the_rule_of_time(ours, verdict):
    cells = made_up(ours=ours, theirs=SLOW)
    np.testing.assert_array_equal(time_to(cells, NAME, "ours", 0.55), ours)
    found = sooner((NAME,), "ours", "theirs", 0.55, (0.5, 0.9))(cells)
    assert found.verdict == verdict
    if verdict == "reproduced":
        ratio = np.exp(np.mean(np.log(np.array(SLOW) / ours)))
        assert f"{ratio:.2f} times as fast" in found.ours
        assert found.reason.endswith("at 50: reproduced, 90: underpowered")
    assert ("not reached with every seed by ours" in found.ours) == bool(np.isnan(ours).any())


class _SeenError(Exception):
    pass


@pytest.mark.parametrize(
    ("method", "rounds", "at_work", "quorum"),
    [(study.SYNCHRONOUS, 100, 10, None), (study.OVER_SELECTED, 100, 13, 10), (study.BUFFERED, 200, 10, None)],
)
def test_a_method_may_run_another_way(monkeypatch, tmp_path, method, rounds, at_work, quorum):
    """What the runner hands to a sweep: the problem's options, the method's in their place; 1,000 messages each."""

    def sweep(make, task, axes, **options):
        found = options["rounds"], options["clients_per_round"], options.get("quorum")
        assert found == (rounds, at_work, quorum)
        messages = getattr(make(client_lr=0.1), "buffer", 0) or quorum or at_work
        assert messages * options["rounds"] == 1000
        raise _SeenError

    monkeypatch.setattr(fs, "sweep", sweep)
    problem = replace(study.PROBLEMS[NAME], task=study.quick_task)
    one = replace(study.STUDY, problems={NAME: problem}, methods={method: study.METHODS[method]})
    with pytest.raises(_SeenError):
        solve(one, Context(tmp_path))


@pytest.mark.full
def test_the_clock_in_a_quick_run(tmp_path):
    made = reproduce("fleet-clock", tmp_path, quick=True)
    assert "simulated" in made.page.read_text().lower()
    kept = [np.load(path)["metric time"] for path in (tmp_path / "parts").iterdir()]
    assert all((np.diff(time) > 0).all() for time in kept)
