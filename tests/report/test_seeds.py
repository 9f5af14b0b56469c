"""Several seeds as one method: means and ranges by round, in a page's data and in a picture's bands."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedsolve.report import plots
from fedsolve.report.page import page_data
from fedsolve.results.history import History, group_by_seed


def run(seed, loss, label="A", rounds=(0, 2, 4), sent=(1, 1, 1, 1)):
    evaluations = {"round": list(rounds), "seconds": [0.0] * len(rounds), "train_loss": loss}
    logs = {
        "round": range(1, 1 + len(sent)),
        "bytes_up": np.array(sent) * 10**6,
        "server_lr": np.full(len(sent), 2.0 + seed),
    }
    return History(
        label, "t", {"seed": seed}, evaluations, {k: np.array(v) for k, v in logs.items()}, notes=("n",)
    )


RUNS = [run(0, [1, 2, 3]), run(0, [9, 9, 9], "B"), run(2, [3, 4, 8], sent=(2, 2, 2, 2))]


def test_means_and_ranges_by_round():
    first, second = group_by_seed(RUNS)
    assert (first.several, second.several) == (True, False)
    assert second.history is RUNS[1]
    history = first.history
    assert history.settings == {"seed": "0, 2"}
    assert history.notes == ("n",)
    np.testing.assert_array_equal(history.evaluations["train_loss"], [2, 3, 5.5])
    np.testing.assert_array_equal(first.low["train_loss"], [1, 2, 3])
    np.testing.assert_array_equal(first.high["train_loss"], [3, 4, 8])
    np.testing.assert_array_equal(history.rounds["server_lr"], [3.0] * 4)
    np.testing.assert_array_equal(history.megabytes(), [0, 3, 6])


def test_a_seed_that_diverged_ends_the_mean():
    (both,) = group_by_seed([RUNS[0], run(5, [3, np.nan], rounds=(0, 3), sent=(1, 1, 1))])
    assert both.history.evaluations["round"].tolist() == [0, 2, 3, 4]
    np.testing.assert_array_equal(both.history.evaluations["train_loss"], [2, np.nan, np.nan, np.nan])


def test_same_seeds_or_other_tasks_are_not_one():
    assert len(group_by_seed([RUNS[0], RUNS[0]])) == 2
    other = History("A", "u", {"seed": 1}, RUNS[0].evaluations, RUNS[0].rounds)
    assert len(group_by_seed([RUNS[0], other])) == 2


def test_other_settings_are_another_method_whatever_the_seed():
    fast = replace(RUNS[2], settings={"seed": 2, "algorithm": "FedAvg(lr=1)"})
    assert len(group_by_seed([RUNS[0], fast])) == 2
    elsewhere = replace(RUNS[2], settings={"seed": 2, "devices": 2, "chunk": 5})
    assert len(group_by_seed([RUNS[0], elsewhere])) == 1


def test_the_page_draws_the_range_of_the_seeds():
    both, alone = page_data(RUNS, "train_loss")["runs"]
    assert (both["name"], both["low"]["train_loss"], both["high"]["train_loss"]) == (
        "A",
        [1, 2, 3],
        [3, 4, 8],
    )
    assert both["columns"]["train_loss"] == [2, 3, 5.5]
    assert "low" not in alone


def test_a_picture_has_a_band_where_there_are_seeds():
    pytest.importorskip("matplotlib")
    (axes,) = plots.curves(RUNS, "train_loss").axes
    (band,) = axes.collections
    corners = band.get_paths()[0].vertices
    assert {(x, y) for x, y in corners.tolist()} >= {(0, 1), (2, 2), (4, 3), (0, 3), (2, 4), (4, 8)}
    assert [line.get_ydata().tolist() for line in axes.lines] == [[2, 3, 5.5], [9, 9, 9]]
