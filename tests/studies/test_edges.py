"""A verdict is provisional where what lies beyond the edge of a grid could change it, as its last gains tell."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedsolve.results.sweep import Selection, SweepRecord
from fedsolve.studies import Cells, Problem, Statement
from fedsolve.studies.cells import Cell
from fedsolve.studies.rules import better, judged
from fedsolve.studies.rules.ranks import beyond_edge

SEEDS, RATES = (0, 1, 2, 3, 4), (0.01, 0.03, 0.1)
NOISE = 0.01 * np.array([-1.0, 0.0, 1.0, 0.5, -0.5])
PROBLEM = Problem("one", "made up", lambda d: None, {"rounds": 4}, metric="test_loss")  # pyright: ignore


def record(method, grid, losses, seeds, columns=("train_loss", "test_loss")):
    """From 2 to the losses, shape (settings, seeds), in each column."""
    ends = np.asarray(losses, float)
    curve = np.stack([np.full_like(ends, 2.0), ends], axis=-1)
    select = Selection("train_loss", 1)
    lost = np.where(np.isfinite(ends), -1, 1)
    return SweepRecord(
        method, "one", grid, seeds, np.array([0, 4]), dict.fromkeys(columns, curve), lost, select
    )


def cell(method, by_rate, rates=RATES, columns=("train_loss", "test_loss")):
    """The losses at three rates, of which the best has run with all seeds."""
    grid = record(method, {"client_lr": rates}, np.asarray(by_rate)[:, None], (0,), columns)
    tuned = record(
        method, {"client_lr": (rates[int(np.nanargmin(by_rate))],)}, min(by_rate) + NOISE[None], SEEDS
    )
    return Cell(None, grid, tuned)


def decision(a, b):
    """That `a` is better than `b`."""
    cells = Cells({"one": PROBLEM}, SEEDS, {("one", "a"): a, ("one", "b"): b})
    return judged(Statement("a is better", "", better("one", "a", "b")), cells)


INSIDE = cell("a", (0.9, 0.4, 0.8))


def test_all_columns_move_on_by_what_falling_gains_leave():
    """By factors of 1.25 and 1.6 to 0.5: q is .475, so that two of the last steps are more than what is left."""
    found = beyond_edge(cell("b", (1.0, 0.625, 0.5)))
    assert found is not None
    assert found.tuned is not None
    for values in found.tuned.metrics.values():
        np.testing.assert_allclose(values[0, :, 0], 2.0)
        np.testing.assert_allclose(values[0, :, 1], (0.5 + NOISE) / 1.25**2)
    slow = beyond_edge(cell("b", (1.0, 0.8, 0.656)), 0.5)
    assert slow is not None
    assert slow.tuned is not None
    first, last = np.log(1.0 / 0.8), np.log(0.8 / 0.656)
    left = last / first / (1 - last / first)
    expected = (0.656 + NOISE) * np.exp(-0.5 * left * last)
    assert left > 2
    np.testing.assert_allclose(slow.tuned.metrics["test_loss"][0, :, 1], expected)


def test_an_edge_that_could_not_change_the_verdict_is_no_reason_to_doubt():
    found = decision(INSIDE, cell("b", (1.0, 0.7, 0.65)))
    assert (found.verdict, found.provisional) == ("reproduced", "")
    assert found.reason.endswith(
        "what lies beyond the edge of the grid, where b did best, could not change it"
    )
    assert "edge" not in decision(INSIDE, cell("b", (0.9, 0.65, 0.8))).reason


@pytest.mark.parametrize(
    "other",
    [
        cell("b", (1.0, 0.625, 0.5)),  # a fifth a step: two more are below 0.4
        cell("b", (0.8, 0.79, 0.7)),  # gains grow
        cell("b", (0.55, 0.6, 0.5)),  # no trend: four more steps
        cell("b", (1.0, np.nan, 0.7)),
        Cell(
            cell("b", (0.9, 0.8, 0.7)).tuned,
            cell("b", (0.7, 0.65, 0.7)).grid,
            cell("b", (0.9, 0.8, 0.7)).tuned,
        ),
        cell("b", (0.9, 200.0, 0.7)),
        cell("b", (1.0, 0.7, 0.65), columns=("train_loss",)),  # nothing is known of what is compared
    ],
)
def test_an_edge_that_could_change_it_is(other):
    found = decision(INSIDE, other)
    assert found.verdict == "reproduced"
    assert found.provisional == "b's best client_lr = 0.1 lies at the edge of the grid"


def test_edges_that_change_it_only_together():
    """Of two that are each worse than a in one half of a claim, both would have to gain for it to fail."""
    cells = Cells(
        {"one": PROBLEM},
        SEEDS,
        {
            ("one", "a"): INSIDE,
            ("one", "b"): cell("b", (1.0, 0.625, 0.5)),
            ("one", "c"): cell("c", (1.0, 0.625, 0.5)),
        },
    )

    def either(found):
        """That `a` is better than one of the others: it takes both to contradict it."""
        both = [better("one", "a", name)(found) for name in ("b", "c")]
        held = [one for one in both if one.verdict == "reproduced"]
        return replace(
            both[0],
            verdict="reproduced" if held else "not reproduced",
            provisional="; ".join(filter(None, (one.provisional for one in both))),
        )

    assert judged(Statement("a is better than one", "", either), cells).provisional
