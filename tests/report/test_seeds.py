"""Several seeds as one method: means and ranges by round, in pages and bands; differences paired by seed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import ttest_rel

from fedsolve.core.errors import InvalidInput
from fedsolve.report import plots
from fedsolve.report.page import page_data
from fedsolve.report.paired import differences
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


def ended(label, values, seeds=None):
    runs = [(seed, [1, value]) for seed, value in zip(seeds or range(len(values)), values, strict=True)]
    return [run(seed, loss, label, rounds=(0, 4)) for seed, loss in runs]


def test_paired_differences_are_scipys_with_holms_correction():
    """Means, simultaneous intervals and p-values, of three methods and six seeds."""
    random = np.random.default_rng(0)
    base = random.normal(2, 1, 6)
    others = {
        "B": base + random.normal(0.3, 0.2, 6),
        "C": base - random.normal(0.5, 0.3, 6),
        "D": base + 1e-3 * base,
    }
    found = differences(
        [*ended("A", base), *(r for n, x in others.items() for r in ended(n, x))], "A", "loss"
    )
    tests = [ttest_rel(x, base) for x in others.values()]
    spread = [test.confidence_interval(1 - 0.05 / 3) for test in tests]
    np.testing.assert_allclose(
        found.columns["difference"], [np.mean(x - base) for x in others.values()], rtol=1e-12
    )
    np.testing.assert_allclose(found.columns["low"], [at.low for at in spread], rtol=1e-9)
    np.testing.assert_allclose(found.columns["high"], [at.high for at in spread], rtol=1e-9)
    order = np.argsort([test.pvalue for test in tests])
    corrected, so_far = {}, 0.0
    for left, i in zip((3, 2, 1), order, strict=True):
        so_far = max(so_far, min(1.0, left * tests[i].pvalue))
        corrected[i] = so_far
    np.testing.assert_allclose(found.columns["p"], [corrected[i] for i in range(3)], rtol=1e-9)
    assert list(found.frame()["method"]) == ["B", "C", "D"]
    assert "To A, paired by seed (6); below 0 is better" in repr(found)
    assert r"\toprule" in found.to_latex()


@pytest.mark.parametrize(
    ("runs", "cells", "words"),
    [
        (ended("A", [1, 2, 3, 4]) + ended("B", [2, 3, 5, 6]), ["B", "+1.5", "[0.581, 2.42]", "-"], "fewer than 5"),
        (ended("A", [1]) + ended("B", [2]), ["B", "+1", "-", "-"], "paired by seed (1)"),
        (ended("A", [1] * 5) + ended("B", [2] * 5), ["B", "+1", "-", "-"], "paired by seed (5)"),
        (ended("A", [1] * 5) + ended("B", [1, 2, 3, 4, np.nan]), ["B", "diverged", "-", "-"], "Holm"),
        (ended("A", [1, 2, 3], [0, 1, 2]) + ended("B", [5, 7], [2, 1]), ["B", "+3.5", "[-15.6, 22.6]", "-"], "(2)"),
    ],
)  # fmt: skip
def test_what_too_few_seeds_tell(runs, cells, words):
    found = differences(runs, "A", "train_loss")
    assert found.texts == [cells]
    assert words in found.note


@pytest.mark.parametrize(
    ("runs", "against", "metric", "words"),
    [
        (RUNS, "C", "loss", "unknown method 'C'"),
        (RUNS, "A", "accuracy", "unknown metric 'accuracy'"),
        (ended("A", [1, 2]), "A", "loss", "A and another method need a seed in common"),
        (
            ended("A", [1, 2]) + ended("B", [1], [7]),
            "A",
            "loss",
            "A and another method need a seed in common",
        ),
    ],
)
def test_differences_that_nothing_tells(runs, against, metric, words):
    with pytest.raises(InvalidInput, match=words):
        differences(runs, against, metric)
