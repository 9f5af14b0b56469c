"""Tuning by a budget: settings drawn at random, the chance of each to be chosen by brute force, and what that "
"comes to.
"""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

import fedsolve as fs
from fedsolve.results.sweep import Selection, SweepRecord
from fedsolve.studies import Cells, Method, Problem, Statement, Study
from fedsolve.studies.cells import Cell
from fedsolve.studies.experiment import Context
from fedsolve.studies.pictures import Budgets, shares
from fedsolve.studies.rules import better, judged
from fedsolve.studies.rules.ranks import beyond_edge, budget, budgeted, chances, drawn, expected
from fedsolve.studies.runner import outcome, solve

AXES = ("client_lr", "server_lr")


def test_a_method_is_made_from_what_was_drawn():
    method = budgeted(fs.FedAvg, {"client_lr": 0.01, "server_lr": 1.0}, dict.fromkeys(AXES, (0.1, 1.0)), 4)
    assert method.published == {"client_lr, server_lr": (0.01, 1.0)}
    ((_, settings),) = method.grid.items()
    made = method.make(**{"client_lr, server_lr": settings[2]})
    assert (made.local.lr, made.server_optimizer.lr) == settings[2]
    assert len(settings) == 4


def test_settings_are_drawn_within_their_ranges_the_default_first():
    ranges = {"client_lr": (1e-4, 10.0), "mu": (1e-3, 1.0)}
    both = drawn({"client_lr": 0.1, "mu": 0.5}, ranges, 200)
    ((names, settings),) = both.items()
    assert (names, settings[0], len(settings)) == ("client_lr, mu", (0.1, 0.5), 200)
    values = np.array(settings[1:])
    assert (values >= [1e-4, 1e-3]).all()
    assert (values <= [10, 1]).all()
    np.testing.assert_allclose(np.log10(values).mean(axis=0), [-1.5, -1.5], atol=0.25)
    ((_, alone),) = drawn({"client_lr": 0.1}, ranges, 200).items()
    assert [s[0] for s in alone] == [s[0] for s in settings]


@pytest.mark.parametrize("tried", [1, 2, 3, 6])
def test_chances_are_those_of_all_subsets(tried):
    """Of the default with every subset of the others: how often each setting has the least score."""
    scores = np.array([3.0, 5.0, 1.0, np.inf, 2.0, 0.5])
    counts = np.zeros(6)
    subsets = list(combinations(range(1, 6), tried - 1))
    for others in subsets:
        counts[min((0, *others), key=lambda i: scores[i])] += 1
    np.testing.assert_allclose(chances(scores, tried), counts / len(subsets), atol=1e-12)


def test_a_default_that_diverges_is_chosen_only_with_others_that_do():
    scores = np.array([np.inf, np.inf, 1.0])
    assert chances(scores, 1).tolist() == [1, 0, 0]
    np.testing.assert_allclose(chances(scores, 2), [0.5, 0, 0.5])


def cells():
    """One metric where less is better: starts at 4, the best ends at 0; method B's default diverges."""
    problem = Problem("p", "small", lambda data_dir: None, {"rounds": 4}, metric="test_loss")
    found = {}
    for method, train, test in (
        ("A", [3.0, 2.0, 1.0], [2.0, 1.0, 5.0]),
        ("B", [np.nan, 2.0, 1.0], [np.nan, 3.0, 0.0]),
    ):
        metrics = {
            "train_loss": np.array([[[4.0, end]] for end in train]),
            "test_loss": np.array([[[4.0, end]] for end in test]),
        }
        lost = np.where(np.isnan(train), 1, -1)[:, None]
        axes = {"client_lr, mu": ((0.1, 0.1), (0.2, 0.3), (0.3, 0.2))}
        grid = SweepRecord(
            method, "p", axes, (5,), np.array([0, 4]), metrics, lost, Selection("train_loss", 1)
        )
        found["p", method] = found["q", method] = Cell(None, grid, None)
    return Cells({"p": problem, "q": problem}, (0, 1), found)


def test_what_a_budget_comes_to():
    """A: its default reaches half; the setting it trusts most is worse than the start, which counts as nothing."""
    assert expected(cells(), "p", 1) == pytest.approx({"A": 0.5, "B": 0.0})
    assert expected(cells(), "p", 2) == pytest.approx({"A": 0.375, "B": (0.25 + 1) / 2})
    assert expected(cells(), "p", 3) == pytest.approx({"A": 0.0, "B": 1.0})


def test_the_picture_has_a_panel_a_method():
    found = cells()
    study = Study("t", "", found.problems, {}, (0, 1), (), {}, tuned_on=5)
    caption, figure = Budgets("By budget.", (1, 3)).draw(study, found)
    assert caption == "By budget. Seed 5."
    assert [axis.get_title(loc="left") for axis in figure.axes[:2]] == ["A", "B"]
    np.testing.assert_allclose(shares(found, (1, 3))["B"], [0, 1])
    with pytest.raises(fs.InvalidInput, match="three and two or more"):
        budget(1)(found)


def test_grids_run_on_a_seed_of_their_own(tmp_path):
    """`tuned_on` is none of the seeds shown; a random setting at the end of what was drawn is at an edge."""
    axis = {"client_lr, server_lr": ((0.01, 1.0), (0.03, 0.5), (0.005, 1.5))}
    made = budgeted(fs.FedAvg, {"client_lr": 0.01, "server_lr": 1.0}, dict.fromkeys(AXES, (0.1, 1.0)), 3).make
    task = fs.tasks.build("regression", num_clients=3, examples_per_client=4, features=5)
    problem = Problem(
        "p", "small", lambda data_dir: task, {"rounds": 2, "local_steps": 1}, metric="train_loss"
    )
    methods = {"M": Method(made, {k: v[0] for k, v in axis.items()}, axis)}
    study = Study(
        "t", "s", {"p": problem}, methods, (0, 1), (), {"budgets": Budgets("By budget.", (1, 3))}, needs_data=False,
        tuned_on=7,
    )  # fmt: skip
    found = solve(study, Context(tmp_path)).cell("p", "M")
    assert (found.grid.seeds, found.tuned.seeds) == ((7,), (0, 1))
    several = replace(study, problems={"p": replace(problem, tuning={"seeds": (3, 4)})})
    assert solve(several, Context(tmp_path)).cell("p", "M").grid.seeds == (3, 4)
    assert found.chosen == {"client_lr, server_lr": (0.03, 0.5)}
    assert found.edges == ["client_lr, server_lr"]
    made_of = outcome(study, Context(tmp_path))
    assert made_of.settings["tuned on seed"] == 7
    assert made_of.tables["p"].rows[0][3] == "client_lr, server_lr 0.03, 0.5"
    assert (
        outcome(study, Context(tmp_path / "quick", quick=True)).pictures["budgets"]()[0]
        == "By budget. Seed 7."
    )


# A verdict is provisional where what lies beyond the edge of a grid could change it, as its last gains tell.

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
