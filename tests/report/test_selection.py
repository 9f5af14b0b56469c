"""The rules that choose a setting, on numbers small enough to check by hand."""

from __future__ import annotations

import numpy as np
import pytest

from fedsolve.results.sweep import SELECTIONS, Selection, SweepRecord

ROUNDS = np.array([0, 2, 4, 6])


@pytest.mark.parametrize(
    ("last", "expected"), [(1, 1.0), (2, 1.0), (3, 1.5), (4, 1.5), (5, 2.0), (6, 2.0), (100, 2.0)]
)
def test_the_last_rounds_are_averaged_and_the_initial_model_is_no_result(last, expected):
    """Evaluated at rounds 0, 2, 4 and 6: the last 3 rounds are 4, 5 and 6."""
    assert Selection("loss", last).score(ROUNDS, np.array([9.0, 3.0, 2.0, 1.0])) == expected


def test_by_default_the_last_tenth_counts_and_more_than_half_is_noted():
    assert [Selection.standard(n).last for n in (1, 9, 50, 1000)] == [1, 1, 5, 100]
    assert Selection("loss", 25).notes(50) == Selection("loss", 1).notes(1) == ()
    (note,) = Selection("loss", 100).notes(50)
    assert note.startswith("the score averages 50 of 50 rounds, more than half of the run")
    assert note.endswith("loss:5 averages the last tenth")


def test_an_initial_model_alone_is_scored():
    assert Selection("loss", 1).score(np.array([0]), np.array([9.0])) == 9.0


def test_what_is_not_finite_is_worst():
    values = np.array([[1.0, 1.0, 1.0, np.nan], [1.0, 1.0, np.nan, 2.0]])
    assert Selection("loss", 1).score(ROUNDS, values).tolist() == [np.inf, 2.0]
    assert SELECTIONS["validation-accuracy"].worst == -np.inf


def sweep(scores, metric="train_loss", diverged=None):
    """Two axes; scores of shape (settings, seeds)."""
    scores = np.asarray(scores, float)
    values = np.repeat(scores[..., None], len(ROUNDS), axis=2)
    lost = np.full(scores.shape, -1) if diverged is None else np.asarray(diverged)
    grid = {"client_lr": (0.1, 1.0), "server_lr": (1.0, 2.0, 3.0)}
    return SweepRecord("A", "t", grid, (0, 1), ROUNDS, {metric: values}, lost, Selection(metric, 1))


LOSSES = [[1.0, 3.0], [1.0, 1.1], [4.0, 4.0], [1.1, 1.1], [9.0, 9.0], [0.1, 0.1]]
LOST = [[-1, -1], [-1, -1], [-1, -1], [-1, -1], [-1, -1], [-1, 3]]


def test_a_sweep_is_one_line_whatever_it_holds():
    assert repr(sweep(LOSSES)) == f"Sweep(A on t: 2 client_lr x 3 server_lr, 2 seeds, {ROUNDS[-1]} rounds)"


def test_the_best_has_the_lowest_mean_and_lost_no_seed():
    found = sweep(LOSSES, diverged=LOST)
    assert found.score.tolist() == [2.0, 1.05, 4.0, 1.1, 9.0, np.inf]
    assert found.best_settings == {"client_lr": 0.1, "server_lr": 2.0}
    assert found.share_within(0.05) == 2 / 6
    assert found.best_over_grid("server_lr").tolist() == [1.1, 1.05, 4.0]
    assert found.matrix("client_lr", "server_lr").tolist() == [[2.0, 1.1], [1.05, 9.0], [4.0, np.inf]]


def test_of_accuracies_the_highest_is_best():
    found = sweep(LOSSES, "test_accuracy", LOST)
    assert found.best_settings == {"client_lr": 1.0, "server_lr": 2.0}
    assert found.score[-1] == -np.inf
    assert found.share_within(0.6) == 2 / 6
    assert found.best_over_grid("client_lr").tolist() == [4.0, 9.0]
